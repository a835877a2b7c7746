"""A command line in the words of another program -> what each means here, and the whole line to type. No torch.

The words are those of cli/known_terms.py. What some mean hangs on others: --world-size counts machines beside
--multiprocessing-distributed, and processes without. So the line is read as a whole, before Hydra sees it.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.cli import hydra_flags, known_terms
from imagenet_ddp.cli.known_terms import Term
from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.config.keys import declared
from imagenet_ddp.data import validate as data_check
from imagenet_ddp.data.sources.detect import options_for
from imagenet_ddp.distributed.network import nccl
from imagenet_ddp.models.names import CLASSIFIERS
from imagenet_ddp.system.text import uv_run

# Keys below these are typed ones; below callbacks.*, search.*, model.args.* and the like anything may stand.
_TYPED = ("data", "model", "optim", "schedule", "loss", "trainer", "strategy", "cluster", "nccl")
_CHECKPOINTS = (".ckpt", ".pt", ".pth", ".tar")
_PLACEHOLDER = re.compile(r"(=|//)(HOST|FILE|RANK|LOCAL_RANK)\b")


@dataclass
class Word:
    """One word of the line: what was typed, and what it is here."""

    typed: str
    options: list[str] = field(default_factory=list)
    note: str = ""
    role: str = ""
    value: str = ""


@dataclass(frozen=True)
class Translation:
    """The whole line in keys of this program. argv: what the hint says to type."""

    text: str
    verb: str
    argv: list[str]
    has_placeholders: bool


def translate(verb: str, argv: Sequence[str], environ: Mapping[str, str]) -> Translation | None:
    """Return the translated line, or None where every word is this program's, or Hydra's."""
    flags, kept, words = _read(verb, argv, declared(verb))
    if not words:
        return None
    typed = {word.partition("=")[0].lstrip("+"): word.partition("=")[2] for word in kept}
    said = {word.role: word.value for word in words if word.role}
    if "evaluate" in said and verb in ("train", "doctor"):
        verb = "evaluate"
    for word in words:
        _fill_in(word, verb, said, typed, len(words) > 1)
    # data= before its root, and the rendezvous after all
    order = {"dummy": 0, "folder": 1}
    own = [option for word in sorted(words, key=lambda word: order.get(word.role, 2)) for option in word.options]
    options = list(dict.fromkeys([*kept, *own, *_world(said, typed, environ)]))
    if verb == "evaluate" and not {"checkpoint", "resume"} & (said.keys() | typed.keys()):
        options.append("checkpoint=FILE")
    shown = flags[:-2] if flags[-2:] == ["--cfg", "job"] and verb == "tune" else flags
    line = f"{uv_run()}python -m imagenet_ddp.{verb} {shlex.join([*shown, *options])}".strip()
    rows = [f"  {word.typed}: {_meaning(word)}." for word in words]
    text = "\n".join(["options of other programs, and what they are here:", *rows, f"Hint: `{line}`"])
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
    return flags, kept, words


def _option(token: str, rest: list[str], keys: Mapping[str, object]) -> Word:
    """Read an option that begins with -; its value is taken from rest."""
    name, equals, value = token.partition("=")
    if (joined := re.fullmatch(r"(-[a-z]+)(\d+)", name)) and known_terms.find(joined[1]):  # -b256
        name, equals, value = joined[1], "=", joined[2]
    term = known_terms.find(name)
    close = [] if term else closest(name.lstrip("-").replace("-", "_"), keys)
    has_value = bool(rest) and not re.match(r"-(?!\d+(\.\d+)?$)", rest[0]) and "=" not in rest[0]
    if not equals and has_value and not (term.flag if term else not close and Path(rest[0]).is_dir()):
        value = rest.pop(0)
        token = f"{name} {value}"
    if term:
        return _word(term, token, value)
    if close:
        return Word(token, [f"{close[0]}={value or 'true'}"])
    return Word(token, note="nothing here is called that, or like it")


def _key(name: str, value: str, token: str, keys: Mapping[str, object]) -> Word | None:
    bare = name.lstrip("+")
    if bare.isupper() and bare.startswith(nccl.PREFIXES):
        return Word(token, [f"nccl.env.{bare}={_quoted(value)}"])
    parent, _, last = bare.rpartition(".")
    if bare.startswith("~") or bare in keys or (conf_dir() / bare).is_dir() or (parent and parent not in _TYPED):
        return None
    term = known_terms.find(last)
    return None if term is None or "/" in bare else _word(term, token, value.strip("'\""))


def _bare(word: str, verb: str, keys: Mapping[str, object]) -> Word | None:
    """Read a word without = and -: a folder, a checkpoint, or the name of data or a model."""
    if word.startswith("+") or (word.startswith("~") and not word.startswith("~/")):
        return None  # Hydra's
    if not Path(word).exists():
        for key, names in (("data", data_check.NAMES), ("model.name", CLASSIFIERS)):
            if word in names:
                return Word(word, [f"{key}={word}"])
        if any(key.rpartition(".")[2] == word for key in keys) or not re.match(r"[^\W\d]|[./~]", word):
            return None
    if verb == "predict":
        return Word(word, [f"images={_quoted(word)}"])
    is_checkpoint = Path(word).is_file() and word.endswith(_CHECKPOINTS)
    return Word(word, role="resume" if is_checkpoint else "folder", value=word)


def _word(term: Term, typed: str, value: str) -> Word:
    if term.flag and value.lower() in ("false", "0", "no"):
        return Word(typed, note="so it is by default")
    options = known_terms.options(term, value)
    if any(option.endswith("=") for option in options):
        return Word(typed, note=f"{options[0]}VALUE, but no value is typed")
    return Word(typed, options, term.note.replace("{}", value), term.role, value)


# ---- what hangs on the whole line ----------------------------------------------------------------------------------


def _fill_in(word: Word, verb: str, said: Mapping[str, str], typed: Mapping[str, str], others: bool) -> None:
    """Set the options that depend on other words. The words that _world reads only get a note."""
    value = word.value.strip("[]() ")
    if word.role == "folder":
        found = options_for(word.value, "imagenet" if others else "imagefolder")
        found = [f"data.root={word.value}"] if "data" in typed else found
        word.options = [] if "dummy" in said else [quoted(option) for option in found]
        word.note = "not read with --dummy" if "dummy" in said else ""
    elif word.role == "resume":
        word.options = [f"{'resume' if verb == 'train' else 'checkpoint'}={_quoted(word.value) or 'auto'}"]
    elif word.role == "devices" and value in ("all", "-1", "auto", "gpu", ""):
        word.options, word.note = [], "so it is by default"
    elif word.role == "devices":
        listed = f"[{value}]" if "," in value or "[" in word.value else value
        word.options = ["trainer.accelerator=cpu"] if value == "0" else [f"trainer.devices={listed}"]
    elif word.role == "backend" and value == "nccl":
        word.options, word.note = [], "the default on GPUs"
    elif word.role == "gpu0" and value.isdecimal():  # there of all batches of an update, here of one
        word.options[1] = f"strategy.first_device_batch={int(value) // (_number(said.get('accumulate')) or 1)}"
    elif word.role == "gpu" and {"world_size", "rank"} & said.keys():
        word.options = []
    elif word.role in ("num_nodes", "node_rank", "local_rank", "world_size", "rank", "address", "master_addr",
                       "master_port"):  # fmt: skip
        word.note, word.options = _meaning(word), []


def _world(said: Mapping[str, str], typed: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """Return the options by which machines, or processes started one by one, find each other; none on one machine.

    A world size without --multiprocessing-distributed counts processes, as torch's does.
    """
    size, nodes = _number(said.get("world_size")), _number(said.get("num_nodes") or typed.get("trainer.num_nodes"))
    rank, devices = said.get("node_rank") or said.get("rank"), _number(said.get("devices")) or 1
    if size > max(nodes, 1) and size % devices == 0 and "one_per_gpu" not in said:
        local = str(_number(rank) % devices) if devices > 1 and rank else "LOCAL_RANK"
        local = said.get("local_rank") or said.get("gpu") or local
        options = [f"cluster.world_size={size}", f"cluster.rank={rank or 'RANK'}", f"cluster.local_rank={local}"]
    elif (nodes or size) > 1:
        options = [f"trainer.num_nodes={nodes or size}", *([f"cluster.node_rank={rank}"] if rank else [])]
    else:
        return []
    host, port, url = said.get("master_addr", "HOST"), said.get("master_port", "29500"), said.get("address", "env:")
    if not url.startswith("env"):
        return [*options, f"cluster.address={url}"]
    is_known = "cluster.address" in typed or (environ.get("MASTER_ADDR") and host == "HOST")
    return options if is_known else [*options, f"cluster.address=tcp://{host}:{port}"]


def _number(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0


def _quoted(value: str) -> str:
    """Return value with the quotes by which Hydra's grammar reads it as one text."""
    if re.fullmatch(r"[\w./:%+@-]*", value, re.ASCII):
        return value
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def quoted(option: str) -> str:
    """Return key=value with the quotes that Hydra's grammar wants around the value."""
    key, _, value = option.partition("=")
    return f"{key}={_quoted(value)}"


def _meaning(word: Word) -> str:
    said = shlex.join(word.options)
    return f"{said} ({word.note})" if said and word.note else said or word.note or "as it is"
