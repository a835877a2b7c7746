"""Choose the learning rate as a function of the epochs that have passed."""

import math
from collections.abc import Callable, Mapping
from typing import Any

WARMUP_EPOCHS = 5.0  # of large batches, as in Goyal et al. 2017


def scaled_lr(optim: Mapping[str, Any], global_batch_size: int) -> float:
    """Scale optim.lr linearly from optim.reference_batch images to the real global batch; leave it where that is None
    (Goyal et al. 2017, arXiv:1706.02677)."""
    reference = optim["reference_batch"]
    return optim["lr"] * global_batch_size / reference if reference else optim["lr"]


def choose_warmup_epochs(
    option: float | str, optim: Mapping[str, Any], global_batch_size: int, max_epochs: int | None
) -> tuple[float, str]:
    """Return the warm-up and its reason. option: schedule.warmup_epochs; a number is taken as it is.

    auto: 5 epochs where the learning rate is scaled up (Goyal et al. 2017, arXiv:1706.02677), but at most a tenth of
    the training, so that a short one still has its schedule.
    """
    if option != "auto":
        return float(option), "as set"
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
    """Return a function: epochs passed (a fraction within an epoch) -> factor on the learning rate.

    It depends on no number of steps: a run resumed on another number of devices keeps its learning rates.
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
