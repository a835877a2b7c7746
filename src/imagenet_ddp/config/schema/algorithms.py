"""List the optimizers, schedules and losses by name: what each reads, and what else other code has to know of it.

The keys that a row reads are refused beside the other rows (config/read_if.py). models/optimizers.py, lr_schedules.py
and losses.py compute them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Optimizer:
    """A value of optim.name.

    reads: keys of optim.* that are its arguments, besides lr and weight_decay, which all have. torch_class: its name in
    torch.optim; "": it is one of timm.optim, under the name of the row. fused: whether torch has one kernel for its
    step. trust_ratio: whether it scales each step by the ratio of weights to gradients. arguments: further ones, which
    optim.args may replace.
    """

    reads: tuple[str, ...]
    torch_class: str = ""
    fused: bool = False
    trust_ratio: bool = False
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])


OPTIMIZERS = {
    "sgd": Optimizer(("momentum", "nesterov"), "SGD", fused=True),
    "adamw": Optimizer(("betas", "eps"), "AdamW", fused=True),
    "adam": Optimizer(("betas", "eps"), "Adam", fused=True),
    # decouples the weight decay from the gradient, as AdamW does
    "nadam": Optimizer(("betas", "eps"), "NAdam", arguments={"decoupled_weight_decay": True}),
    "rmsprop": Optimizer(("momentum", "eps"), "RMSprop"),
    "adafactor": Optimizer((), "Adafactor"),
    # Those of timm that need more than gradients (a closure, the Hessian) are left out.
    "adabelief": Optimizer(("betas", "eps")),
    "adan": Optimizer(("betas", "eps")),
    "adopt": Optimizer(("betas", "eps")),
    "lamb": Optimizer(("betas", "eps"), trust_ratio=True),
    "lars": Optimizer(("momentum",), trust_ratio=True),
    "lion": Optimizer(("betas",)),
    "madgrad": Optimizer(("eps",)),
    "mars": Optimizer(("betas", "eps")),
    "muon": Optimizer(("momentum", "betas", "eps", "lr_adamw")),
    "nadamw": Optimizer(("betas", "eps")),
}


@dataclass(frozen=True)
class Schedule:
    """A value of schedule.name. reads: keys of schedule.*, besides those that all read. to_the_end: whether it depends
    on the last epoch."""

    reads: tuple[str, ...] = ()
    to_the_end: bool = False


SCHEDULES = {
    "step": Schedule(("step_epochs", "gamma")),
    "multistep": Schedule(("milestones", "milestone_steps", "gamma")),
    "cosine": Schedule(("cycle_epochs", "final_fraction"), to_the_end=True),
    "linear": Schedule(("final_fraction",), to_the_end=True),
    "poly": Schedule(("power", "final_fraction"), to_the_end=True),
    "exponential": Schedule(("gamma",)),
    "one_cycle": Schedule(("peak_fraction", "final_fraction"), to_the_end=True),
    "wsd": Schedule(("decay_fraction", "final_fraction"), to_the_end=True),
    "constant": Schedule(),
}

LOSSES = {"cross_entropy": (), "bce": ("bce_threshold",), "focal": ("focal_gamma",)}  # name -> keys of loss.* it reads


def readers(key: str) -> tuple[str, ...]:
    """Return the names of the optimizers that read a key of optim.*."""
    return tuple(name for name, row in OPTIMIZERS.items() if key in row.reads)
