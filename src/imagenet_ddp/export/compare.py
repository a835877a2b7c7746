"""Compare predictors on the same images: the checkpoint's validation images, files, or random ones."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.data import validate as data_validate
from imagenet_ddp.data.decode import Reading, UnreadableImage, decode
from imagenet_ddp.data.sources.files import find_images, read_file
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.engine.predictor import Predictor
from imagenet_ddp.engine.trained_model import TrainedModel
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import percent

_CHUNK = 4  # number of images in memory at a time; they have their original size
_NUM_RANDOM = 16


@dataclass(frozen=True)
class Samples:
    """Images on which predictors are compared. read: maps a position to uint8 (3, H, W). targets: int64 (N,), positions
    in the checkpoint's classes; None if unknown."""

    what: str  # such as "validation images"
    num_images: int
    read: Callable[[int], Tensor]
    targets: np.ndarray | None = None

    def chunks(self) -> Iterator[dict[int, Tensor]]:
        """Yield a few images at a time, as position -> image. Unreadable images are left out."""
        for start in range(0, self.num_images, _CHUNK):
            found: dict[int, Tensor] = {}
            for position in range(start, min(start + _CHUNK, self.num_images)):
                with suppress(UnreadableImage, OSError):
                    found[position] = self.read(position)
            if found:
                yield found


@dataclass(frozen=True)
class Comparison:
    """Results with one value per predictor. Differences and agreement are relative to the first predictor."""

    images: str  # kind of images, such as "validation images"
    num_images: int
    max_difference: list[float]
    num_same_top1: list[int]
    top1: list[float] | None  # fractions; None: the classes are unknown

    def sentence(self, name: str) -> str:
        top1 = "" if self.top1 is None else f"; top-1 {percent(self.top1[1])} and {percent(self.top1[0])}"
        return (
            f"{name} and the checkpoint on {self.num_images} {self.images}: probabilities differ by at most "
            f"{self.max_difference[1]:.1e}, same top-1 class for {self.num_same_top1[1]}{top1}."
        )


def compare(predictors: Sequence[Predictor], samples: Samples) -> Comparison:
    """Compare the probabilities of several predictors. Raises ConfigError if no image can be read."""
    differences, same, correct = (np.zeros(len(predictors)) for _ in range(3))
    num_images = 0
    for pictures in samples.chunks():
        found = torch.stack(
            [each.probabilities([each.read.prepare(image) for image in pictures.values()]) for each in predictors]
        )
        tops = found.argmax(dim=2).numpy()
        differences = np.fmax(differences, (found - found[0]).abs().amax(dim=(1, 2)).nan_to_num(torch.inf).numpy())
        same += (tops == tops[0]).sum(axis=1)
        correct += 0 if samples.targets is None else (tops == samples.targets[[*pictures]]).sum(axis=1)
        num_images += len(pictures)
    if not num_images:
        raise ConfigError(
            f"at least one of the {samples.what} must be readable, but none is. Hint: set images=FOLDER to a folder of "
            "readable images."
        )
    top1 = None if samples.targets is None else (correct / num_images).tolist()
    return Comparison(samples.what, num_images, differences.tolist(), same.astype(int).tolist(), top1)


def find_samples(
    config: Mapping[str, Any], trained: TrainedModel, environ: Mapping[str, str], is_data_typed: bool
) -> tuple[Samples, str]:
    """Return (the images to compare on, why they are random). The reason is "" if they are not random. is_data_typed:
    options of the data were typed, so data that cannot be opened raise ConfigError, as they do for int8."""
    if config["images"] is not None:
        return _files(config), ""
    if trained.contents or is_data_typed:
        mistakes = data_validate.validate(config, environ, verb="evaluate")
    else:  # data.* has the default, which is not what these weights were trained on
        mistakes = ["data must be set, because these weights do not name their data. Hint: set data= and data.root=."]
    if not mistakes:
        return of_source(config, trained, environ, "validation"), ""
    if is_data_typed or config["int8"]:
        raise ConfigError(mistakes)
    return _random(), mistakes[0]


def of_source(config: Mapping[str, Any], trained: TrainedModel, environ: Mapping[str, str], split: str) -> Samples:
    """Return config["num_images"] evenly spaced images of a data set. split: training or validation."""
    source = open_source(config["data"], config["seed"], environ, verb="train" if split == "training" else "evaluate")
    images = source.train if split == "training" else source.val
    assert images is not None
    chosen = _evenly(len(images), config["num_images"])
    targets = trained.positions(source)[images.targets[chosen]]
    return Samples(f"{split} images", len(chosen), lambda position: images.read(int(chosen[position])), targets)


def for_calibration(config: Mapping[str, Any], trained: TrainedModel, environ: Mapping[str, str]) -> Samples:
    """Return training images for the calibration, or validation images if there are no training images. Raises
    ConfigError if there are neither."""
    if not data_validate.validate(config, environ):
        return of_source(config, trained, environ, "training")
    if mistakes := data_validate.validate(config, environ, verb="evaluate"):
        raise ConfigError(mistakes)
    return of_source(config, trained, environ, "validation")


def _files(config: Mapping[str, Any]) -> Samples:
    paths = find_images(config["images"])
    reading = Reading(config["data"]["decoder"], config["data"]["exif_orientation"])
    chosen = [paths[position] for position in _evenly(len(paths), config["num_images"])]
    return Samples("images", len(chosen), lambda position: decode(read_file(chosen[position]), "", reading))


def _random() -> Samples:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(64, 640, (_NUM_RANDOM, 2), generator=generator).tolist()
    images = [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]
    return Samples("random images", _NUM_RANDOM, images.__getitem__)


def _evenly(length: int, most: int) -> np.ndarray:
    return np.linspace(0, length - 1, min(length, most)).round().astype(np.int64)
