"""Compute the learning rate as a function of the elapsed epochs."""

import math
from collections.abc import Callable, Sequence

from imagenet_ddp.config.schema.learning import AveragingConfig, OptimConfig, ScheduleConfig
from imagenet_ddp.config.section import make
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line

WARMUP_EPOCHS = 5.0  # for large batches, as in Goyal et al. 2017
MOST_OF_BUDGET = 0.25  # share of a run with budget_min that a warm-up takes at most
ROUNDING = 1e-9  # epochs; more than the rounding errors of steps that are converted to epochs, less than a step
ONE_CYCLE_START = 1 / 25  # share of the highest rate, as in torch.optim.lr_scheduler.OneCycleLR


def scaled_lr(optim: OptimConfig, global_batch_size: int) -> float:
    """Return optim.lr scaled from optim.reference_batch images to the global batch size, by the rule of
    scaling_rule."""
    exponent = {"none": 0.0, "sqrt": 0.5, "linear": 1.0}[scaling_rule(optim)]
    return optim.lr * (global_batch_size / (optim.reference_batch or 1)) ** exponent


def scaling_rule(optim: OptimConfig) -> str:
    """Return linear (Goyal et al. 2017, arXiv:1706.02677), sqrt or none: optim.scaling, or timm's choice for the
    optimizer. Without optim.reference_batch, nothing is scaled."""
    if optim.reference_batch is None:
        return "none"
    if optim.scaling != "auto":
        return optim.scaling
    name = str(optim.target or optim.name).rpartition(".")[2].lower()
    return "sqrt" if "ada" in name or "lamb" in name else "linear"


def choose_warmup_epochs(
    schedule: ScheduleConfig, optim: OptimConfig, global_batch_size: int, max_epochs: int | None
) -> tuple[float, str]:
    """Return (epochs of warm-up, the reason). If schedule.warmup_epochs is a number, it is used as it is.

    If it is auto, the warm-up takes 5 epochs when the learning rate is scaled up (Goyal et al. 2017, arXiv:1706.02677),
    but at most a tenth of the training, so that a short training still follows its schedule. Otherwise there is no
    warm-up.
    """
    if schedule.warmup_steps is not None:
        return 0.0, f"schedule.warmup_steps={schedule.warmup_steps} replaces it"
    if schedule.warmup_epochs != "auto":
        return float(schedule.warmup_epochs), "as set"
    if schedule.name == "one_cycle" and not schedule.target:
        return 0.0, "one_cycle includes a warm-up"
    scale = scaled_lr(optim, global_batch_size) / optim.lr
    if scale <= 1:
        return 0.0, "the learning rate is not scaled up"
    reason = f"the learning rate is scaled up by a factor of {scale:.4g}"
    if max_epochs in (None, -1) or max_epochs >= 10 * WARMUP_EPOCHS:
        return WARMUP_EPOCHS, reason
    return max_epochs / 10, f"{reason}; a tenth of trainer.max_epochs, which is less than {WARMUP_EPOCHS:g}"


def schedule_spanning(
    schedule: ScheduleConfig, warmup_epochs: float, end: float, steps_per_epoch: int, *, has_budget: bool = False
) -> Callable[[float], float]:
    """Return the schedule of a run that ends after `end` epochs, which trainer.max_steps may cut short. Keys in steps
    are converted to epochs, and an automatic warm-up takes at most a tenth of the run. has_budget: budget_min has
    chosen the end, so any warm-up takes at most MOST_OF_BUDGET."""
    if schedule.warmup_steps is not None:
        warmup_epochs = schedule.warmup_steps / steps_per_epoch
    elif schedule.warmup_epochs == "auto":
        warmup_epochs = min(warmup_epochs, end / 10)
    if has_budget:
        warmup_epochs = min(warmup_epochs, MOST_OF_BUDGET * end)
    milestones = schedule.milestone_steps and [step / steps_per_epoch for step in schedule.milestone_steps]
    return make_schedule(schedule, end, warmup_epochs, milestones)


