"""Make the optimizer that the optim.* keys describe."""

import torch
from torch import nn

from imagenet_ddp.config.instantiate import make
from imagenet_ddp.config.schema.algorithms import OPTIMIZERS
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.schema.learning import OptimConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.factory import import_timm
from imagenet_ddp.models.parameter_groups import parameter_groups


def num_states(optim: OptimConfig) -> int | None:
    """Return the number of values that the optimizer stores per weight; None if unknown."""
    if optim.target:
        return None
    row = OPTIMIZERS[optim.name]
    return row.num_states + ("momentum" in row.reads and optim.momentum > 0)


def choose_fused(config: CommonConfig, kind: str, precision: str) -> tuple[bool, str]:
    """Return (whether to use torch.optim's fused step, which is one kernel, the reason). kind: cpu, cuda or mps."""
    optim, trainer = config.optim, config.trainer
    name, arguments = optim.name, optim.args
    if optim.target:
        return False, "optim._target_ is set"
    if not OPTIMIZERS[name].fused:
        return False, f"there is no fused {name} in torch"
    if arguments.keys() & {"fused", "foreach"}:
        return bool(arguments.get("fused")), "as set"
    if kind == "mps":
        return False, "not used on Apple GPUs"
    if precision == "16-mixed":
        return False, "with 16-mixed, a fused step would unscale the gradients only after they are logged"
    if precision == "bf16-mixed" and trainer.gradient_clip_val:
        return False, "Lightning does not clip gradients for a fused step in mixed precision"
    unused = config.strategy.find_unused_parameters or config.model.unfreeze_epoch is not None
    if name == "sgd" and unused:
        return False, "fused SGD fails if only some weights have a momentum yet"
    return True, f"torch has one kernel for the step on {'CPUs' if kind == 'cpu' else 'CUDA'}"


def make_optimizer(
    optim: OptimConfig, net: nn.Module, lr: float, fused: bool = False, heads: tuple[str, ...] = ()
) -> torch.optim.Optimizer:
    """Return the optimizer of a net. Raises ConfigError if the optimizer does not accept the optim.*
    keys.

    lr: the scaled learning rate. fused: the decision of choose_fused. heads: names of
    the net's last layers, for optim.lr_head and optim.layer_decay.
    """
    groups, name, arguments = parameter_groups(net, optim, lr, heads), optim.name, dict(optim.args)
    if optim.target:
        return make("optim._target_", optim.target, arguments, params=groups, lr=lr)
    row = OPTIMIZERS[name]
    if name == "muon":  # for weights that timm does not give to Muon, such as those of depthwise convolutions
        arguments.setdefault("fallback_lr_scale", optim.lr_adamw / optim.lr)
    given = {key: optim[key] for key in row.reads if key != "lr_adamw" and optim[key] is not None}
    if "betas" in given:
        given["betas"] = tuple(given["betas"])
    given |= {"lr": lr, "weight_decay": optim.weight_decay, **row.arguments}
    if fused:
        given["fused"] = True
    try:
        if row.torch_class:
            return getattr(torch.optim, row.torch_class)(groups, **{**given, **arguments})
        import_timm(f"optim.name={name}")
        from timm.optim import create_optimizer_v2  # pyright: ignore[reportPrivateImportUsage]

        return create_optimizer_v2(groups, opt=name, **{**given, **arguments})
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"optim.name={name} must accept the optim.* keys, but does not: {error}. "
            "Hint: leave out the argument that this error names."
        ) from error


def place_state(optimizer: torch.optim.Optimizer) -> None:
    """Bring the state of a checkpoint to where and how the optimizer's step reads it. Step counters move to the device
    if the settings of their group require it, as a fused step does, else to the CPU: torch loads them according to the
    stored settings, and a fused step on a GPU would then read a counter in CPU memory. Other state takes on the memory
    layout of its parameter, which model.channels_last changes: a fused step reads both in the order of their memory."""
    for group in optimizer.param_groups:
        on_device = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            if "fused" in group and isinstance(state.get("step"), torch.Tensor):
                state["step"] = state["step"].to(parameter.device if on_device else "cpu")
            for name, value in state.items():
                is_like = isinstance(value, torch.Tensor) and value.shape == parameter.shape
                if is_like and value.stride() != parameter.stride():
                    state[name] = torch.empty_like(parameter, dtype=value.dtype).copy_(value)
