"""Map the options of other programs, keys of earlier versions and mistyped keys to the keys of this one.

The table of other programs is known_terms.txt, from which hints and docs/coming-from.md are made. Does not import
torch.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any


@dataclass(frozen=True, eq=False)
class Term:
    """One line of known_terms.txt, whose first lines explain the format. values: value in the other program -> options
    to type here."""

    names: tuple[str, ...]
    here: str
    note: str
    values: dict[str, str]


def _read() -> list[Term]:
    terms: list[Term] = []
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            there, _, here = line.partition(" :")
            terms[-1].values.update(dict.fromkeys(there.split(), here.strip()))
        elif not line.startswith("#"):
            names, here, note = ([cell.strip() for cell in line.split("|")] + [""])[:3]
            terms.append(Term(tuple(names.split()), here, note, {}))
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
# Groups, keys and choices of earlier versions, or of Lightning -> what to do instead.
REMOVED = {
    "against": "leave it out; scripts/ablation.py of the repository compares with its first recipe",
    "benchmark.model": "run benchmark=train, which measures the loader and the step",
    "benchmark=start": "run scripts/benchmarks/start.py of the repository",
    "benchmark=strategies": "leave it out, and compare the images/s of training with each strategy",
    "by=fold": "run `python -m imagenet_ddp.report RUN` for the run of each fold",
    "by=recipe": "run scripts/ablation.py of the repository",
    "callbacks.checkpoint.every_s": "set +callbacks.checkpoint.every_n_steps=1000",
    "callbacks.nonfinite_loss.on_nan": "leave it out, and set trainer.gradient_clip_val=1 or a lower optim.lr",
    "cluster.max_restarts": "leave it out, and use torchrun's --max-restarts and --rdzv-id (docs/runs.md)",
    "compile=auto": "set compile=default; `python -m imagenet_ddp.benchmark benchmark=step` shows whether it pays",
    "compile.regions": "leave it out: the net is compiled as a whole",
    "explain": "leave it out, and run `python -m imagenet_ddp.demo` or report, which show where a class was found",
    "format": "leave it out: doctor's report is text, and its exit code is 1 if a check failed",
    "logger=comet": "run `pip install comet-ml`, and set +logger.comet._target_=lightning.pytorch.loggers.CometLogger",
    "logger=neptune": "set logger=none, because Neptune's service has ended",
    "int8": "quantise model.onnx with onnxruntime.quantization.quantize_static",
    "loader": "leave it out: images are decoded by data.num_workers processes with data.decoder",
    "prepare.memory_mib": "leave it out: an image of more than 178,956,970 pixels is refused in any case",
    "show": "leave it out: train_batch.png in the run folder is the first batch of each run",
    "strategy=fsdp": "set strategy=ddp, which keeps the whole net on each device",
    "strategy.powersgd_rank": "set strategy.comm_hook=bf16, which halves the bytes that are sent",
    "strategy.powersgd_start_step": "set strategy.comm_hook=bf16, which halves the bytes that are sent",
    "strategy.local_sgd_start_step": "set trainer.accumulate_grad_batches, which sends gradients less often",
    "strategy.local_sgd_every": "set trainer.accumulate_grad_batches, which sends gradients less often",
    "tune.launcher": "leave it out: trials run on the machine on which tune is started",
    "tune.resume": "leave it out, and type the study's command again with its folder as hydra.run.dir",
    "watch": "run `tail -f RUN/logs/rank0.log`",
}


def term_of(name: str) -> Term | None:
    """Return what is known of an option of another program, such as --batch-size."""
    return BY_NAME.get(plain(name))


def _letters(key: str) -> str:
    return re.sub(r"[\W_]", "", key.lower())


def closest(key: str, keys: Iterable[str]) -> list[str]:
    """Return the known keys closest to a mistyped one, best first; empty if none is close."""
    group, last = key.lower().partition(".")[0], key.lower().rpartition(".")[2]
    keys = sorted(keys, key=lambda known: known.partition(".")[0] != group)  # those of the same group first
    if same := [known for known in keys if _letters(known) == _letters(key)]:  # dataroot, data-root
        return same[:1]
    if same := [known for known in keys if known.rpartition(".")[2] == last]:
        return same[:2]
    term = BY_NAME.get(last)
    meant = term.here.split()[-1].partition("=")[0] if term and term.here else NEAR.get(last)
    if meant in keys:
        return [meant]
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
