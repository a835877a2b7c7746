"""Create a net by name, with one output per class."""

import copy
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torchvision  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.nn.modules.module import register_module_parameter_registration_hook

from imagenet_ddp.config.paths import is_file
from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.config.section import make
from imagenet_ddp.errors import ConfigError, is_silent_end, place_of
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.models import timm_names
from imagenet_ddp.models.head import evaluating
from imagenet_ddp.models.layers import add_blur_pool
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import first_line


@contextmanager
def of_size(model: ModelConfig, weights: Mapping[str, Any], origin: str) -> Generator[None]:
    """Raise ConfigError if a net of a library that is made within has far more parameters than these weights: a file of
    a stranger says in model.args how large its net is. origin: the file, for the message."""
    if model.target:  # the user's own code, which may use a part of what it makes
        yield
        return
    stored = sum(each.numel() for each in weights.values() if isinstance(each, Tensor))
    most, found = 2 * stored + 1_000_000, 0  # a layer may be made twice

    error = ConfigError(
        f"{origin} must hold the weights of its net, but has {stored:,} values for a net of more than {most:,}. "
        "Hint: leave the model.* keys out, so that they have the values stored in the file."
    )

    def count(_module: nn.Module, _name: str, parameter: nn.Parameter | None) -> None:
        nonlocal found
        found += 0 if parameter is None else parameter.numel()  # before anything is written into its memory
        if found > most:
            raise error

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    except (MemoryError, RuntimeError) as reason:
        if isinstance(reason, RuntimeError) and "allocate" not in str(reason):
            raise
        raise error from reason
    finally:
        hook.remove()


def create_model(model: str | ModelConfig, num_classes: int, seed: int = 0, image_size: int = 224) -> nn.Module:
    """Return the net. The same seed yields the same initial weights in every process. model.weights is not read here;
    weights/load.py does that.

    model: a name in torchvision.models, or the model.* keys. image_size: height and width in pixels. Raises
    ConfigError if the net does not accept images of this size, or does not support one of the model.* keys.
    """
    if isinstance(model, str):
        model = ModelConfig(name=model)
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        torch.default_generator.manual_seed(seed)
        if model.target:
            net = make("model._target_", model.target, model.args, nn.Module, num_classes=num_classes)
        elif model.library == "timm":
            net = _from_timm(model, num_classes, image_size)
        else:
            net = _from_torchvision(model, num_classes, image_size)
    if model.blur_pool and not add_blur_pool(net):
        what = (
            "model.blur_pool needs a strided convolution with 16 or more input channels, but "
            f"model.name={model.name} has none"
        )
        raise ConfigError(Mistake(what, ("model.blur_pool", "model.name"), (setting("model.blur_pool=false"),)))
    if model.activation_checkpointing:
        try:
            net.set_grad_checkpointing()  # type: ignore[operator]  # a method of timm's nets
        except (AttributeError, AssertionError) as error:
            key = "model.activation_checkpointing"
            hint = "a smaller data.batch_size and trainer.accumulate_grad_batches"
            what = f"{key} needs a net of timm that supports it, got model.name={model.name}"
            keys = (key, "model.name", "model.library")
            raise ConfigError(Mistake(what, keys, (setting("model.library=timm"),), hint)) from error
    if not model.target:
        require_image_size(net, model.name, "data.image_size", image_size)
    return net.to(memory_format=torch.channels_last) if model.channels_last else net


def _from_torchvision(model: ModelConfig, num_classes: int, image_size: int) -> nn.Module:
    name, arguments = model.name, dict(model.args)
    if name in ("googlenet", "inception_v3"):
        # by default, these nets also return auxiliary outputs, and take half a minute to initialise
        arguments = {"aux_logits": False, "init_weights": False, **arguments}
        # torchvision's builders set this for their own weights, which were trained with another normalisation
        of_library = model.weights is not None and not is_file(model.weights)
        arguments = {"transform_input": of_library, **arguments}
    if name.startswith("vit_"):
        arguments = {"image_size": image_size, **arguments}
    if model.drop_path is not None:
        arguments["stochastic_depth_prob"] = model.drop_path
    if model.zero_init_last:
        arguments["zero_init_residual"] = True
    try:
        return torchvision.models.get_model(name, weights=None, num_classes=num_classes, **arguments)
    except TypeError as error:
        raise _refused(name, error) from error


def _from_timm(model: ModelConfig, num_classes: int, image_size: int) -> nn.Module:
    timm, name, arguments = import_timm(f"model.name={model.name}"), model.name, dict(model.args)
    # timm would ask a server, or unpickle the file; older versions leave out what follows a # in a name
    if not re.fullmatch(r"[\w.-]+", name) or "checkpoint_path" in arguments:
        raise ConfigError(
            "model.name must be a model of timm, and model.args have no checkpoint_path, got "
            f"{arguments.get('checkpoint_path', name)}. Hint: set the name of the net, and "
            "model.weights=hf://OWNER/NAME or model.weights=FILE."
        )
    if model.drop_path is not None:
        arguments["drop_path_rate"] = model.drop_path
    if model.zero_init_last:
        arguments["zero_init_last"] = True
    try:
        config = timm.get_pretrained_cfg(name)
        if config is not None and config.fixed_input_size:
            arguments = {"img_size": image_size, **arguments}
        return timm.create_model(name, pretrained=False, num_classes=num_classes, **arguments)
    except TypeError as error:
        raise _refused(name, error) from error
    except RuntimeError as error:  # timm raises it for an unknown name, or for weights that the net does not have
        of_net = timm.list_models(f"{name.partition('.')[0]}.*", pretrained=True)
        close = ", ".join(of_net[:3] or timm_names.nearest(name, timm.list_models()) or ["resnet18"])
        raise ConfigError(
            f"model.name must be a model of timm, got {name}. Hint: set a name such as {close}."
        ) from error


