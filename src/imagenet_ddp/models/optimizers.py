"""Make the optimizer that the optim.* keys describe, with its groups of parameters."""

import fnmatch
import re
from collections.abc import Iterator
from typing import Any, cast

import torch
from torch import nn

from imagenet_ddp.config.schema.optimizers import OptimConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.head import is_in_head

# A member of a list (layer1.0, features.3, stages.2.blocks.1), or a module of several layers with a number in its name.
_BLOCK = re.compile(r"^(?:[A-Za-z_]\w*\.)*?(?:(?<=\.)\d+|\w*[A-Za-z_]\d+(?=\.[^.]+\.))(?:\.\d+|\.blocks\.\d+)?(?=\.)")
# Tokens, positions, and the tables and small nets that compute a bias from positions.
_EMBEDDING = re.compile(r"pos_embed|position_bias|(cls|class|dist|reg|mask)_token|cpb_mlp|attention_biases$")
# State of the optimizers that have a fused step. Others of torch and timm have it in the same shape.
_LIKE_PARAMETER = {"momentum_buffer", "exp_avg", "exp_avg_sq", "max_exp_avg_sq", "sum"}
_SCALES = ("layer_scale", "logit_scale")  # of torchvision, with three dimensions


def choose_fused(config: CommonConfig, kind: str, precision: str) -> tuple[bool, str]:
    """Return (whether to use torch.optim's fused step, which is one kernel, the reason). kind: cpu, cuda or mps."""
    optim, trainer = config.optim, config.trainer
    name, arguments = optim.name, optim.args
    if optim.target:
        return False, "optim._target_ is set"
    if not optim.is_fused:
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
    if optim.needs_each_momentum and unused:
        return False, f"a fused {name} fails if only some weights have a momentum yet"
    return True, f"torch has one kernel for the step on {'CPUs' if kind == 'cpu' else 'CUDA'}"


