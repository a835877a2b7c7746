"""The optimiser, and the learning rate as a function of how many epochs have passed."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from imagenet_ddp.targets import make


def scaled_lr(optim: Mapping[str, Any], global_batch_size: int) -> float:
    """optim.lr for the real global batch: scaled linearly from optim.reference_batch images, or as it is where that
    is None (Goyal et al. 2017, arXiv:1706.02677)."""
    reference = optim["reference_batch"]
    return optim["lr"] * global_batch_size / reference if reference else optim["lr"]


def make_optimizer(optim: Mapping[str, Any], parameters: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    """optim: the resolved optim.* keys; lr: the scaled learning rate."""
    parameters = [parameter for parameter in parameters if parameter.requires_grad]
    if optim["_target_"]:
        return make("optim._target_", optim["_target_"], optim["args"], params=parameters, lr=lr)
    return torch.optim.SGD(
        parameters,
        lr=lr,
        momentum=optim["momentum"],
        weight_decay=optim["weight_decay"],
        nesterov=optim["nesterov"],
    )


def make_schedule(schedule: Mapping[str, Any], max_epochs: int | None) -> Callable[[float], float]:
    """Epochs passed (a fraction within an epoch) -> factor on the learning rate.

    It knows no steps: a run that goes on with another number of devices, and so of steps, keeps its learning rates.
    """
    name, warmup = schedule["name"], float(schedule["warmup_epochs"])
    final = float(schedule["final_fraction"])
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
