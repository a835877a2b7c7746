"""Make the optimizer that the optim.* keys describe."""

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from imagenet_ddp.config.instantiate import make
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.factory import import_timm
from imagenet_ddp.models.parameter_groups import parameter_groups

# torch's optimizers, each with the optim.* keys that it accepts as arguments.
TORCH = {
    "sgd": (torch.optim.SGD, ("momentum", "nesterov")),
    "adamw": (torch.optim.AdamW, ("betas", "eps")),
    "adam": (torch.optim.Adam, ("betas", "eps")),
    "nadam": (torch.optim.NAdam, ("betas", "eps")),
    "rmsprop": (torch.optim.RMSprop, ("momentum", "eps")),
}
FUSED = ("sgd", "adamw", "adam")
MOMENTUM = ("lars", "muon")  # timm's optimizers that accept optim.momentum


def num_states(optim: Mapping[str, Any]) -> int | None:
    """Return the number of values that the optimizer stores per weight; None if unknown."""
    if optim["_target_"]:
        return None
    has_momentum = int(optim["momentum"] > 0)
    known = {"sgd": has_momentum, "rmsprop": 1 + has_momentum, "adamw": 2, "adam": 2, "nadam": 2}
    return known.get(optim["name"], {"lion": 1, "lars": has_momentum}.get(optim["name"], 2))


def choose_fused(config: Mapping[str, Any], kind: str, precision: str) -> tuple[bool, str]:
    """Return (whether to use torch.optim's fused step, which is one kernel, the reason). kind: cpu, cuda or mps."""
    optim, trainer = config["optim"], config["trainer"]
    name, arguments = optim["name"], optim["args"]
    if optim["_target_"]:
        return False, "optim._target_ is set"
    if name not in FUSED:
        return False, f"there is no fused {name} in torch"
    if arguments.keys() & {"fused", "foreach"}:
        return bool(arguments.get("fused")), "as set"
    if kind == "mps":
        return False, "not used on Apple GPUs"
    if precision == "16-mixed":
        return False, "with 16-mixed, a fused step would unscale the gradients only after they are logged"
    if precision == "bf16-mixed" and trainer["gradient_clip_val"]:
        return False, "Lightning does not clip gradients for a fused step in mixed precision"
    unused = config["strategy"]["find_unused_parameters"] or config["model"]["unfreeze_epoch"] is not None
    if name == "sgd" and unused:
        return False, "fused SGD fails if only some weights have a momentum yet"
    return True, f"torch has one kernel for the step on {'CPUs' if kind == 'cpu' else 'CUDA'}"


def make_optimizer(
    optim: Mapping[str, Any],
    parameters: Iterable[nn.Parameter] | nn.Module,
    lr: float,
    fused: bool = False,
    head: str | None = None,
) -> torch.optim.Optimizer:
    """Return the optimizer of a net, or of some parameters. Raises ConfigError if it does not accept the optim.* keys.

    optim: the resolved optim.* keys. lr: the scaled learning rate. fused: the decision of choose_fused. head: name of
    the net's last layer, for optim.lr_head and optim.layer_decay.
    """
    if isinstance(parameters, nn.Module):
        groups: Any = parameter_groups(parameters, optim, lr, head)
    else:
        groups = [parameter for parameter in parameters if parameter.requires_grad]
    name, arguments = optim["name"], dict(optim["args"])
    if optim["_target_"]:
        return make("optim._target_", optim["_target_"], arguments, params=groups, lr=lr)
    arguments = {"lr": lr, "weight_decay": optim["weight_decay"], **arguments}
    if name in TORCH:
        kind, keys = TORCH[name]
        if fused and name in FUSED:
            arguments.setdefault("fused", True)
        if name == "nadam":  # decouple the weight decay from the gradient, as AdamW does
            arguments.setdefault("decoupled_weight_decay", True)
        return _call(name, kind, groups, {**_given(optim, keys), **arguments})
    keys = ("betas", "eps", *(("momentum",) if name in MOMENTUM else ()))
    return _call(name, functools.partial(_timm_optimizer, name), groups, {**_given(optim, keys), **arguments})


def place_steps(optimizer: torch.optim.Optimizer) -> None:
    """Move the step counters to the device if the settings of their group require it, as a fused step does, else to the
    CPU. torch loads the counters according to the stored settings, and a fused step on a GPU would then read a counter
    in CPU memory."""
    for group in optimizer.param_groups:
        on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"] if "fused" in group else ():
            state = optimizer.state.get(parameter, {})
            if isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(parameter.device if on_device else "cpu")


def _given(optim: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return those of the optim.* keys that are not null. betas becomes a tuple."""
    values = {key: optim[key] for key in keys if optim[key] is not None}
    return {**values, "betas": tuple(values["betas"])} if "betas" in values else values


def _call(name: str, kind: Any, groups: Any, arguments: dict[str, Any]) -> torch.optim.Optimizer:
    try:
        return kind(groups, **arguments)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"optim.name={name} must accept the optim.* keys, but does not: {error}. "
            "Hint: leave out the argument that this error names."
        ) from error


def _timm_optimizer(name: str, groups: Any, **arguments: Any) -> torch.optim.Optimizer:
    import_timm(f"optim.name={name}")
    from timm.optim import create_optimizer_v2

    return create_optimizer_v2(groups, opt=name, **arguments)
