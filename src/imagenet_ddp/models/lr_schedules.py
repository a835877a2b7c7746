"""Choose the learning rate as a function of the epochs that have passed."""

import math
from collections.abc import Callable, Mapping
from typing import Any

WARMUP_EPOCHS = 5.0  # of large batches, as in Goyal et al. 2017
ONE_CYCLE_START = 1 / 25  # of the highest rate, as in torch.optim.lr_scheduler.OneCycleLR


def scaled_lr(optim: Mapping[str, Any], global_batch_size: int) -> float:
    """Scale optim.lr linearly from optim.reference_batch images to the actual global batch; leave it unchanged if that
    key is None (Goyal et al. 2017, arXiv:1706.02677)."""
    reference = optim["reference_batch"]
    return optim["lr"] * global_batch_size / reference if reference else optim["lr"]


def choose_warmup_epochs(
    schedule: Mapping[str, Any], optim: Mapping[str, Any], global_batch_size: int, max_epochs: int | None
) -> tuple[float, str]:
    """Return the warm-up and its reason. A number of schedule.warmup_epochs is used as it is.

    auto: 5 epochs if the learning rate is scaled up (Goyal et al. 2017, arXiv:1706.02677), but at most a tenth of the
    training, so that a short one still has its schedule.
    """
    if schedule["warmup_epochs"] != "auto":
        return float(schedule["warmup_epochs"]), "as set"
    if schedule["name"] == "one_cycle":
        return 0.0, "one_cycle begins with a rise of its own"
    scale = global_batch_size / (optim["reference_batch"] or global_batch_size)
    if scale <= 1:
        return 0.0, "the learning rate is not scaled up"
    reason = f"the learning rate is scaled up {scale:.4g} times"
    if max_epochs in (None, -1) or max_epochs >= 10 * WARMUP_EPOCHS:
        return WARMUP_EPOCHS, reason
    return max_epochs / 10, f"{reason}; a tenth of trainer.max_epochs, which is less than {WARMUP_EPOCHS:g}"


def make_schedule(
    schedule: Mapping[str, Any], max_epochs: int | None, warmup_epochs: float
) -> Callable[[float], float]:
    """Return a function: epochs passed (fractional within an epoch) -> factor on the learning rate.

    schedule: the resolved schedule.* keys. step and multistep count their epochs from the start of the training; all
    others begin at the end of the warm-up. The factor does not depend on a number of steps, so a run resumed on another
    number of devices keeps its learning rates.
    """
    last = math.inf if max_epochs in (None, -1) else float(max_epochs or 0)
    length = max(last - warmup_epochs, 1e-9)
    shape = _shape(schedule, length, warmup_epochs)

    def factor(epochs: float) -> float:
        if schedule["interval"] == "epoch":
            epochs = float(math.floor(epochs))
        if epochs < warmup_epochs:
            start = schedule["warmup_start"]
            return start if schedule["warmup"] == "constant" else start + (1 - start) * epochs / warmup_epochs
        return shape(min(epochs - warmup_epochs, length))

    return factor


def _shape(schedule: Mapping[str, Any], length: float, warmup_epochs: float) -> Callable[[float], float]:
    """Return a function: epochs since the warm-up -> factor. length: epochs from there to the end."""
    name, gamma, final = schedule["name"], schedule["gamma"], float(schedule["final_fraction"])

    def fall(share: float) -> float:
        return final + (1 - final) * share

    def half_cosine(progress: float) -> float:
        return (1 + math.cos(math.pi * min(progress, 1.0))) / 2

    def one_cycle(epochs: float) -> float:
        top = schedule["peak_fraction"] * length
        if epochs < top:
            return ONE_CYCLE_START + (1 - ONE_CYCLE_START) * (1 - half_cosine(epochs / top))
        return fall(half_cosine((epochs - top) / (length - top)))

    def wsd(epochs: float) -> float:
        decay = schedule["decay_fraction"] * length
        return fall(min((length - epochs) / decay, 1.0))

    cycle = schedule["cycle_epochs"]
    shapes: dict[str, Callable[[float], float]] = {
        "constant": lambda epochs: 1.0,
        "step": lambda epochs: gamma ** (int(epochs + warmup_epochs) // schedule["step_epochs"]),
        "multistep": lambda epochs: gamma ** sum(epochs + warmup_epochs >= each for each in schedule["milestones"]),
        "exponential": lambda epochs: gamma**epochs,
        "linear": lambda epochs: fall(1 - epochs / length),
        "poly": lambda epochs: fall((1 - epochs / length) ** schedule["power"]),
        "cosine": lambda epochs: fall(half_cosine((epochs % cycle) / cycle if cycle else epochs / length)),
        "one_cycle": one_cycle,
        "wsd": wsd,
    }
    return shapes[name]


def scaling_words(optim: Mapping[str, Any], global_batch_size: int) -> str:
    """Return the reason for scaled_lr's value."""
    reference = optim["reference_batch"]
    if not reference:
        return "not scaled (optim.reference_batch is null)"
    return f"{optim['lr']:g} per {reference} images × {global_batch_size}/{reference}"


def first_averaged_epoch(averaging: Mapping[str, Any], max_epochs: int | None) -> int:
    """Return the first epoch that averaging.* averages, from 0; by default swa averages the last quarter (Izmailov et
    al. 2018, arXiv:1803.05407)."""
    if averaging["start_epoch"] is not None or averaging["name"] != "swa":
        return averaging["start_epoch"] or 0
    return max(min(math.ceil(0.75 * (max_epochs or 0)), (max_epochs or 0) - 1), 0)
