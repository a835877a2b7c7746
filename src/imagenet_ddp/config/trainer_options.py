"""Declare the keys of Lightning's Trainer: their allowed values, and the keys that this project sets itself.

A test compares both tables with `inspect.signature(lightning.pytorch.Trainer)` and with conf/trainer/default.yaml,
which contains the defaults. Does not import lightning.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from imagenet_ddp.config.validators import (
    AUTO,
    FLAG,
    NULL,
    Kind,
    choice,
    integer,
    kind,
    list_of,
    matching,
    number,
    shown,
)

_UNITS = {"days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks"}  # of datetime.timedelta
_TIME = matching(r"\d+:\d\d:\d\d:\d\d", "a time such as 00:12:00:00 (days:hours:minutes:seconds)") | kind(
    "{hours:12}", lambda value: isinstance(value, Mapping) and bool(value) and set(value) <= _UNITS
)
_SHARE = kind("a share from 0.0 to 1.0", lambda value: isinstance(value, float) and 0.0 <= value <= 1.0)
_BATCHES = kind("a number of batches (0 or more)", integer(0).accepts) | _SHARE
_GPUS = kind(
    "a list of GPU numbers such as [0,3]",
    lambda value: list_of(integer(0), "").accepts(value) and len(set(value)) == len(value),
)


def _names_devices(value: Any) -> bool:
    """Accept a number of devices, or different GPU numbers with a comma: "0" could mean no device or GPU 0."""
    if not isinstance(value, str) or not re.fullmatch(r"-1|[1-9][0-9]*|[0-9]+(,[0-9]+)+|[0-9]+,", value):
        return False
    numbers = value.strip(",").split(",")
    return len({int(number) for number in numbers}) == len(numbers)


class TrainerKey(NamedTuple):
    allowed: Kind
    example: str  # for hints
    meaning: str


# num_nodes=auto, precision=auto and batch_finder are this project's own; all else is Lightning's.
ACCEPTED: dict[str, TrainerKey] = {
    "accelerator": TrainerKey(choice("auto", "cpu", "gpu", "cuda", "mps"), "auto", "Kind of device."),
    "devices": TrainerKey(
        (
            AUTO
            | integer(1)
            | kind("-1 (all GPUs)", choice(-1).accepts)
            | _GPUS
            | kind('text such as "0,3"', _names_devices)
        ),
        "1 for one device, 'trainer.devices=[0]' for GPU 0, or auto",
        "GPUs (or CPU processes) of each node: a number, or a list of GPUs.",
    ),
    "num_nodes": TrainerKey(
        AUTO | integer(1),
        "auto (torchrun starts nodes that come and go: docs/launching.md)",
        "Number of machines.",
    ),
    "precision": TrainerKey(
        (
            choice("auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true")
            | choice("transformer-engine", "transformer-engine-float16")
            | choice("64", "32", "16", "bf16", 64, 32, 16)
        ),
        "auto",
        "auto: bf16-mixed if the device computes this net fast in it, 16-mixed on V100, T4 and RTX 20, else 32-true.",
    ),
    "fast_dev_run": TrainerKey(FLAG | integer(0), "false", "Run one batch, or this number of batches, and stop."),
    "max_epochs": TrainerKey(integer(-1) | NULL, "90 (-1: no limit)", "Number of epochs; -1: no limit."),
    "min_epochs": TrainerKey(integer(0) | NULL, "null", "Minimum number of epochs."),
    "max_steps": TrainerKey(integer(-1), "-1 (no limit)", "Optimizer steps after which training ends; -1: no limit."),
    "min_steps": TrainerKey(integer(0) | NULL, "null", "Minimum number of optimizer steps."),
    "max_time": TrainerKey(_TIME | NULL, "null", "Time after which training ends."),
    "limit_train_batches": TrainerKey(
        _BATCHES | NULL,
        "10 (batches), trainer.limit_train_batches=0.1 (a tenth) or null (all)",
        "Training batches per epoch: a number or a share; null: all.",
    ),
    "limit_val_batches": TrainerKey(
        _BATCHES | NULL,
        "10 (batches), trainer.limit_val_batches=0.1 (a tenth) or null (all)",
        "Validation batches: a number or a share; null: all.",
    ),
    "overfit_batches": TrainerKey(_BATCHES, "0.0", "Train and validate on only this number or share of batches."),
    "val_check_interval": TrainerKey(
        kind("a number of batches (1 or more)", integer(1).accepts) | _SHARE | _TIME | NULL,
        "null",
        "Training batches, share of an epoch, or time between validations.",
    ),
    "check_val_every_n_epoch": TrainerKey(integer(1) | NULL, "1", "Epochs between validations."),
    "num_sanity_val_steps": TrainerKey(
        integer(-1) | NULL,
        "0",
        "Number of validation batches to run before training. -1: all; their scores then count as those of epoch 0.",
    ),
    "log_every_n_steps": TrainerKey(integer(1), "10", "Training steps between two lines of metrics."),
    "accumulate_grad_batches": TrainerKey(integer(1), "1", "Batches per optimizer step."),
    "gradient_clip_val": TrainerKey(
        number(least=0) | NULL, "null", "Value above which gradients are clipped; null: no clipping."
    ),
    "gradient_clip_algorithm": TrainerKey(
        choice("norm", "value") | NULL, "norm", "Clip the gradient by norm or by value."
    ),
    "deterministic": TrainerKey(FLAG | choice("warn") | NULL, "true", "Use deterministic kernels, which are slower."),
    "benchmark": TrainerKey(
        FLAG | NULL,
        "null",
        "Let cuDNN measure which convolution is fastest; null: on GPUs, unless deterministic is set.",
    ),
    "inference_mode": TrainerKey(FLAG, "true", "Validate in torch.inference_mode; false: in torch.no_grad."),
    "profiler": TrainerKey(choice("simple", "advanced", "pytorch") | NULL, "simple", "Lightning's profiler."),
    "detect_anomaly": TrainerKey(FLAG, "false", "Stop at the operation whose gradient becomes NaN; slow."),
    "sync_batchnorm": TrainerKey(FLAG, "false", "Compute batch-norm statistics over all devices."),
    "reload_dataloaders_every_n_epochs": TrainerKey(integer(0), "0", "Epochs between two calls of train_dataloader."),
    "enable_model_summary": TrainerKey(FLAG | NULL, "false", "Print the layers of the model."),
    "batch_finder": TrainerKey(
        FLAG,
        "false",
        "Before training, find the largest data.batch_size that fits on all GPUs; not Lightning's option.",
    ),
}

# Key -> the hint, in which {value} stands for the typed value.
REFUSED: dict[str, str] = {
    "strategy": "set strategy={value}",
    "callbacks": "set callbacks=early_stopping, or add +callbacks.mine._target_=lightning.pytorch.callbacks.CLASS",
    "logger": "set logger=csv, or add +logger.mine._target_=lightning.pytorch.loggers.CSVLogger",
    "default_root_dir": "set hydra.run.dir={value}",
    "limit_test_batches": "set trainer.limit_val_batches={value}",
    "limit_predict_batches": "leave this key out",
    **dict.fromkeys(
        ("plugins", "use_distributed_sampler", "barebones", "enable_progress_bar", "enable_checkpointing",
         "enable_autolog_hparams", "model_registry"),
        "leave this key out",
    ),
}  # fmt: skip


def refusal(key: str, value: Any) -> str:
    """Return the message for a key of REFUSED. value: as typed."""
    text = shown(value)
    if key == "strategy":  # Lightning's names -> those of conf/strategy
        ours = {"dp": "dp", "balanced_dp": "balanced_dp", "auto": "auto", "single_device": "auto"}
        text = ours.get(text, "ddp")
    reason = "is set by this project"
    if key in ("limit_test_batches", "limit_predict_batches"):
        reason = "has no effect, because this project calls neither Trainer.test nor Trainer.predict"
    return f"trainer.{key} {reason}. Hint: {REFUSED[key].format(value=text)}."


def validate(trainer: Mapping[str, Any]) -> list[str]:
    """Return a message for each refused key, and one for all missing keys. cli/validate.py reports unknown keys, and
    keys.validate_group reports values that are not allowed."""
    found = [refusal(key, trainer[key]) for key in REFUSED if key in trainer]
    if missing := [key for key in ACCEPTED if key not in trainer]:
        some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
        few = f"leave {' and '.join(f'~trainer.{key}' for key in missing)} out"
        hint = few if len(missing) <= 3 else "set trainer=default"
        found.append(f"trainer lacks {len(missing)} of its keys ({some}). Hint: {hint}.")
    return found
