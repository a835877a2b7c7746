"""Lightning's Trainer keys: what each may be, and which of them this project fills itself. Imports no lightning.

The first half is the vocabulary in which every check says what a value may be (`Kind`); the second the two tables.
A test holds the tables against `inspect.signature(lightning.pytorch.Trainer)` and against conf/trainer/default.yaml.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """What a value may be. forms: in words; each completes "is expected to be ...", and one of them is enough."""

    forms: tuple[str, ...]
    accepts: Callable[[Any], bool]

    def __or__(self, other: "Kind") -> "Kind":
        forms = tuple(dict.fromkeys(self.forms + other.forms))
        return Kind(forms, lambda value: self.accepts(value) or other.accepts(value))

    @property
    def words(self) -> str:
        *first, last = self.forms
        return f"{', '.join(first)} or {last}" if first else last


def kind(words: str, accepts: Callable[[Any], bool]) -> Kind:
    return Kind((words,), accepts)


def shown(value: Any) -> str:
    """A value as a person types it: null, true, [0,3], text without quotes."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{shown(item)}" for key, item in value.items()) + "}"
    if not isinstance(value, str) and hasattr(value, "__iter__"):
        return "[" + ",".join(map(shown, value)) + "]"
    return str(value) if value != "" else "empty"


def whole(least: int | None = None, most: int | None = None) -> Kind:
    """An int, ends included; true and false are none."""

    def accepts(value: Any) -> bool:
        fits = isinstance(value, int) and not isinstance(value, bool)
        return fits and (least is None or value >= least) and (most is None or value <= most)

    span = f" from {least} to {most}" if most is not None else f" of {least} or more" if least is not None else ""
    return kind(f"a whole number{span}", accepts)


def number(least: float = -math.inf, most: float = math.inf, above: float = -math.inf, below: float = math.inf) -> Kind:
    """A finite int or float; least and most are included, above and below are not."""

    def accepts(value: Any) -> bool:
        fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return fits and least <= value <= most and above < value < below

    ends = [f"{sign} {end:g}" for sign, end in zip(("≥", ">", "≤", "<"), (least, above, most, below), strict=True)]
    bounds = " and ".join(text for text in ends if "inf" not in text)
    return kind(f"a number {bounds}" if bounds else "a number", accepts)


def choice(*options: Any) -> Kind:
    """One of the options; compared with their type, so that true is not 1."""

    def accepts(value: Any) -> bool:
        return any(value == option and type(value) is type(option) for option in options)

    return Kind(tuple(map(shown, options)), accepts)


def matching(pattern: str, words: str) -> Kind:
    """Text that the regular expression matches as a whole."""
    return kind(words, lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None)


def several(member: Kind, words: str, length: int | None = None) -> Kind:
    """A list whose members are of this kind, of this length where one is given, else not empty."""

    def accepts(value: Any) -> bool:
        fits = not isinstance(value, str | Mapping) and hasattr(value, "__len__")
        return fits and (len(value) == length if length else len(value) > 0) and all(map(member.accepts, value))

    return kind(words, accepts)


FLAG = choice(True, False)
NULL = kind("null", lambda value: value is None)
AUTO = choice("auto")


def expect(key: str, value: Any, allowed: Kind, hint: str) -> list[str]:
    """No sentence where the value is of the kind, else one. hint: what to set, such as "data.batch_size=32"."""
    if allowed.accepts(value):
        return []
    return [f"{key} is expected to be {allowed.words}, but is {shown(value)}. HINT: set {hint}."]


def expect_all(group: str, values: Mapping[str, Any], kinds: Mapping[str, tuple[Kind, str]]) -> list[str]:
    """One sentence for each key of a group that is not of its kind. kinds: key -> what it may be, an example."""
    return [
        text
        for key, (allowed, example) in kinds.items()
        for text in expect(f"{group}.{key}", values[key], allowed, f"{group}.{key}={example}")
    ]


_UNITS = {"days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks"}  # of datetime.timedelta
_TIME = matching(r"\d+:\d\d:\d\d:\d\d", "a time such as 00:12:00:00 (days:hours:minutes:seconds)") | kind(
    "{hours:12}", lambda value: isinstance(value, Mapping) and bool(value) and set(value) <= _UNITS
)
_SHARE = kind("a share from 0.0 to 1.0", lambda value: isinstance(value, float) and 0.0 <= value <= 1.0)
_BATCHES = kind("a number of batches (0 or more)", whole(0).accepts) | _SHARE
_GPUS = kind(
    "a list of GPU numbers such as [0,3]",
    lambda value: several(whole(0), "").accepts(value) and len(set(value)) == len(value),
)