def make_optimizer(
    optim: OptimConfig, net: nn.Module, lr: float, fused: bool = False, heads: tuple[str, ...] = ()
) -> torch.optim.Optimizer:
    """Return the optimizer of a net. Raises ConfigError if the optimizer does not accept the optim.*
    keys.

    lr: the scaled learning rate. fused: the decision of choose_fused. heads: names of
    the net's last layers, for optim.lr_head and optim.layer_decay.
    """
    groups = parameter_groups(net, optim, lr, heads)
    if optim.target:
        own: Any = optim.make(groups, lr)
        if isinstance(own, torch.optim.Optimizer):
            own.register_load_state_dict_post_hook(lambda made: require_state(made, only_fused=True))
        return own
    try:
        made = optim.make(groups, lr, **({"fused": True} if fused else {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"optim.name={optim.name} must accept the optim.* keys, but does not: {error}. "
            "Hint: leave out the argument that this error names."
        ) from error
    made.register_load_state_dict_post_hook(require_state)
    return made


def require_state(optimizer: torch.optim.Optimizer, only_fused: bool = False) -> None:
    """Raise ValueError unless the state of a checkpoint fits the parameters and settings: a fused step would read and
    write beyond the end of a smaller buffer. For torch's register_load_state_dict_post_hook. only_fused: an optimizer
    of the user's own may have buffers of these names in other shapes, unless its step is torch's fused one."""
    for group in optimizer.param_groups:
        if only_fused and not group.get("fused"):
            continue
        if not isinstance(group["lr"], int | float | torch.Tensor):
            raise ValueError(f"lr of the optimizer must be a number, got a {type(group['lr']).__name__}")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            for name in _LIKE_PARAMETER & state.keys():
                shape = tuple(getattr(state[name], "shape", ()))
                if state[name] is not None and (shape != parameter.shape or not isinstance(state[name], torch.Tensor)):
                    raise ValueError(f"{name} must have the shape {tuple(parameter.shape)} of its weight, got {shape}")
            if "step" in state and torch.as_tensor(state["step"]).numel() != 1:
                raise ValueError("step of the optimizer must be one number")


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


def parameter_groups(net: nn.Module, optim: OptimConfig, lr: float, heads: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the trained parameters in groups of equal settings, in the net's order.

    lr: optim.lr after scaling; optim.lr_head and optim.lr_adamw are scaled by the
    same factor. optim.layer_decay is the factor on the learning rate from each block to the block before it. heads:
    names of the layers that compute the logits.
    """
    own = _own_settings(net, optim, heads)
    layers, last = _layer_numbers(net, heads) if optim.layer_decay else ({}, 0)
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        if not parameter.requires_grad:
            continue
        settings = own[name]
        if is_in_head(name, heads) and optim.lr_head is not None:
            factor = optim.lr_head / optim.lr
        else:
            factor = optim.rate(settings) / optim.lr * (optim.layer_decay or 1.0) ** (last - layers.get(name, last))
        # the key is the factor, not the scaled rate, because the groups must not depend on the number of devices
        key = (factor, *settings.items())
        groups.setdefault(key, {"params": [], "lr": lr * factor, **settings})["params"].append(parameter)
    return list(groups.values())


def _own_settings(net: nn.Module, optim: OptimConfig, heads: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Return the settings of each parameter that differ from those of the optimizer."""
    no_decay = _without_decay(net, no_decay_kinds(optim))
    own: dict[str, dict[str, Any]] = {}
    for name, parameter in net.named_parameters():
        is_vector = parameter.dim() < 2 or is_in_head(name, heads) or bool(_EMBEDDING.search(name))
        own[name] = optim.settings(decays=name not in no_decay, is_vector=is_vector)
    return own


def no_decay_kinds(optim: OptimConfig) -> list[str]:
    """Return optim.no_decay_on, or its default: lars and lamb are defined without decay of norms and biases."""
    if optim.no_decay_on is not None:
        return optim.no_decay_on
    return ["norm", "bias"] if optim.scales_by_weights else []


def _layer_numbers(net: nn.Module, heads: tuple[str, ...]) -> tuple[dict[str, int], int]:
    """Return (name of a parameter -> number of its layer, counted from the input; the number of the last layer, that of
    the parameters left out). For a net of timm, these are timm's own layers. Else layer 0 is the stem, each block is a
    layer, and what follows a block, such as the last normalisation, belongs to it."""
    if hasattr(net, "group_matcher"):
        from timm.models import group_parameters  # pyright: ignore[reportUnknownVariableType]

        numbers: Any = group_parameters(net, net.group_matcher(coarse=False), reverse=True)  # type: ignore[operator]
        return numbers, max(numbers.values())
    blocks: list[str] = []
    found: dict[str, int] = {}
    for name, _ in net.named_parameters():
        if is_in_head(name, heads):
            continue
        match = _BLOCK.match(name)
        if match and match.group() not in blocks:
            blocks.append(match.group())
        found[name] = blocks.index(match.group()) + 1 if match else len(blocks)
    return found, len(blocks) + 1


def _without_decay(net: nn.Module, kinds: list[str]) -> set[str]:
    """Return the names of the parameters without weight decay. kinds: any of norm (normalisation layers, and scales of
    one value per channel, such as LayerScale), bias (parameters whose name ends in bias) and embedding (tokens and
    positions). With any of these, the parameters that a net of timm names in no_weight_decay() have none either."""
    names: Any = getattr(net, "no_weight_decay", None)
    patterns: set[str] = names() if names and kinds else set()
    found: set[str] = set()
    for prefix, module in cast("Iterator[tuple[str, nn.Module]]", net.named_modules()):
        is_norm = "norm" in type(module).__name__.lower() or "normalization" in type(module).__module__
        for name, parameter in module.named_parameters(prefix, recurse=False):
            is_bias = name.endswith("bias")
            is_scale = not is_bias and (parameter.dim() < 2 or name.endswith(_SCALES))
            if (
                ("norm" in kinds and (is_norm or is_scale))
                or ("bias" in kinds and is_bias)
                or ("embedding" in kinds and _EMBEDDING.search(name))
                or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)
            ):
                found.add(name)
    return found
