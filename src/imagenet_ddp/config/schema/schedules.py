"""Declare the schedules: the keys of schedule.*, and the function of the epochs that they describe. A further one is a
class here, named in SCHEDULES."""

import math
from collections.abc import Callable
from dataclasses import field, replace
from typing import Annotated, Any, ClassVar, Self

from imagenet_ddp.config.section import OneOf, make, one_of
from imagenet_ddp.config.validators import AUTO, Example, choice, integer, list_of, number
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line

Factor = Callable[[float], float]  # epochs since the warm-up -> factor on the learning rate

ROUNDING = 1e-9  # epochs; more than the rounding errors of steps that are converted to epochs, less than a step
ONE_CYCLE_START = 1 / 25  # share of the highest rate, as in torch.optim.lr_scheduler.OneCycleLR


class ScheduleConfig(OneOf):
    """The keys that each schedule has.

    at_epochs: whether the rate drops at given epochs. to_the_end: whether it depends on the last epoch.
    """

    name: Annotated[str, "Learning-rate schedule."] = "step"
    _target_: Annotated[str | None, Example("PACKAGE.CLASS"), "Class of your own schedule."] = None
    interval: Annotated[str, choice("step", "epoch"), "Whether the rate changes per step or per epoch."] = "step"

    at_epochs: ClassVar[bool] = False

    @property
    def to_the_end(self) -> bool:
        return False

    def in_epochs(self, steps_per_epoch: int) -> Self:
        """Return the schedule with epochs in place of steps."""
        return self

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        """Return the function. length: epochs from the end of the warm-up to the end of training."""
        raise NotImplementedError


class Warmed(ScheduleConfig):
    """One that begins with a warm-up."""

    warmup: Annotated[
        str, choice("linear", "constant"), "the factor on lr rises from warmup_start to 1, or stays at warmup_start."
    ] = "linear"
    warmup_epochs: Annotated[Any, AUTO | number(0), "warm-up epochs; auto: 5 if lr is scaled up, else 0."] = "auto"
    warmup_steps: Annotated[int | None, integer(0), Example("500"), "warm-up steps, instead of warmup_epochs."] = None
    warmup_start: Annotated[float, number(0, 1), Example("0.01"), "first rate of the warm-up, as a share of lr."] = 0.0

    def warming(self, share: float) -> float:
        """Return the factor after this share of the warm-up."""
        if self.warmup != "linear":
            return self.warmup_start
        return self.warmup_start + (1 - self.warmup_start) * share


class OwnSchedule(Warmed):
    args: Annotated[dict[str, Any], "Arguments of your own schedule."] = field(default_factory=dict[str, Any])

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        """Raises ConfigError unless it gives numbers."""
        own = make("schedule._target_", str(self.target), self.args, epochs=length)
        for epochs in (0.0, min(length, 1.0)):
            try:
                is_number = isinstance(value := own(epochs), int | float) and math.isfinite(value) and value >= 0
                found = "" if is_number else f"got {value!r} at epoch {epochs:g}"
            except Exception as error:
                found = f"but the call failed: {first_line(error)}"
            if found:
                raise ConfigError(
                    f"schedule._target_={self.target} must return a function from the epochs since the warm-up to a "
                    f"factor ≥ 0 on the learning rate, {found}. Hint: docs/configuration.md has an example."
                )
        return own


class _Gamma(ScheduleConfig):
    gamma: Annotated[float, number(above=0), "factor of each drop."] = 0.1


class _Falling(ScheduleConfig):
    final_fraction: Annotated[float, number(0, 1), "last learning rate as a share of lr."] = 0.0

    @property
    def to_the_end(self) -> bool:
        return True

    def fall(self, share: float) -> float:
        """Return the factor of which this share is above the last one."""
        return self.final_fraction + (1 - self.final_fraction) * share


class Constant(Warmed):
    name: str = "constant"

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        return lambda epochs: 1.0


class Step(_Gamma, Warmed):
    name: str = "step"
    step_epochs: Annotated[int, integer(1), "epochs between two drops of the rate."] = 30
    at_epochs = True

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        return lambda epochs: self.gamma ** (int(epochs + warmup_epochs + ROUNDING) // self.step_epochs)


class MultiStep(_Gamma, Warmed):
    name: str = "multistep"
    milestones: Annotated[
        list[int], list_of(integer(1), "a list of epochs such as [30,60,80]"), "epochs at which the rate drops."
    ] = field(default_factory=lambda: [30, 60, 80])
    milestone_steps: Annotated[
        list[int] | None,
        list_of(integer(1), "a list of steps such as [5000,9000]"),
        Example("[5000,9000]"),
        "optimizer steps, instead of milestones.",
    ] = None
    at_epochs = True

    def in_epochs(self, steps_per_epoch: int) -> Self:
        milestones: Any = [step / steps_per_epoch for step in self.milestone_steps or ()]
        return replace(self, milestones=milestones) if milestones else self

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        return lambda epochs: self.gamma ** sum(epochs + warmup_epochs >= each - ROUNDING for each in self.milestones)


class Exponential(_Gamma, Warmed):
    name: str = "exponential"
    gamma: Annotated[float, number(above=0), "factor of each epoch."] = 0.1

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        return lambda epochs: self.gamma**epochs


class Linear(_Falling, Warmed):
    name: str = "linear"

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        return lambda epochs: self.fall(1 - epochs / length)


class Poly(_Falling, Warmed):
    name: str = "poly"
    power: Annotated[float, number(above=0), "exponent of the decay."] = 1.0

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        return lambda epochs: self.fall((1 - epochs / length) ** self.power)


class Cosine(_Falling, Warmed):
    name: str = "cosine"
    cycle_epochs: Annotated[
        int | None, integer(1), Example("10"), "epochs until the rate restarts at its maximum; null: never."
    ] = None

    @property
    def to_the_end(self) -> bool:
        return not self.cycle_epochs

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        def share(epochs: float) -> float:
            if not self.cycle_epochs:
                return epochs / length
            return max((epochs + ROUNDING) % self.cycle_epochs - ROUNDING, 0.0) / self.cycle_epochs

        return lambda epochs: self.fall(_half_cosine(share(epochs)))


class OneCycle(_Falling):
    """Its own rise replaces the warm-up."""

    name: str = "one_cycle"
    peak_fraction: Annotated[float, number(above=0, below=1), "share of training in which the rate rises."] = 0.3

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        top = self.peak_fraction * length

        def factor(epochs: float) -> float:
            if epochs < top:
                return ONE_CYCLE_START + (1 - ONE_CYCLE_START) * (1 - _half_cosine(epochs / top))
            return self.fall(_half_cosine((epochs - top) / (length - top)))

        return factor


class Wsd(_Falling, Warmed):
    """Warm-up, stable, decay."""

    name: str = "wsd"
    decay_fraction: Annotated[float, number(above=0, most=1), "final share of training in which the rate falls."] = 0.2

    def factor(self, length: float, warmup_epochs: float) -> Factor:
        return lambda epochs: self.fall(min((length - epochs) / (self.decay_fraction * length), 1.0))


def _half_cosine(progress: float) -> float:
    return (1 + math.cos(math.pi * min(progress, 1.0))) / 2


SCHEDULES = one_of(
    ScheduleConfig, OwnSchedule, Step, MultiStep, Cosine, Linear, Poly, Exponential, OneCycle, Wsd, Constant
)
