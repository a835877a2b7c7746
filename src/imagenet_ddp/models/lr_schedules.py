"""Scale optim.lr to the global batch, choose the warm-up, and compute the factor on the learning rate as a function of
the elapsed epochs. The formula of each schedule is in config/schema/schedules.py."""

import math

from imagenet_ddp.config.schema.optimizers import OptimConfig
from imagenet_ddp.config.schema.schedules import ROUNDING, Factor, ScheduleConfig, Warmed

WARMUP_EPOCHS = 5.0  # for large batches, as in Goyal et al. 2017
MOST_OF_BUDGET = 0.25  # share of a run with budget_min that a warm-up takes at most


def scaled_lr(optim: OptimConfig, global_batch_size: int) -> float:
    """Return optim.lr scaled from optim.reference_batch images to the global batch size, by the rule of
    scaling_rule."""
    exponent = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[scaling_rule(optim)]
    return optim.lr * (global_batch_size / (optim.reference_batch or 1)) ** exponent


def scaling_rule(optim: OptimConfig) -> str:
    """Return linear (Goyal et al. 2017, arXiv:1706.02677), sqrt or none: optim.scaling, or timm's choice for the
    optimizer. Nothing is scaled without optim.reference_batch, or by auto for an optimizer of the user's own, because
    a recipe's reference_batch is not meant for it."""
    if optim.reference_batch is None:
        return "none"
    if optim.scaling != "auto":
        return optim.scaling
    if optim.target:
        return "none"
    return "sqrt" if "ada" in optim.name or "lamb" in optim.name else "linear"


def choose_warmup_epochs(
    schedule: ScheduleConfig, optim: OptimConfig, global_batch_size: int, max_epochs: int | None
) -> tuple[float, str]:
    """Return (epochs of warm-up, the reason). If schedule.warmup_epochs is a number, it is used as it is.

    If it is auto, the warm-up takes 5 epochs when the learning rate is scaled up (Goyal et al. 2017, arXiv:1706.02677),
    but at most a tenth of the training, so that a short training still follows its schedule. Otherwise there is no
    warm-up.
    """
    if not isinstance(schedule, Warmed):
        return 0.0, f"{schedule.name} includes a warm-up"
    if schedule.warmup_steps is not None:
        return 0.0, f"schedule.warmup_steps={schedule.warmup_steps} replaces it"
    if schedule.warmup_epochs != "auto":
        return float(schedule.warmup_epochs), "as set"
    scale = scaled_lr(optim, global_batch_size) / optim.lr
    if scale <= 1:
        return 0.0, "the learning rate is not scaled up"
    reason = f"the learning rate is scaled up by a factor of {scale:.4g}"
    if max_epochs in (None, -1) or max_epochs >= 10 * WARMUP_EPOCHS:
        return WARMUP_EPOCHS, reason
    return max_epochs / 10, f"{reason}; a tenth of trainer.max_epochs, which is less than {WARMUP_EPOCHS:g}"


def schedule_spanning(
    schedule: ScheduleConfig, warmup_epochs: float, end: float, steps_per_epoch: int, *, has_budget: bool = False
) -> Factor:
    """Return the schedule of a run that ends after `end` epochs, which trainer.max_steps may cut short. Keys in steps
    are converted to epochs, and an automatic warm-up takes at most a tenth of the run. has_budget: budget_min has
    chosen the end, so any warm-up takes at most MOST_OF_BUDGET."""
    if isinstance(schedule, Warmed):
        if schedule.warmup_steps is not None:
            warmup_epochs = schedule.warmup_steps / steps_per_epoch
        elif schedule.warmup_epochs == "auto":
            warmup_epochs = min(warmup_epochs, end / 10)
    if has_budget:
        warmup_epochs = min(warmup_epochs, MOST_OF_BUDGET * end)
    return make_schedule(schedule.in_epochs(steps_per_epoch), end, warmup_epochs)


def make_schedule(schedule: ScheduleConfig, max_epochs: float | None, warmup_epochs: float) -> Factor:
    """Return a function that maps the elapsed epochs (fractional within an epoch) to a factor on the learning rate.

    "step" and "multistep" count epochs from the start of training; all other schedules begin at the end of the warm-up.
    The factor does not depend on the number of steps, so a run resumed on another number of devices keeps its learning
    rates.
    """
    warming = schedule.warming if isinstance(schedule, Warmed) else None
    if warming is None:
        warmup_epochs = 0.0
    last = math.inf if max_epochs in (None, -1) else float(max_epochs or 0)
    length = max(last - warmup_epochs, 1e-9)
    after = schedule.factor(length, warmup_epochs)

    def factor(epochs: float) -> float:
        if schedule.interval == "epoch":
            epochs = float(math.floor(epochs))
        if warming is not None and epochs < warmup_epochs - ROUNDING:
            return warming(epochs / warmup_epochs)
        return after(min(max(epochs - warmup_epochs, 0), length))

    return factor


def scaling_words(optim: OptimConfig, global_batch_size: int) -> str:
    """Return a phrase that explains the value of scaled_lr."""
    reference, rule = optim.reference_batch, scaling_rule(optim)
    if rule == "none":
        if reference is None:
            return "not scaled (optim.reference_batch=null)"
        return f"not scaled ({'optim.scaling=none' if optim.scaling == 'none' else 'for an optimizer of your own'})"
    ratio = f"{global_batch_size}/{reference}"
    return f"{optim.lr:g} per {reference} images × {f'√({ratio})' if rule == 'sqrt' else ratio}"
