"""Translate a command line with another program's options: explain each option, and return the whole line to type.

cli/known_terms.txt lists the options. The meaning of some depends on others (cli/whole_line.py), so the line is read as
a whole, before Hydra parses it. Does not import torch.
"""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.cli import hydra_flags, known_terms
from imagenet_ddp.cli.known_terms import Term
from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.cli.whole_line import Word, fill_in, meaning, merged, quoted_value, world_options
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.config.keys import declared, key_of
from imagenet_ddp.data import validate as data_check
from imagenet_ddp.distributed.network import nccl
from imagenet_ddp.models.known_names import CLASSIFIERS
from imagenet_ddp.system.text import uv_run

# Groups with declared keys only; callbacks.*, search.*, model.args.* and the like accept any key.
_TYPED = ("data", "model", "optim", "schedule", "loss", "trainer", "strategy", "cluster", "nccl")
_CHECKPOINTS = (".ckpt", ".pt", ".pth", ".tar")
_PLACEHOLDER = re.compile(r"(=|//)(HOST|FILE|RANK|LOCAL_RANK|WORLD_SIZE)\b")
_NUMBER, _PAIR = re.compile(r"-?\d*\.?\d+(e-?\d+)?"), re.compile(r"\w+=\S+")


@dataclass(frozen=True)
class Translation:
    """A command line translated into keys of this program."""

    text: str  # the message
    verb: str
    argv: list[str]  # the arguments that the hint proposes
    has_placeholders: bool  # argv contains words such as HOST, which the user replaces


def translate(verb: str, argv: Sequence[str], environ: Mapping[str, str]) -> Translation | None:
    """Return the translated line, or None if every word belongs to this program or to Hydra."""
    flags, kept, words = _read(verb, argv, declared(verb))
    if not words:
        return None
    typed = {key_of(word): word.partition("=")[2] for word in kept}
    said = {word.role: word.value for word in words if word.role}
    if "num_nodes" not in said and any(re.match("-(ws|rn)", word.typed) for word in words):
        said["one_per_gpu"] = ""  # these short names count machines, each of which starts its processes
    if "evaluate" in said and verb in ("train", "doctor"):
        verb = "evaluate"
    for word in words:
        fill_in(word, verb, said, typed, len(words) > 1)
    if "checkpoint" in declared(verb):
        for word in words:
            if any(key_of(option) == "model.weights" for option in word.options):
                word.options, word.note = [], f"leave it out, because {verb} reads the weights from checkpoint=FILE"
        kept = [option for option in kept if key_of(option) != "model.weights"]
    # data= comes before data.root, and the options of the rendezvous come last
    order = {"dummy": 0, "folder": 1}
    own = [option for word in sorted(words, key=lambda word: order.get(word.role, 2)) for option in word.options]
    options = list(dict.fromkeys(merged([*kept, *own, *world_options(said, typed, environ)])))
    if verb == "evaluate" and not {"checkpoint", "resume"} & (said.keys() | typed.keys()):
        options.append("checkpoint=FILE")
    line = f"{uv_run()}python -m imagenet_ddp.{verb} {shlex.join([*flags, *options])}".strip()
    rows = [f"  {word.typed}: {meaning(word)}." for word in words]
    text = "\n".join(["options of other programs, and their equivalents here:", *rows, f"Hint: `{line}`"])
    return Translation(text, verb, [*options, *flags], bool(_PLACEHOLDER.search(line)))


# ---- reading -------------------------------------------------------------------------------------------------------