def make_schedule(
    schedule: ScheduleConfig,
    max_epochs: float | None,
    warmup_epochs: float,
    milestones: Sequence[float] | None = None,
) -> Callable[[float], float]:
    """Return a function that maps the elapsed epochs (fractional within an epoch) to a factor on the learning rate.

    milestones: replace schedule.milestones. "step" and "multistep" count epochs from the start of training; all other
    schedules begin at the end of the warm-up. The factor does not depend on the number of steps, so a run resumed on
    another number of devices keeps its learning rates.
    """
    last = math.inf if max_epochs in (None, -1) else float(max_epochs or 0)
    length = max(last - warmup_epochs, 1e-9)
    shape = _shape(schedule, length, warmup_epochs, milestones or schedule.milestones)

    def factor(epochs: float) -> float:
        if schedule.interval == "epoch":
            epochs = float(math.floor(epochs))
        if epochs < warmup_epochs - ROUNDING:
            start = schedule.warmup_start
            return start if schedule.warmup == "constant" else start + (1 - start) * epochs / warmup_epochs
        return shape(min(max(epochs - warmup_epochs, 0), length))

    return factor


def _shape(
    schedule: ScheduleConfig, length: float, warmup_epochs: float, milestones: Sequence[float]
) -> Callable[[float], float]:
    """Return a function that maps the epochs since the warm-up to a factor on the learning rate. length: epochs from
    the end of the warm-up to the end of training."""
    if schedule.target:
        return _own(schedule, length)
    name, gamma, final = schedule.name, schedule.gamma, float(schedule.final_fraction)

    def fall(share: float) -> float:
        return final + (1 - final) * share

    def half_cosine(progress: float) -> float:
        return (1 + math.cos(math.pi * min(progress, 1.0))) / 2

    def one_cycle(epochs: float) -> float:
        top = schedule.peak_fraction * length
        if epochs < top:
            return ONE_CYCLE_START + (1 - ONE_CYCLE_START) * (1 - half_cosine(epochs / top))
        return fall(half_cosine((epochs - top) / (length - top)))

    def wsd(epochs: float) -> float:
        decay = schedule.decay_fraction * length
        return fall(min((length - epochs) / decay, 1.0))

    def share_of_cycle(epochs: float, cycle: float) -> float:
        return max((epochs + ROUNDING) % cycle - ROUNDING, 0.0) / cycle

    cycle = schedule.cycle_epochs
    shapes: dict[str, Callable[[float], float]] = {
        "constant": lambda epochs: 1.0,
        "step": lambda epochs: gamma ** (int(epochs + warmup_epochs + ROUNDING) // schedule.step_epochs),
        "multistep": lambda epochs: gamma ** sum(epochs + warmup_epochs >= each - ROUNDING for each in milestones),
        "exponential": lambda epochs: gamma**epochs,
        "linear": lambda epochs: fall(1 - epochs / length),
        "poly": lambda epochs: fall((1 - epochs / length) ** schedule.power),
        "cosine": lambda epochs: fall(half_cosine(share_of_cycle(epochs, cycle) if cycle else epochs / length)),
        "one_cycle": one_cycle,
        "wsd": wsd,
    }
    return shapes[name]


def _own(schedule: ScheduleConfig, length: float) -> Callable[[float], float]:
    """Return the function of a schedule of the user's own. Raises ConfigError unless it gives numbers."""
    shape = make("schedule._target_", str(schedule.target), schedule.args, epochs=length)
    for epochs in (0.0, min(length, 1.0)):
        try:
            is_number = isinstance(factor := shape(epochs), int | float) and math.isfinite(factor) and factor >= 0
            found = "" if is_number else f"got {factor!r} after {epochs:g} epochs"
        except Exception as error:
            found = f"but the call failed: {first_line(error)}"
        if found:
            raise ConfigError(
                f"schedule._target_={schedule.target} must return a function from the epochs since the warm-up to a "
                f"factor ≥ 0 on the learning rate, {found}. Hint: docs/configuration.md has an example."
            )
    return shape


def scaling_words(optim: OptimConfig, global_batch_size: int) -> str:
    """Return a phrase that explains the value of scaled_lr."""
    reference, rule = optim.reference_batch, scaling_rule(optim)
    if rule == "none":
        return f"not scaled ({'optim.scaling=none' if reference else 'optim.reference_batch=null'})"
    ratio = f"{global_batch_size}/{reference}"
    return f"{optim.lr:g} per {reference} images × {f'√({ratio})' if rule == 'sqrt' else ratio}"


def first_averaged_epoch(averaging: AveragingConfig, max_epochs: int | None) -> int:
    """Return the first epoch, counted from 0, whose weights are averaged. By default, swa averages the last quarter of
    the training (Izmailov et al. 2018, arXiv:1803.05407)."""
    if averaging.start_epoch is not None or averaging.name != "swa":
        return averaging.start_epoch or 0
    return max(min(math.ceil(0.75 * (max_epochs or 0)), (max_epochs or 0) - 1), 0)
