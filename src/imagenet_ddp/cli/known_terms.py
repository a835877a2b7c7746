"""Map the options of other programs, keys of earlier versions and mistyped keys to the keys of this one.

The table of other programs is known_terms.txt, from which hints and docs/coming-from.md are made. Does not import
torch.
"""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from imagenet_ddp.cli import hydra_flags
from imagenet_ddp.distributed.network import nccl


@dataclass(frozen=True, eq=False)
class Term:
    """One line of known_terms.txt, whose first lines explain the format. flag: the option accepts no value. several: it
    accepts more than one value (nargs="+"). values: value in the other program -> options to type here."""

    names: tuple[str, ...]
    here: str
    note: str
    flag: bool
    several: bool
    values: Mapping[str, str]


def _read() -> list[Term]:
    terms: list[Term] = []
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            there, _, here = line.partition(" :")
            terms[-1].values.update(dict.fromkeys(there.split(), here.strip()))  # type: ignore[attr-defined]
        elif not line.startswith("#"):
            names, here, note = ([cell.strip() for cell in line.split("|")] + [""])[:3]
            flag, several = names.startswith("!"), names.startswith("*")
            terms.append(Term(tuple(names.lstrip("!* ").split()), here, note, flag, several, {}))
    return terms


def plain(name: str) -> str:
    """Return a name without leading dashes and with underscores: dist_url for --dist-url. A short option such as -b
    keeps its dash, because -b and a key named b differ."""
    bare = name.lstrip("-")
    return name if name.startswith("-") and not name.startswith("--") else bare.replace("-", "_")


TERMS = _read()
BY_NAME = {plain(name): term for term in TERMS for name in term.names}
# Likely mix-ups that do not come from another program: typed name -> the key that may be meant.
NEAR = {"checkpoint": "resume", "resume": "checkpoint", "dir": "data.root", "path": "data.root",
        "exif": "data.exif_orientation"}  # fmt: skip
# Groups, keys and choices of earlier versions -> what to do instead.
REMOVED = {
    "against": "run `python scripts/recipe_table.py DIR against=RECIPE`",
    "benchmark.model": "run benchmark=train, which measures the loader and the step",
    "benchmark=start": "run scripts/benchmarks/start.py of the repository",
    "benchmark=strategies": "run scripts/benchmarks/strategies.py of the repository",
    "by=fold": "run `python -m imagenet_ddp.report RUN` for the run of each fold",
    "by=recipe": "run `python scripts/recipe_table.py DIR`",
    "callbacks.nonfinite_loss.on_nan": "leave it out, and set trainer.gradient_clip_val=1 or a lower optim.lr",
    "cluster.max_restarts": "leave it out, and use torchrun's --max-restarts and --rdzv-id (docs/runs.md)",
    "compile=auto": "set compile=default; `python -m imagenet_ddp.benchmark benchmark=step` shows whether it pays",
    "compile.regions": "leave it out: the net is compiled as a whole",
    "format": "leave it out: doctor's report is text, and its exit code is 1 if a check failed",
    "logger=comet": "run `pip install comet-ml`, and set +logger.comet._target_=lightning.pytorch.loggers.CometLogger",
    "logger=neptune": "set logger=none, because Neptune's service has ended",
    "int8": "quantise model.onnx with onnxruntime.quantization.quantize_static",
    "loader": "leave it out: images are decoded by data.num_workers processes with data.decoder",
    "prepare.memory_mib": "leave it out: an image of more than 178,956,970 pixels is refused in any case",
    "strategy.powersgd_rank": "set strategy.comm_hook=bf16, which halves the bytes that are sent",
    "strategy.powersgd_start_step": "set strategy.comm_hook=bf16, which halves the bytes that are sent",
    "strategy.local_sgd_start_step": "set trainer.accumulate_grad_batches, which sends gradients less often",
    "strategy.local_sgd_every": "set trainer.accumulate_grad_batches, which sends gradients less often",
    "tune.launcher": "leave it out: trials run on the machine on which tune is started",
    "tune.resume": "leave it out, and type the study's command again with its folder as hydra.run.dir",
    "watch": "run `tail -f RUN/logs/rank0.log`",
}
_NUMBER, _PAIR = re.compile(r"-?\d*\.?\d+(e-?\d+)?"), re.compile(r"\w+=\S+")


def find(name: str) -> Term | None:
    """Return the term of an option (-b, --batch-size) or of its name typed as a key (batch_size); None if unknown."""
    return BY_NAME.get(plain(name)) or BY_NAME.get(plain(name).lower())


def key_for(name: str) -> str | None:
    """Return the key that corresponds to a name, or None."""
    term = find(name)
    return NEAR.get(name) if term is None or not term.here else term.here.strip("'").split()[-1].partition("=")[0]


