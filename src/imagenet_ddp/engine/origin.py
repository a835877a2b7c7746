"""Compare a net and its preprocessing with those of the library that published it, which reads the weights and the
images with its own code. Weights whose names all fit can still give wrong predictions."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torchvision  # pyright: ignore[reportMissingTypeStubs]
from PIL import Image, ImageOps
from torch import Tensor, nn

from imagenet_ddp.config.paths import HUB, is_file
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.data.pixel_conversion import FORMATS
from imagenet_ddp.data.transforms import normalise
from imagenet_ddp.engine.plan import image_statistics
from imagenet_ddp.engine.predictor import load_net, make_predictor
from imagenet_ddp.engine.trained_model import load
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.export.formats import graph_format
from imagenet_ddp.models.factory import import_timm, timm_name
from imagenet_ddp.runs.checkpoint_file import is_own
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import expand_home
from imagenet_ddp.system.text import count_noun, load_error, percent

MOST_IMAGES = 64
SAME_WEIGHTS = 0.001  # largest difference on the same pixels, of logarithms of probabilities
SAME_PIXELS = 0.1  # mean difference with each side's own pixels, in standard deviations between images
LEAST = 1e-7  # smaller probabilities count as this one


def require_equal(config: CommonConfig, path: Path | None, paths: list[str]) -> None:
    """Compare the predictions for the first 64 images, on the CPU, and print the differences. Raises RunError if they
    are not those of rounding and decoding; ConfigError if there is no library to compare with, or if it cannot read the
    weights.

    config: result of stored_config.from_checkpoint. path: the file of checkpoint=; None: the weights of model.weights.
    """
    if path is not None and (graph_format(path) or is_own(path)):
        raise ConfigError(
            f"compare_origin=true needs weights of another program, got {path} of this one. "
            "Hint: leave compare_origin out."
        )
    trained = load(config, path)
    net, transform, library = _open_origin(config.model, path, len(trained.classes))
    predictor = make_predictor(config, trained, load_net(config, trained), torch.device("cpu"))
    mean, std = (choice.value for choice in image_statistics(config).values())
    pixels: list[Tensor] = []
    same: list[Tensor] = []
    own: list[Tensor] = []
    with torch.inference_mode():
        for each in paths[:MOST_IMAGES]:
            if isinstance(image := predictor.read(each), Tensor):
                pixels.append(image)
                same.append(net(normalise(image[None], mean, std, channels_last=False)))
                with Image.open(each, formats=FORMATS) as opened:
                    turned = ImageOps.exif_transpose(opened) if config.data.exif_orientation else opened
                    own.append(net(transform(turned.convert("RGB"))[None]))
    if len(pixels) < 2:
        raise ConfigError(
            f"compare_origin=true needs two images that can be read, got {len(pixels)}. Hint: set images=FOLDER."
        )
    ours = predictor.probabilities(pixels).clamp(LEAST).log()
    on_same, on_own = (torch.cat(logits).softmax(1).clamp(LEAST).log() for logits in (same, own))
    of_weights = float((ours - on_same).abs().max())
    # weights that give all images nearly the same probabilities do not show a difference of the pixels
    spread = max(float(on_own.std(0).mean()), 10 * SAME_WEIGHTS)
    of_pixels = float((ours - on_own).abs().mean()) / spread
    equal = float((ours.argmax(1) == on_own.argmax(1)).double().mean())
    print_message(
        f"The same pixels, the weights as {library} reads them: the log-probabilities of "
        f"{count_noun(len(pixels), 'image')} differ by at most {of_weights:.2g} (allowed: {SAME_WEIGHTS:g})."
    )
    print_message(
        f"The pixels as {library} reads them, too: they differ by {of_pixels:.2g} of their standard deviation on "
        f"average (allowed: {SAME_PIXELS:g}), and the top class is the same for {percent(equal, 0)}."
    )
    if of_weights > SAME_WEIGHTS:
        raise RunError(f"The net must compute what that of {library} computes, but its predictions differ.")
    if of_pixels > SAME_PIXELS:
        raise RunError(
            f"The pixels must be those of {library}, but the predictions differ. Hint: leave out data.* options."
        )


def _open_origin(
    model: ModelConfig, path: Path | None, num_classes: int
) -> tuple[nn.Module, Callable[[Image.Image], Tensor], str]:
    """Return (the library's net in evaluation mode, its preprocessing, its name and version)."""
    value = str(path) if path is not None else str(model.weights)
    if model.target:
        raise ConfigError("compare_origin=true needs a net of torchvision or timm. Hint: leave compare_origin out.")
    file = expand_home(value) if is_file(value) and not value.startswith(HUB) else None
    try:
        if model.library == "timm":
            return _of_timm(model, value, file, num_classes)
        return _of_torchvision(model, value, file, num_classes)
    except ConfigError:
        raise
    except Exception as error:  # of their loaders: missing names, other shapes, unknown forms
        raise ConfigError(
            f"compare_origin=true needs weights that {model.library} reads, but it refuses {value} "
            f"({load_error(error)}). Hint: leave compare_origin out."
        ) from error


def _of_timm(model: ModelConfig, value: str, file: Path | None, num_classes: int) -> Any:
    timm = import_timm("compare_origin=true")
    if file is not None:
        net = timm.create_model(model.name, num_classes=num_classes, checkpoint_path=str(file), **model.args)
    elif value.startswith(HUB):
        net = timm.create_model(f"hf-hub:{value.removeprefix(HUB).strip('/')}", pretrained=True, **model.args)
    else:
        net = timm.create_model(timm_name(model.name, model.weights), pretrained=True, **model.args)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(net))
    return net.eval(), transform, f"timm {timm.__version__}"


def _of_torchvision(model: ModelConfig, value: str, file: Path | None, num_classes: int) -> Any:
    kinds: Any = torchvision.models.get_model_weights(model.name)  # pyright: ignore[reportUnknownMemberType]
    library = f"torchvision {torchvision.__version__}"
    if file is None:
        entry = kinds[value]
        return torchvision.models.get_model(model.name, weights=entry, **model.args).eval(), entry.transforms(), library
    net = torchvision.models.get_model(model.name, num_classes=num_classes, **model.args)
    net.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    return net.eval(), next(iter(kinds)).transforms(), library
