"""Choose the learning rate as a function of the epochs that have passed."""

import math
from collections.abc import Callable, Mapping
from typing import Any

WARMUP_EPOCHS = 5.0  # of large batches, as in Goyal et al. 2017


def scaled_lr(optim: Mapping[str, Any], global_batch_size: int) -> float:
    """optim.lr for the real global batch: scaled linearly from optim.reference_batch images, or as it is where that
    is None (Goyal et al. 2017, arXiv:1706.02677)."""
    reference = optim["reference_batch"]
    return optim["lr"] * global_batch_size / reference if reference else optim["lr"]


def choose_warmup_epochs(
    asked: float | str, optim: Mapping[str, Any], global_batch_size: int, max_epochs: int | None
) -> tuple[float, str]:
    """Decide the warm-up and its reason. asked: schedule.warmup_epochs; a number is taken as it is.

    auto: 5 epochs where the learning rate is scaled up (Goyal et al. 2017, arXiv:1706.02677), but at most a tenth of
    the training, so that a short one still has its schedule.
    """
    if asked != "auto":
        return float(asked), "as set"
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
    """Epochs passed (a fraction within an epoch) -> factor on the learning rate. warmup_epochs: as chosen above.

    It knows no steps: a run that goes on with another number of devices, and so of steps, keeps its learning rates.
    """
    name, warmup, final = schedule["name"], warmup_epochs, float(schedule["final_fraction"])
    last = math.inf if max_epochs in (None, -1) else float(max_epochs or 0)

    def factor(epochs: float) -> float:
        if epochs < warmup:
            return epochs / warmup
        progress = min((epochs - warmup) / max(last - warmup, 1e-9), 1.0)
        if name == "step":
            return schedule["gamma"] ** (int(epochs) // schedule["step_epochs"])
        if name == "cosine":
            return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2
        if name == "linear":
            return final + (1 - final) * (1 - progress)
        return 1.0

    return factor
