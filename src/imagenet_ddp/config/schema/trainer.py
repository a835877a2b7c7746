"""Declare the keys of Lightning's Trainer, and the keys that this project sets itself.

A test compares both with the signature of Lightning's Trainer, and the defaults with conf/trainer/default.yaml.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, cast

from imagenet_ddp.config.section import Section
from imagenet_ddp.config.validators import (
    AUTO,
    FLAG,
    NULL,
    Example,
    Kind,
    choice,
    integer,
    is_mapping,
    kind,
    list_of,
    matching,
    number,
    shown,
)
from imagenet_ddp.mistakes import Fix, Mistake, setting, without
from imagenet_ddp.system.text import seconds_in

_UNITS = {"days", "seconds", "microseconds", "milliseconds", "minutes", "hours", "weeks"}  # of datetime.timedelta


def _nearest_time(value: Any) -> str | None:
    """Return days:hours:minutes:seconds for 12h, or for hours:minutes:seconds, which YAML reads as a number of
    seconds."""
    is_number = isinstance(value, int) and not isinstance(value, bool)
    seconds = value if is_number else seconds_in(str(value))
    if seconds is None or seconds <= 0:
        return None
    days, rest = divmod(int(seconds), 86400)
    return f"{days:02}:{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


_TIME = replace(
    matching(r"\d+:\d\d:\d\d:\d\d", "a time such as 00:12:00:00 (days:hours:minutes:seconds)"), nearest=_nearest_time
) | kind("{hours:12}", lambda value: is_mapping(value) and bool(value) and set(value) <= _UNITS)


def _as_share(value: Any) -> str | None:
    """Return the share that a percentage means: 1.0, which is not 1 batch, for 100%."""
    found = re.fullmatch(r"(\d{1,2}(?:\.\d+)?|100) ?%", str(value), re.ASCII)
    return str(round(float(found[1]) / 100, 6)) if found else None


_SHARE = Kind(("a share from 0.0 to 1.0",), lambda value: isinstance(value, float) and 0.0 <= value <= 1.0, _as_share)
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


DEVICES = (
    AUTO | integer(1) | kind("-1 (all GPUs)", choice(-1).accepts) | _GPUS | kind('text such as "0,3"', _names_devices)
)


def num_devices(devices: Any) -> int | None:
    """Return the number of devices per node; None if trainer.devices does not determine the number."""
    if isinstance(devices, str) and devices not in ("auto", "-1"):
        return len(devices.strip(",").split(",")) if "," in devices else int(devices) if devices.isdecimal() else None
    if isinstance(devices, int) and not isinstance(devices, bool):
        return devices if devices >= 1 else None
    return (
        len(cast("Sequence[Any]", devices)) if isinstance(devices, Sequence) and not isinstance(devices, str) else None
    )


# torch's and other programs' names of a precision
_OF_OTHERS: dict[str, str] = {
    **dict.fromkeys(("fp16", "float16", "half", "amp", "mixed"), "16-mixed"),
    **dict.fromkeys(("bfloat16", "bf16_mixed", "bfloat16-mixed"), "bf16-mixed"),
    **dict.fromkeys(("fp32", "float32", "float", "single"), "32-true"),
    **dict.fromkeys(("fp64", "float64", "double"), "64-true"),
}


# num_nodes=auto, precision=auto and batch_finder are this project's own; all else is Lightning's.
class TrainerConfig(Section):
    accelerator: Annotated[str, choice("auto", "cpu", "gpu", "cuda", "mps"), "Kind of device."] = "auto"
    devices: Annotated[
        Any,
        DEVICES,
        Example("1 for one device, 'trainer.devices=[0]' for GPU 0, or auto"),
        "GPUs (or CPU processes) of each node, or a list of GPUs.",
    ] = "auto"
    num_nodes: Annotated[
        Any,
        AUTO | integer(1),
        Example("auto (torchrun starts nodes that come and go: docs/launching.md)"),
        "Number of machines.",
    ] = "auto"
    precision: Annotated[
        Any,
        choice("auto", "32-true", "bf16-mixed", "16-mixed", "bf16-true", "16-true", "64-true", meant=_OF_OTHERS)
        | choice("transformer-engine", "transformer-engine-float16")
        | choice("64", "32", "16", "bf16", 64, 32, 16),
        "auto: bf16-mixed if the device computes this net fast in it, 16-mixed on V100, T4 and RTX 20, else 32-true.",
    ] = "auto"
    fast_dev_run: Annotated[Any, FLAG | integer(0), "Run one batch, or this number, and stop."] = False
    max_epochs: Annotated[int | None, integer(-1), "Number of epochs; -1: no limit."] = 90
    min_epochs: Annotated[int | None, integer(0), "Minimum number of epochs."] = None
    max_steps: Annotated[int, integer(-1), "Optimizer steps after which training ends; -1: no limit."] = -1
    min_steps: Annotated[int | None, integer(0), "Minimum number of optimizer steps."] = None
    max_time: Annotated[Any, _TIME | NULL, Example("00:12:00:00"), "Time after which training ends."] = None
    limit_train_batches: Annotated[
        Any,
        _BATCHES | NULL,
        Example("10 (batches), trainer.limit_train_batches=0.1 (a tenth) or null (all)"),
        "Training batches per epoch; null: all.",
    ] = None
    limit_val_batches: Annotated[
        Any,
        _BATCHES | NULL,
        Example("10 (batches), trainer.limit_val_batches=0.1 (a tenth) or null (all)"),
        "Validation batches; null: all.",
    ] = None
    overfit_batches: Annotated[Any, _BATCHES, "Train and validate on only these batches."] = 0.0
    val_check_interval: Annotated[
        Any,
        kind("a number of batches (1 or more)", integer(1).accepts) | _SHARE | _TIME | NULL,
        "Training batches, share of an epoch, or time between validations.",
    ] = None
    check_val_every_n_epoch: Annotated[int | None, integer(1), "Epochs between validations."] = 1
    num_sanity_val_steps: Annotated[
        int | None, integer(-1), "Validation batches before training; -1: all, whose scores are those of epoch 0."
    ] = 0
    log_every_n_steps: Annotated[int, integer(1), "Training steps between two lines of metrics."] = 10
    accumulate_grad_batches: Annotated[int, integer(1), "Batches per optimizer step."] = 1
    gradient_clip_val: Annotated[float | None, number(0), "Value above which gradients are clipped."] = None
    gradient_clip_algorithm: Annotated[
        str | None, choice("norm", "value"), Example("norm"), "Clip by norm or by value."
    ] = None
    deterministic: Annotated[Any, FLAG | choice("warn") | NULL, "Use deterministic kernels, which are slower."] = None
    benchmark: Annotated[bool | None, "Let cuDNN measure convolutions; null: on GPUs, unless deterministic."] = None
    inference_mode: Annotated[bool, "Validate in torch.inference_mode; false: in torch.no_grad."] = True
    profiler: Annotated[str | None, choice("simple", "advanced", "pytorch"), "Lightning's profiler."] = None
    detect_anomaly: Annotated[bool, "Stop at the operation whose gradient becomes NaN; slow."] = False
    sync_batchnorm: Annotated[bool, "Compute batch-norm statistics over all devices."] = False
    reload_dataloaders_every_n_epochs: Annotated[int, integer(0), "Epochs between two calls of train_dataloader."] = 0
    enable_model_summary: Annotated[bool | None, "Print the layers of the model."] = False
    batch_finder: Annotated[bool, "First find the largest data.batch_size that fits."] = False


# Key -> how to correct it; {value} stands for the typed value.
REFUSED: dict[str, tuple[Fix, ...]] = {
    "strategy": (setting("strategy={value}"),),
    "callbacks": (
        setting("callbacks=early_stopping"),
        setting("+callbacks.mine._target_=lightning.pytorch.callbacks.CLASS"),
    ),
    "logger": (setting("logger=csv"), setting("+logger.mine._target_=lightning.pytorch.loggers.CSVLogger")),
    "default_root_dir": (setting("hydra.run.dir={value}"),),
    "limit_test_batches": (setting("trainer.limit_val_batches={value}"),),
    "limit_predict_batches": (),
    **dict.fromkeys(
        ("plugins", "use_distributed_sampler", "barebones", "enable_progress_bar", "enable_checkpointing",
         "enable_autolog_hparams", "model_registry"),
        (),
    ),
}  # fmt: skip


def time_in_s(value: str | Mapping[str, float]) -> float:
    """Return the seconds of a value of max_time: 00:12:00:00, or {hours:12}."""
    if not isinstance(value, str):
        return timedelta(**value).total_seconds()
    days, hours, minutes, seconds = map(int, value.split(":"))
    return timedelta(days, seconds, hours=hours, minutes=minutes).total_seconds()


def refusal(key: str, value: Any) -> Mistake:
    """Return the mistake of a key of REFUSED. value: as typed."""
    text = shown(value)
    if key == "strategy" and (unused := re.fullmatch(r"ddp_find_unused_parameters_(true|false)", text)):
        options = "strategy=ddp", f"strategy.find_unused_parameters={unused[1]}"
        fix = Fix(options, ("trainer.strategy",), is_meant=True)
        return Mistake("trainer.strategy is set by this project", ("trainer.strategy",), (fix,))
    if key == "strategy":  # Lightning's names -> those of conf/strategy
        ours = {"dp": "dp", "balanced_dp": "balanced_dp", "auto": "auto", "single_device": "auto"}
        text = ours.get(text, "ddp")
    reason = "is set by this project"
    if key in ("limit_test_batches", "limit_predict_batches"):
        reason = "has no effect, because this project calls neither Trainer.test nor Trainer.predict"
    path = f"trainer.{key}"
    fixes = [
        Fix(tuple(option.format(value=text) for option in fix.options), (path,) if fix.options else ())
        for fix in REFUSED[key]
    ]
    return Mistake(f"{path} {reason}", (path,), tuple(fixes) or (without(path),))