def require_logits(
    net: nn.Module, target: str, num_classes: int, image_size: int, device: torch.device, dtype: torch.dtype | None
) -> None:
    """Raise ConfigError if a net of the user's own does not map images (B, 3, H, W) to logits (B, num_classes), in
    training and in evaluation. target: its name. dtype: that of autocast on the device; None without it."""
    images = torch.zeros(2, 3, image_size, image_size, device=device)
    must = f"model._target_={target} must return logits (B, {num_classes}) for images {('B', *images.shape[1:])}"
    must = must.replace("'", "")
    copied = copy.deepcopy(net).to(device)  # because the call may change statistics
    for training in (True, False):
        autocast = torch.autocast(device.type, dtype, enabled=dtype is not None)
        try:
            with autocast, torch.no_grad(), torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
                found: Any = copied.train(training)(images)
        except Exception as error:
            if is_silent_end(error):  # which the training step reports
                return
            reason = f"{type(error).__name__}: {first_line(error).rstrip('.')} ({place_of(error)})"
            raise ConfigError(f"{must}, but raised {reason}. Hint: correct the net there.") from error
        shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        if shape != (2, num_classes):
            raise ConfigError(
                f"{must}, got {shape} for 2 images in {'training' if training else 'evaluation'}. "
                "Hint: end its forward in a layer with num_classes outputs, and return only those."
            )


def require_image_size(net: nn.Module, name: str, key: str, image_size: int) -> None:
    """Raise ConfigError if the net does not accept square images of image_size pixels. key: the option that sets the
    size.

    Evaluates one image. For small nets, this takes a fifth of the time that the meta device takes to compute shapes.
    """
    copied = copy.deepcopy(net).eval()  # because some nets of timm cache values of their weights in evaluation
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
            copied(torch.zeros(1, 3, image_size, image_size))
    except Exception as error:  # RuntimeError or AssertionError, depending on the net
        what = (
            f"model.name={name} must accept images of {key}={image_size} pixels, but does not "
            f"({first_line(error).rstrip('.')})"
        )
        way = setting("data.image_size=224" if key == "data.image_size" else f"{key}=null")
        raise ConfigError(Mistake(what, ("model.name", key), (way,), "choose another net")) from error


def require_batch(model: ModelConfig, net: nn.Module, images: int, image_size: int, smallest: int = 2) -> None:
    """Raise ConfigError if batch norm would see a single value per channel in training.

    images: the fewest images that a device gets from a full batch; more than one cannot fail.
    image_size: the smallest in training. smallest: data.batch_size that works. The net runs once in evaluation mode,
    which changes none of its statistics.
    """
    layers = [layer for layer in net.modules() if isinstance(layer, _BatchNorm)]
    is_frozen = model.batch_norm == "frozen" or (model.freeze and model.unfreeze_epoch is None)
    if images > 1 or is_frozen or not layers:
        return
    found: list[nn.Module] = []

    def look(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].numel() == inputs[0].shape[1]:
            found.append(layer)

    hooks = [layer.register_forward_pre_hook(look) for layer in layers]
    weight = next(net.parameters())
    try:
        with torch.no_grad(), evaluating(net):
            net.forward(weight.new_zeros(1, 3, image_size, image_size))  # also one that is compiled
    finally:
        for hook in hooks:
            hook.remove()
    if found:
        what = (
            f"each device must get at least 2 images of {image_size} pixels per forward pass, got 1, because batch "
            "norm of this net would have one value per channel"
        )
        raise ConfigError(Mistake(what, ("data.batch_size",), (setting(f"data.batch_size={smallest}"),)))


def depthwise_share(model: ModelConfig, image_size: int) -> float:
    """Return the share of depthwise convolutions in the multiplications of a forward pass, without computing one.

    Returns 0.0 for a class of the user's own, which may do anything when it is made,
    and for a net that cannot be made, which is reported where the net of the run is made.
    """
    if model.target:
        return 0.0
    counts = {True: 0, False: 0}

    def count(layer: nn.Conv2d | nn.Linear, _: Any, output: Tensor) -> None:
        is_depthwise = isinstance(layer, nn.Conv2d) and layer.groups == layer.in_channels > 1
        counts[is_depthwise] += output.numel() * layer.weight[0].numel()

    try:
        with torch.device("meta"), torch.no_grad():
            net = create_model(model, 1000, 0, image_size).eval()
            for layer in net.modules():
                if isinstance(layer, nn.Conv2d | nn.Linear):
                    layer.register_forward_hook(count)
            net(torch.zeros(1, 3, image_size, image_size))
    except Exception:  # of any kind, from torchvision or timm
        return 0.0
    return counts[True] / max(sum(counts.values()), 1)


def timm_name(name: str, weights: str | None) -> str:
    """Return timm's name of a model, including the tag of its weights: convnext_tiny.in21k for model.weights=in21k."""
    if weights in (None, "DEFAULT") or is_file(weights):
        return name
    return f"{name.partition('.')[0]}.{weights}"


def import_timm(what: str) -> Any:
    """Import and return the package timm. what: the option that needs it. Raises ConfigError if it is not installed."""
    if missing := missing_package(what, "timm"):
        raise ConfigError(missing)
    import timm

    return timm


def _refused(name: str, error: TypeError) -> ConfigError:
    return ConfigError(
        f"model.drop_path, model.zero_init_last and model.args must be options of model.name={name}, but it refuses "
        f"one ({first_line(error).rstrip('.')}). Hint: leave out the one that is named here."
    )
