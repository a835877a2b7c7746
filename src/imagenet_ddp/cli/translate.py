"""A command line in the words of another program -> what each means here, and the whole line to type. No torch.

What a word means may hang on the others: --world-size counts machines beside --multiprocessing-distributed, and
processes without. So the line is read as a whole, before Hydra sees it. The words are those of cli/known_terms.py.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.cli import known_terms
from imagenet_ddp.cli.known_terms import Term
from imagenet_ddp.cli.suggest import closest
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.schema import conf_dir
from imagenet_ddp.data import validate as data_check
from imagenet_ddp.data.sources.detect import name_of, options_for
from imagenet_ddp.distributed.network import nccl
from imagenet_ddp.models.torchvision_names import CLASSIFIERS

# Hydra's own options; a test holds them against its parser.
HYDRA_FLAGS = {"--help", "-h", "--hydra-help", "--version", "--resolve", "--run", "-r", "--multirun", "-m",
               "--shell-completion", "-sc"}  # fmt: skip
HYDRA_WITH_VALUE = {"--cfg", "-c", "--package", "-p", "--config-path", "-cp", "--config-name", "-cn", "--config-dir",
                    "-cd", "--experimental-rerun", "--info", "-i"}  # fmt: skip
_OPTIONAL = {"--info": ("all", "config", "defaults", "defaults-tree", "plugins", "searchpath")}
_OPTIONAL["-i"] = _OPTIONAL["--info"]
# Keys below these are typed ones; below callbacks.*, search.*, model.args.* and the like anything may stand.
_TYPED = ("data", "model", "optim", "schedule", "loss", "trainer", "strategy", "cluster", "nccl")
_CHECKPOINTS = (".ckpt", ".pt", ".pth", ".tar")
_PORT = "29500"
PLACEHOLDERS = {
    "HOST": "the address of node 0",
    "FILE": "a checkpoint",
    "RANK": "the process's number",
    "LOCAL_RANK": "its number on its machine",
    "WORLD_SIZE": "processes in all",
}


@dataclass
class Word:
    """What was typed, and what it is here. role: its meaning is found once all words are read."""

    typed: str
    options: list[str] = field(default_factory=list)
    note: str = ""
    role: str = ""
    value: str = ""


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
    ways = _world(words, said, typed, environ)
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
                takes = hydra in HYDRA_WITH_VALUE and not equals and bool(rest)
                if takes and rest[0] in _OPTIONAL.get(hydra, (rest[0],)):
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
    known = HYDRA_FLAGS | HYDRA_WITH_VALUE
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
    for key, known in nccl.KEYS.items():
        if name in (known.variable, *known.old_names):
            is_flag = declared("train")[f"nccl.{key}"].type is bool
            text = {"1": "true", "0": "false"}.get(value, value.lower()) if is_flag else value
            return Word(token, [f"nccl.{key}={_quoted(text)}"], role="variable")
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
            times = _number(said.get("accumulate")) or 1
            images = _number(word.value)
            word.options = [
                "strategy=balanced_dp",
                f"strategy.first_device_batch={word.value if images is None else images // times}",
            ]


def _world(
    words: Sequence[Word], said: Mapping[str, str], typed: Mapping[str, str], environ: Mapping[str, str]
) -> list[tuple[str, list[str]]]:
    """The ways in which the words on machines and processes can be meant: (which, options). Two where the line does
    not tell whether world size and rank count machines or processes."""
    nodes = _number(said.get("num_nodes") or typed.get("trainer.num_nodes"))
    devices = _devices(said.get("devices") or typed.get("trainer.devices", ""))
    size, rank = _number(said.get("world_size")), _number(said.get("rank"))
    address = _address(said)
    own_rank = _number(said.get("node_rank"))
    by_machine = size is None or size <= 1 or "one_per_gpu" in said or size == nodes
    by_machine = by_machine or (devices is not None and devices > 1 and size % devices != 0)  # type: ignore[operator]
    by_process = bool(size and nodes and devices and size == nodes * devices and size != nodes)
    if size is None and (rank or 0) > 0 and "one_per_gpu" not in said and nodes is None:
        by_machine, by_process = False, True
    machines = nodes or size or (2 if (own_rank or rank or 0) > 0 or not _is_here(address) else 1)
    together = [f"cluster.address={address}"] if address else []
    if not together and "cluster.address" not in typed and not environ.get("MASTER_ADDR"):
        together = [f"cluster.address=tcp://HOST:{said.get('master_port', _PORT)}"]
    per_machine: list[str] = []
    if machines > 1:
        number = own_rank if own_rank is not None else rank
        per_machine = [
            *([] if "trainer.num_nodes" in typed else [f"trainer.num_nodes={machines}"]),
            *([] if number is None else [f"cluster.node_rank={number}"]),
            *together,
        ]
    local = _local_rank(said, rank, size, nodes, devices)
    per_process = [
        f"cluster.world_size={'WORLD_SIZE' if size is None else size}",
        f"cluster.rank={'RANK' if rank is None else rank}",
        f"cluster.local_rank={local}",
        *together,
    ]
    ways = [("", per_machine)] if by_machine else [("", per_process)]
    if not by_machine and not by_process:
        ways = [
            ("where the world size counts processes: ", per_process),
            ("where it counts machines: ", per_machine),
        ]
    own = _own_devices(words, processes=not by_machine, several=machines > 1)
    for word in words:
        _describe(word, ways, machines > 1 or not by_machine)
    return [(which, [*([] if way is per_process else own), *way]) for which, way in ways]


def _own_devices(words: Sequence[Word], *, processes: bool, several: bool) -> list[str]:
    """trainer.devices, from a number or a list, or the one GPU."""
    found: list[str] = []
    for word in words:
        value = word.value.strip("[]() ")
        if word.role == "devices":
            if value in ("all", "-1", "auto", "gpu", ""):
                word.note = "so it is by default"
            elif value == "0":
                found = ["trainer.accelerator=cpu"]
            else:
                is_list = "," in value or "[" in word.value
                found = [
                    f"trainer.devices=[{value.replace(' ', '').strip(',')}]" if is_list else f"trainer.devices={value}"
                ]
            word.note = word.note if not found else found[0]
        elif word.role == "gpu" and not processes and not several:
            found = [f"trainer.devices=[{value}]"]
            word.note = found[0]
        elif word.role == "gpu":
            word.note = f"cluster.local_rank={value}" if processes else "each process takes its own"
    return found


def _describe(word: Word, ways: Sequence[tuple[str, list[str]]], several: bool) -> None:
    """The notes of words on machines and processes, and of the backend."""
    keys = {
        "num_nodes": ("trainer.num_nodes",),
        "node_rank": ("cluster.node_rank",),
        "local_rank": ("cluster.local_rank",),
        "world_size": ("trainer.num_nodes", "cluster.world_size"),
        "rank": ("cluster.node_rank", "cluster.rank"),
        "address": ("cluster.address",),
        "master_addr": ("cluster.address",),
        "master_port": ("cluster.address",),
    }
    if word.role in keys:
        meant = [
            option for _, way in ways for option in way if option.partition("=")[0] in keys[word.role] and "=" in option
        ]
        word.note = " or ".join(dict.fromkeys(meant)) or "not needed on one machine"
        if word.role in ("world_size", "rank") and len(ways) > 1:
            word.note += ": machines in some programs, processes in others"
        if word.value.startswith("env"):
            word.note = "MASTER_ADDR, RANK and the like are read by themselves"
    elif word.role == "backend":
        default = word.value == "nccl"
        word.options = [] if default or not word.value else [f"strategy.process_group_backend={word.value}"]
        word.note = "the default on GPUs" if default else ""


def _local_rank(
    said: Mapping[str, str], rank: int | None, size: int | None, nodes: int | None, devices: int | None
) -> str:
    for role in ("local_rank", "gpu"):
        if said.get(role):
            return said[role]
    if devices is None and nodes and size and size % nodes == 0:
        devices = size // nodes
    return "LOCAL_RANK" if rank is None or devices is None else str(rank % devices)


def _address(said: Mapping[str, str]) -> str | None:
    url = said.get("address", "")
    if url and not url.startswith("env"):
        return url
    if host := said.get("master_addr"):
        return f"tcp://{host}:{said.get('master_port', _PORT)}"
    return None


def _is_here(address: str | None) -> bool:
    """None, or this machine's own loopback; a file says nothing of other machines."""
    return address is None or bool(re.match(r"file:|(tcp://)?(127\.|localhost|\[::1\])", address))


def _devices(text: str) -> int | None:
    value = text.strip("[]() ,'\"")
    if "," in value or text.startswith("["):
        return len(value.split(","))
    return _number(value)


def _number(text: str | None) -> int | None:
    """None also for -1, by which programs say that nothing was set."""
    return int(text) if text is not None and text.isdecimal() else None


# ---- writing -------------------------------------------------------------------------------------------------------


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