def _read(verb: str, argv: Sequence[str], keys: Mapping[str, object]) -> tuple[list[str], list[str], list[Word]]:
    """Return (Hydra's options, key=value words to keep, words of other programs)."""
    flags: list[str] = []
    kept: list[str] = []
    words: list[Word] = []
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        name, equals, value = token.partition("=")
        if token.startswith("-") and len(token) > 1:
            is_print_freq = name == "-p" and rest and rest[0].isdecimal()
            if name in hydra_flags.FLAGS | hydra_flags.WITH_VALUE and not is_print_freq:
                flags.append(token)
                takes = name in hydra_flags.WITH_VALUE and not equals and bool(rest)
                if takes and rest[0] in hydra_flags.OPTIONAL_VALUES.get(name, (rest[0],)):
                    flags.append(rest.pop(0))
                continue
            words.append(_option(token, rest, keys))
        elif (word := _key(name, value, token, keys) if equals else _bare(token, verb, keys)) is None:
            kept.append(token)
        else:
            words.append(word)
    if len(kept) == len(argv) == 2 and all(word.isdecimal() for word in kept) and verb == "train":
        names = zip(("rank", "local_rank"), kept, strict=True)  # main.py RANK LOCAL_RANK
        return flags, [], [Word(number, [f"cluster.{name}={number}"], "", name, number) for name, number in names]
    return flags, kept, words


def _option(token: str, rest: list[str], keys: Mapping[str, object]) -> Word:
    """Read an option that begins with -; its value is taken from rest."""
    name, equals, value = token.partition("=")
    if (joined := re.fullmatch(r"(-[a-z]+)(\d+)", name)) and known_terms.find(joined[1]):  # -b256
        name, equals, value = joined[1], "=", joined[2]
    term = known_terms.find(name)
    if term is None and name.startswith("--no-") and (opposite := known_terms.find(name[5:])) and opposite.flag:
        return _word(opposite, token, "false")
    close = [] if term else closest(name.lstrip("-").replace("-", "_"), keys)
    if term and term.several and not equals:
        takes = _PAIR if "args.{}" in term.here else _NUMBER
        count = next((number for number, word in enumerate(rest) if not takes.fullmatch(word)), len(rest))
        value = " ".join(rest[:count])
        del rest[:count]
        return _word(term, f"{name} {value}".strip(), value)
    has_value = bool(rest) and not re.match(r"-(?!\d+(\.\d+)?$)", rest[0]) and "=" not in rest[0]
    if not equals and has_value and not (term.flag if term else not close and Path(rest[0]).is_dir()):
        value = rest.pop(0)
        token = f"{name} {value}"
    if term:
        return _word(term, token, value)
    if close:
        return Word(token, [f"{close[0]}={value or 'true'}"])
    return Word(token, note="no option here has this or a similar name")


def _key(name: str, value: str, token: str, keys: Mapping[str, object]) -> Word | None:
    bare = name.lstrip("+")
    if bare.isupper() and bare.startswith(nccl.PREFIXES):
        return Word(token, [f"nccl.env.{bare}={quoted_value(value)}"])
    parent, _, last = bare.rpartition(".")
    is_group = os.path.isdir(conf_dir() / bare)  # noqa: PTH112 Path.is_dir() raises where a name is too long
    if bare.startswith("~") or bare in keys or is_group or (parent and parent not in _TYPED):
        return None
    term = known_terms.find(last)
    return None if term is None or "/" in bare else _word(term, token, value.strip("'\""))


def _bare(word: str, verb: str, keys: Mapping[str, object]) -> Word | None:
    """Read a word without = and -: a folder, a checkpoint, or the name of a data set or a model."""
    if word.startswith("+") or (word.startswith("~") and not word.startswith("~/")):
        return None  # Hydra's
    if not Path(word).exists():
        for key, names in (("data", data_check.NAMES), ("model.name", CLASSIFIERS)):
            if word in names:
                return Word(word, [f"{key}={word}"])
        if any(key.rpartition(".")[2] == word for key in keys) or not re.match(r"[^\W\d]|[./~]", word):
            return None
    if verb == "predict":
        return Word(word, [f"images={quoted_value(word)}"])
    is_checkpoint = Path(word).is_file() and word.endswith(_CHECKPOINTS)
    return Word(word, role="resume" if is_checkpoint else "folder", value=word)


def _word(term: Term, typed: str, value: str) -> Word:
    if term.flag and value.lower() in ("false", "0", "no"):
        found = known_terms.off_options(term)
        return Word(typed, found, "" if found else "leave it out")
    options = known_terms.options(term, value)
    if any(option.endswith("=") for option in options):
        return Word(typed, note=f"{options[0]}VALUE, but no value is typed")
    return Word(typed, options, term.note.replace("{}", value), term.role, value)
