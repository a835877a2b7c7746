"""A command line in the words of another program -> what each means here, and the whole line to type. No torch.

What a word means may hang on the others: --world-size counts machines beside --multiprocessing-distributed, and
processes without. So the line is read as a whole, before Hydra sees it. The words are those of cli/known_terms.py.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.cli import hydra_flags, known_terms
from imagenet_ddp.cli.known_terms import Term
from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.cli.translate_world import Word, parse_number, translate_world
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.schema import conf_dir
from imagenet_ddp.data import validate as data_check
from imagenet_ddp.data.sources.detect import name_of, options_for
from imagenet_ddp.distributed.network import nccl
from imagenet_ddp.models.torchvision_names import CLASSIFIERS

# Keys below these are typed ones; below callbacks.*, search.*, model.args.* and the like anything may stand.
_TYPED = ("data", "model", "optim", "schedule", "loss", "trainer", "strategy", "cluster", "nccl")
_CHECKPOINTS = (".ckpt", ".pt", ".pth", ".tar")
PLACEHOLDERS = {
    "HOST": "the address of node 0",
    "FILE": "a checkpoint",
    "RANK": "the process's number",
    "LOCAL_RANK": "its number on its machine",
    "WORLD_SIZE": "processes in all",
}


@dataclass(frozen=True)
class Translation:
    """lines: (what tells it from the others, the command, the options alone); the first one is the likeliest."""

    words: list[Word]
    verb: str
    argv: list[str]
    lines: list[tuple[str, str]]

    @property
    def has_placeholders(self) -> bool:
        return bool(_placeholders(self.lines[0][1]))

    @property
    def text(self) -> str:
        rows = [f"  {word.typed}: {_meaning(word)}." for word in self.words]
        said = "; ".join(f"{which}`{line}`" for which, line in self.lines)
        where = ", ".join(f"{name}: {PLACEHOLDERS[name]}" for name in _placeholders(self.lines[0][1]))
        return "\n".join(
            ["options of other programs, and what they are here:", *rows, f"Hint: {said}{f' ({where})' * bool(where)}"]
        )


def translate(verb: str, argv: Sequence[str], environ: Mapping[str, str]) -> Translation | None:
    """None where every word is this program's, or Hydra's."""
    keys = declared(verb)
    flags, kept, words = _read(verb, argv, keys)
    if not words:
        return None
    typed = {word.partition("=")[0].lstrip("+"): word.partition("=")[2] for word in kept}
    said = {word.role: word.value for word in words if word.role}
    if "evaluate" in said and verb in ("train", "doctor"):
        verb, keys = "evaluate", declared("evaluate")
    data = _data(words, typed)
    _runs(words, said, verb, keys, typed)
    ways = translate_world(words, said, typed, environ)
    variables = [option for word in words if word.role == "variable" for option in word.options]
    before = [option for option in variables if option.partition("=")[0].isupper()]
    own = [option for word in words if word.role not in ("folder", "dataset", "dummy") for option in word.options]
    lines, argvs = [], []
    for which, world in ways:
        options = list(dict.fromkeys([*data, *kept, *(option for option in own if option not in before), *world]))
        shown = flags[:-2] if flags[-2:] == ["--cfg", "job"] and verb in ("doctor", "tune") else flags
        command = f"python -m imagenet_ddp.{verb} {shlex.join([*shown, *options])}".strip()
        uv = "uv run " if "UV_RUN_RECURSION_DEPTH" in environ else ""
        lines.append((which, " ".join([*map(shlex.quote, before), uv + command])))
        argvs.append([*options, *flags])
    return Translation(words, verb, argvs[0], lines)


# ---- reading -------------------------------------------------------------------------------------------------------


def _read(verb: str, argv: Sequence[str], keys: Mapping[str, object]) -> tuple[list[str], list[str], list[Word]]:
    """(Hydra's options, key=value words to keep, words of other programs)."""
    flags: list[str] = []
    kept: list[str] = []
    words: list[Word] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        name, equals, value = token.partition("=")
        if token.startswith("-") and len(token) > 1:
            hydra = _hydra(name)
            if hydra and not (name == "-p" and rest and rest[0].isdecimal()):
                flags.append(token)
                takes = hydra in hydra_flags.WITH_VALUE and not equals and bool(rest)
                if takes and rest[0] in hydra_flags.OPTIONAL_VALUES.get(hydra, (rest[0],)):
                    flags.append(rest.pop(0))
                continue
            words.append(_option(token, rest, keys))
        elif equals:
            word = _key(name, value, token, keys)
            if word is None:
                kept.append(token)
            else:
                words.append(word)
        else:
            word = _bare(token, verb, keys)
            if word is None:
                kept.append(token)
            else:
                words.append(word)
    return flags, kept, words


def _hydra(name: str) -> str | None:
    """Hydra's option of that name, or that the name begins, as argparse takes it."""
    known = hydra_flags.FLAGS | hydra_flags.WITH_VALUE
    if name in known or known_terms.find(name):
        return name if name in known else None
    begun = [option for option in known if name.startswith("--") and len(name) > 2 and option.startswith(name)]
    return begun[0] if len(begun) == 1 else None


def _option(token: str, rest: list[str], keys: Mapping[str, object]) -> Word:
    """One that begins with -; its value is taken from rest."""
    name, equals, value = token.partition("=")
    if (joined := re.fullmatch(r"(-[a-z]+)(\d+)", name)) and known_terms.find(joined[1]):  # -b256
        name, equals, value = joined[1], "=", joined[2]
    term = known_terms.find(name)
    if term is not None:
        if not term.flag and not equals and rest and not _is_option(rest[0]):
            value = rest.pop(0)
            return _word(term, f"{name} {value}", value)
        return _word(term, token, value)
    close = closest(name.lstrip("-").replace("-", "_"), keys)
    next_is_value = bool(rest) and not _is_option(rest[0]) and "=" not in rest[0]
    if not equals and next_is_value and (close or not Path(rest[0]).is_dir()):
        value = rest.pop(0)
        token = f"{name} {value}"
    if not close:
        return Word(token, note="nothing here is called that, or like it")
    return Word(token, [f"{close[0]}={value or 'true'}"])


def _is_option(token: str) -> bool:
    return token.startswith("-") and not re.fullmatch(r"-\d+(\.\d+)?", token)


def _key(name: str, value: str, token: str, keys: Mapping[str, object]) -> Word | None:
    bare = name.lstrip("+")
    if re.fullmatch(r"[A-Z][A-Z0-9_]*", bare):
        return _variable(bare, value, token)
    parent, _, last = bare.rpartition(".")
    if bare.startswith("~") or bare in keys or (conf_dir() / bare).is_dir() or (parent and parent not in _TYPED):
        return None
    term = known_terms.find(last)
    return None if term is None or "/" in bare else _word(term, token, value.strip("'\""))


def _word(term: Term, typed: str, value: str) -> Word:
    if term.flag and value.lower() in ("false", "0", "no"):
        return Word(typed, note="so it is by default")
    if term.role:
        return Word(typed, note=known_terms.said(term, value), role=term.role, value=value)
    options = known_terms.options(term, value)
    if options is None:
        return Word(typed, note=f"there is no {value} here; what there is: {', '.join(term.values or ())}")
    if any(option.endswith("=") for option in options):
        return Word(typed, note=f"{options[0]}VALUE, but no value is typed")
    return Word(typed, options, known_terms.said(term, value))


def _variable(name: str, value: str, token: str) -> Word:
    if name.startswith(nccl.PREFIXES):
        return Word(token, [f"nccl.env.{name}={_quoted(value)}"], role="variable")
    return Word(token, [f"{name}={value}"], "a variable of the environment, in front of the command", "variable")


def _bare(word: str, verb: str, keys: Mapping[str, object]) -> Word | None:
    """A word without = and -."""
    if word.startswith("+") or (word.startswith("~") and not word.startswith("~/")):
        return None  # Hydra's
    is_last_of_key = any(key.rpartition(".")[2] == word for key in keys)
    if not Path(word).exists():
        if word in data_check.NAMES:
            return Word(word, [f"data={word}"])
        if word in CLASSIFIERS:
            return Word(word, [f"model.name={word}"])
        if is_last_of_key or not re.match(r"[^\W\d]|[./~]", word):
            return None
    if Path(word).is_file() and word.endswith(_CHECKPOINTS):
        return Word(word, role="resume", value=word)
    if verb == "predict":
        return Word(word, [f"images={_quoted(word)}"])
    return Word(word, role="folder", value=word)


# ---- what hangs on the whole line ----------------------------------------------------------------------------------


def _data(words: Sequence[Word], typed: Mapping[str, str]) -> list[str]:
    """data= and data.root=, in front of the others."""
    folders = [word for word in words if word.role == "folder"]
    dummy = [word for word in words if word.role == "dummy"]
    options = ["data=shapes"] if dummy else []
    for word in dummy:
        word.options = options
    named = None
    for word in (word for word in words if word.role == "dataset"):
        name = name_of(Path(word.value).name)
        if name is None:
            word.role = "folder"
            folders.append(word)
        else:
            named, word.options = name, [f"data={name}"]
            word.note = ""
            options = options or word.options
    for word in folders:
        if dummy:
            word.note = "not read with --dummy"
            continue
        others = any(other.role not in ("folder", "dataset") for other in words)
        found = options_for(word.value, "imagenet" if others else "imagefolder")
        root = quoted(found[1])
        word.options = (
            [f"data.root={_quoted(word.value)}"] if named or "data" in typed else [found[0], root, *found[2:]]
        )
        word.note = ""
        options = [*options, *word.options]
    return options


def _runs(
    words: Sequence[Word], said: Mapping[str, str], verb: str, keys: Mapping[str, object], typed: Mapping[str, str]
) -> None:
    """Checkpoints, evaluation, accumulation."""
    key = "resume" if "resume" in keys else "checkpoint"
    is_there = key in typed or "resume" in said
    for word in words:
        if word.role == "resume":
            word.options = [f"{key}={_quoted(word.value) or 'auto'}"]
            word.note = "" if key == "resume" else "evaluate reads it"
        elif word.role == "evaluate":
            word.note = "a command of its own, python -m imagenet_ddp.evaluate"
            word.options = [] if is_there or verb != "evaluate" else ["checkpoint=FILE"]
        elif word.role == "accumulate":
            word.options = [f"trainer.accumulate_grad_batches={word.value}"]
        elif word.role == "first_device_batch":
            times = parse_number(said.get("accumulate")) or 1
            images = parse_number(word.value)
            word.options = [
                "strategy=balanced_dp",
                f"strategy.first_device_batch={word.value if images is None else images // times}",
            ]


def _quoted(value: str) -> str:
    """As Hydra's grammar takes it for one text."""
    if re.fullmatch(r"[\w./:%+@=-]*", value, re.ASCII) and "=" not in value:
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def quoted(option: str) -> str:
    """key=value with the quotes that Hydra's grammar wants around the value."""
    key, _, value = option.partition("=")
    return f"{key}={_quoted(value)}"


def _meaning(word: Word) -> str:
    said = shlex.join(word.options)
    if said and word.note and word.note != said:
        return f"{said} ({word.note})"
    return said or word.note


def _placeholders(line: str) -> list[str]:
    return [name for name in PLACEHOLDERS if re.search(rf"(=|//){name}\b", line)]