# Key -> what it may be, and an example for the hint. The words are Lightning's, its documentation holds;
# auto for num_nodes and precision is this project's own.
ACCEPTED: dict[str, tuple[Kind, str]] = {
    "accelerator": (choice("auto", "cpu", "gpu", "cuda", "mps"), "auto"),
    "devices": (
        AUTO
        | whole(1)
        | kind("-1 (all GPUs)", choice(-1).accepts)
        | _GPUS
        | matching(r"-1|[1-9]\d*|\d+(,\d+)*,?", 'text such as "0,3"'),
        "auto, trainer.devices=2 for two processes, or 'trainer.devices=[0,3]' for GPUs 0 and 3",
    ),
    "num_nodes": (AUTO | whole(1), "auto"),
    "precision": (
        choice("auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true")
        | choice("transformer-engine", "transformer-engine-float16")
        | choice("64", "32", "16", "bf16", 64, 32, 16),
        "auto",
    ),
    "fast_dev_run": (FLAG | whole(0), "false"),
    "max_epochs": (whole(-1) | NULL, "90 (-1: no end)"),
    "min_epochs": (whole(0) | NULL, "null"),
    "max_steps": (whole(-1), "-1 (no end)"),
    "min_steps": (whole(0) | NULL, "null"),
    "max_time": (_TIME | NULL, "null"),
    "limit_train_batches": (_BATCHES | NULL, "10 (batches), trainer.limit_train_batches=0.1 (a tenth) or null (all)"),
    "limit_val_batches": (_BATCHES | NULL, "10 (batches), trainer.limit_val_batches=0.1 (a tenth) or null (all)"),
    "limit_test_batches": (_BATCHES | NULL, "null"),
    "limit_predict_batches": (_BATCHES | NULL, "null"),
    "overfit_batches": (_BATCHES, "0.0"),
    "val_check_interval": (kind("a number of batches (1 or more)", whole(1).accepts) | _SHARE | _TIME | NULL, "null"),
    "check_val_every_n_epoch": (whole(1) | NULL, "1"),
    "num_sanity_val_steps": (whole(-1) | NULL, "0"),
    "log_every_n_steps": (whole(1), "10"),
    "accumulate_grad_batches": (whole(1), "1"),
    "gradient_clip_val": (number(least=0) | NULL, "null"),
    "gradient_clip_algorithm": (choice("norm", "value") | NULL, "norm"),
    "deterministic": (FLAG | choice("warn") | NULL, "true"),
    "benchmark": (FLAG | NULL, "null"),
    "inference_mode": (FLAG, "true"),
    "profiler": (choice("simple", "advanced", "pytorch") | NULL, "simple"),
    "detect_anomaly": (FLAG, "false"),
    "sync_batchnorm": (FLAG, "false"),
    "reload_dataloaders_every_n_epochs": (whole(0), "0"),
    "enable_model_summary": (FLAG | NULL, "false"),
}

# Key -> what to set instead. {value} is what was typed.
REFUSED: dict[str, str] = {
    "strategy": "the strategy has keys of its own. HINT: strategy={value}.",
    "callbacks": "callbacks are named entries of their own. HINT: callbacks=early_stopping, or "
    "+callbacks.mine._target_=lightning.pytorch.callbacks.CLASS.",
    "logger": "loggers are named entries of their own, beside metrics.csv, which is always written. "
    "HINT: logger=csv, or +logger.mine._target_=lightning.pytorch.loggers.CSVLogger.",
    "plugins": "this project hands the cluster and the saving to the Trainer. "
    "HINT: leave it out; cluster.*, trainer.precision and saving.* are the keys for it.",
    "use_distributed_sampler": "the samplers here already give each image to one rank only. HINT: leave it out.",
    "barebones": "it would switch off metrics and checkpoints. HINT: leave it out; trainer.limit_train_batches=100 "
    "makes a short run.",
    "enable_progress_bar": "a terminal gets a progress bar, a file or pipe gets lines. "
    "HINT: leave it out; trainer.log_every_n_steps=10 sets how often, and "
    "+callbacks.bar._target_=lightning.pytorch.callbacks.TQDMProgressBar brings Lightning's bar.",
    "enable_checkpointing": "best.ckpt and last.ckpt are always written. HINT: saving.every_n_epochs=10 for "
    "fewer; a ModelCheckpoint of your own, as callbacks.NAME, saves beside them.",
    "default_root_dir": "a run lives in one folder, which Hydra names. HINT: hydra.run.dir={value}.",
    "enable_autolog_hparams": "config.yaml in the run folder holds every key. HINT: leave it out.",
    "model_registry": "checkpoints are files in the run folder. HINT: leave it out.",
}


def refusal(key: str, value: Any) -> str:
    """The sentence for a key of REFUSED."""
    text = shown(value)
    if key == "strategy":  # Lightning's names -> those of conf/strategy
        ours = {"dp": "dp", "balanced_dp": "balanced_dp", "auto": "auto", "single_device": "auto"}
        text = ours.get(text, "ddp")
    return f"trainer.{key} is filled by this project: " + REFUSED[key].format(value=text)


def mistakes(trainer: Mapping[str, Any]) -> list[str]:
    """One sentence for each key that is refused, missing or of another kind. Unknown keys are check.py's."""
    found = [refusal(key, trainer[key]) for key in REFUSED if key in trainer]
    if missing := [key for key in ACCEPTED if key not in trainer]:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        few = f"leave {' and '.join(f'~trainer.{key}' for key in missing)} out"
        hint = few if len(missing) <= 3 else "trainer=default"
        found.append(f"trainer lacks {len(missing)} of its keys ({some}). HINT: {hint}.")
    for key, (allowed, example) in ACCEPTED.items():
        if key in trainer:
            found += expect(f"trainer.{key}", trainer[key], allowed, f"trainer.{key}={example}")
    return found
