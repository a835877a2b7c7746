"""Lightning's Trainer keys: what each may be, and which of them this project fills itself. Imports no lightning.

The first half is the vocabulary in which every check says what a value may be (`Kind`); the second the two tables.
A test holds the tables against `inspect.signature(lightning.pytorch.Trainer)` and against conf/trainer/default.yaml.
"""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.config.validators import (
    AUTO,
    FLAG,
    NULL,
    Kind,
    choice,
    expect,
    kind,
    matching,
    number,
    several,
    shown,
    whole,
)

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
    "strategy": "the strategy has keys of its own. Hint: strategy={value}.",
    "callbacks": "callbacks are named entries of their own. Hint: callbacks=early_stopping, or "
    "+callbacks.mine._target_=lightning.pytorch.callbacks.CLASS.",
    "logger": "loggers are named entries of their own, beside metrics.csv. "
    "Hint: logger=csv, or +logger.mine._target_=lightning.pytorch.loggers.CSVLogger.",
    "plugins": "this project hands the cluster and the saving to the Trainer. "
    "Hint: leave it out; cluster.*, trainer.precision and callbacks.checkpoint.* are the keys for it.",
    "use_distributed_sampler": "the samplers here already give each image to one rank only. Hint: leave it out.",
    "barebones": "it would switch off metrics and checkpoints. Hint: leave it out; trainer.limit_train_batches=100 "
    "makes a short run.",
    "enable_progress_bar": "a terminal gets a progress bar, a file or pipe gets lines. "
    "Hint: leave it out; trainer.log_every_n_steps=10 sets how often, and "
    "+callbacks.bar._target_=lightning.pytorch.callbacks.TQDMProgressBar brings Lightning's bar.",
    "enable_checkpointing": "callbacks.checkpoint writes best.ckpt and last.ckpt. "
    "Hint: callbacks.checkpoint.every_n_epochs=10 for fewer, callbacks.checkpoint=null for none.",
    "default_root_dir": "a run lives in one folder, which Hydra names. Hint: hydra.run.dir={value}.",
    "enable_autolog_hparams": "config.yaml in the run folder holds every key. Hint: leave it out.",
    "model_registry": "checkpoints are files in the run folder. Hint: leave it out.",
}


def refusal(key: str, value: Any) -> str:
    """The sentence for a key of REFUSED."""
    text = shown(value)
    if key == "strategy":  # Lightning's names -> those of conf/strategy
        ours = {"dp": "dp", "balanced_dp": "balanced_dp", "auto": "auto", "single_device": "auto"}
        text = ours.get(text, "ddp")
    return f"trainer.{key} is filled by this project: " + REFUSED[key].format(value=text)


def validate(trainer: Mapping[str, Any]) -> list[str]:
    """One sentence for each key that is refused, missing or of another kind. Unknown keys are cli/parse.py's."""
    found = [refusal(key, trainer[key]) for key in REFUSED if key in trainer]
    if missing := [key for key in ACCEPTED if key not in trainer]:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        few = f"leave {' and '.join(f'~trainer.{key}' for key in missing)} out"
        hint = few if len(missing) <= 3 else "trainer=default"
        found.append(f"trainer lacks {len(missing)} of its keys ({some}). Hint: {hint}.")
    for key, (allowed, example) in ACCEPTED.items():
        if key in trainer:
            found += expect(f"trainer.{key}", trainer[key], allowed, f"trainer.{key}={example}")
    return found