def split_options(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return (argv without the options of other programs, a message for each of them)."""
    rest, kept, found = list(argv), [], []
    while rest:
        token = rest.pop(0)
        name, equals, value = token.partition("=")
        if equals and re.fullmatch(r"[A-Z][A-Z0-9_]+", name):
            key = f", or set nccl.env.{token}" if name.startswith(nccl.PREFIXES) else ""
            found.append(f"{name} is an environment variable. Hint: type {token} before the command{key}.")
            continue
        if not token.startswith("-") or len(token) == 1 or _is_of_hydra(name, rest):
            kept.append(token)
            continue
        term = find(name)
        if not equals:
            values = _values(term, rest)
            del rest[: len(values)]
            value, token = " ".join(values), " ".join([token, *values])
        found.append(_message(token, term, value))
    return kept, found


def _is_of_hydra(name: str, rest: list[str]) -> bool:
    if name == "-p" and rest and rest[0].isdecimal():
        return False  # pytorch/examples' --print-freq; Hydra's -p is followed by a name
    return name in hydra_flags.NAMES


def _values(term: Term | None, rest: list[str]) -> list[str]:
    """Return the leading words of the rest of a line that are the values of an option."""
    if term is not None and term.several:
        pattern = _PAIR if "args.{}" in term.here else _NUMBER
        return rest[: next((number for number, word in enumerate(rest) if not pattern.fullmatch(word)), len(rest))]
    takes = term is not None and not term.flag and rest and "=" not in rest[0] and not re.match(r"-(?!\d)", rest[0])
    return rest[:1] if takes else []


def _message(typed: str, term: Term | None, value: str) -> str:
    """Return the message about one option of another program. typed: with its value."""
    if term is None:
        return f"{typed} is not an option. Hint: options are typed as KEY=VALUE; `--help` shows examples."
    is_off = term.flag and value.lower() in ("false", "0", "no")
    options = term.values.get("false", "") if is_off else _options(term, value)
    note = "" if is_off else term.note.replace("{}", value or "VALUE")
    if options:
        return f"{typed} is an option of another program. Hint: type {options}{f' ({note})' if note else ''}."
    return f"{typed} is an option of another program. Hint: leave it out{f': {note}' if note else ''}."


def _options(term: Term, value: str) -> str:
    """Return the options to type here, in a shell. value: one value, or several separated by spaces."""
    here = term.values.get(value.lower(), term.here)
    values = [value or "VALUE"]
    if term.several:
        values = value.strip("[]()").replace(",", " ").split()
        values = [",".join(values)] if "[{}]" in here else values
    elif "," in value and "[" not in value + here:
        values = [f"[{value}]"]
    return shlex.join(dict.fromkeys(word.replace("{}", each) for each in values for word in here.split()))


def closest(key: str, keys: Iterable[str]) -> list[str]:
    """Return the known keys closest to a mistyped one, best first; empty if none is close."""
    key = key.lower()
    last = key.rpartition(".")[2]
    keys = list(keys)
    if same := [known for known in keys if known.rpartition(".")[2] == last]:
        return sorted(same, key=lambda known: known.partition(".")[0] != key.partition(".")[0])[:2]
    if (known := key_for(last)) in keys:
        return [known]
    if near := get_close_matches(key, [known for known in keys if "." in known], 1, 0.75):
        return near
    ends = {known.rpartition(".")[2]: known for known in reversed(keys)}
    return [ends[end] for end in get_close_matches(last, ends, 1, 0.7)]


def removed(option: str) -> str | None:
    """Return what replaces a key, group or choice (GROUP=NAME) of an earlier version; None if it never existed."""
    group = option.partition(".")[0]
    return REMOVED.get(option) or REMOVED.get(group if "=" not in option else "")


def without_removed(stored: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    """Return a config that an earlier version stored, without the keys that no longer exist. path: that of its group,
    with a dot at the end."""
    return {
        key: without_removed(value, f"{path}{key}.") if isinstance(value, Mapping) else value
        for key, value in stored.items()
        if not removed(f"{path}{key}")
    }


def unknown(key: str, keys: Iterable[str], where: str = "") -> str:
    """Return the message for a key that is not declared. where: text to add after the key, such as " (in x.yaml)"."""
    if instead := removed(key):
        return f"{key} was removed{where}. Hint: {instead}."
    close = [known for known in closest(key, keys) if known != key]
    hint = f"did you mean {' or '.join(close)}?" if close else "`--cfg job` lists all keys."
    if key.startswith("strategy."):
        arguments = "docs/strategies.md lists DistributedDataParallel's arguments."
        hint = f"{hint} {arguments}" if close else arguments
    return f"{key} is not a known key{where}. Hint: {hint}"
