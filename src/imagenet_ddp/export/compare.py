"""Compare predictors on the same images: the checkpoint's validation images, files, or random ones."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.config.schema.commands import ExportConfig
from imagenet_ddp.data import check_data
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


@dataclass(frozen=True)
class Comparison:
    """How the predictions of a file differ from those of its checkpoint."""

    images: str  # kind of images, such as "validation images"
    num_images: int
    max_difference: float  # of a probability
    num_same_top1: int
    top1: tuple[float, ...] | None  # fractions, of the checkpoint and of the file; None: the classes are unknown

    def sentence(self, name: str) -> str:
        top1 = "" if self.top1 is None else f"; top-1 {percent(self.top1[1])} and {percent(self.top1[0])}"
        return (
            f"{name} and the checkpoint on {self.num_images} {self.images}: probabilities differ by at most "
            f"{self.max_difference:.1e}, same top-1 class for {self.num_same_top1}{top1}."
        )


def compare(checkpoint: Predictor, file: Predictor, samples: Samples) -> Comparison:
    """Compare the probabilities of a file with those of its checkpoint. Unreadable images are left out; raises
    ConfigError if none can be read."""
    positions: list[int] = []
    parts: list[Tensor] = []
    for start in range(0, samples.num_images, _CHUNK):
        pictures: dict[int, Tensor] = {}
        for position in range(start, min(start + _CHUNK, samples.num_images)):
            with suppress(UnreadableImage, OSError):
                pictures[position] = samples.read(position)
        if pictures:
            positions += pictures
            both = [
                each.probabilities([each.read.prepare(image) for image in pictures.values()])
                for each in (checkpoint, file)
            ]
            parts.append(torch.stack(both))
    if not parts:
        raise ConfigError(f"at least one of the {samples.what} must be readable, but none is. Hint: set images=FOLDER.")
    found = torch.cat(parts, dim=1)  # (2, images, classes)
    difference = (found[1] - found[0]).abs().nan_to_num(torch.inf).max().item()
    tops = found.argmax(dim=2).numpy()
    top1 = None
    if samples.targets is not None:
        top1 = tuple((tops == samples.targets[positions]).mean(axis=1).tolist())
    return Comparison(samples.what, len(positions), difference, int((tops[1] == tops[0]).sum()), top1)


def find_samples(config: ExportConfig, trained: TrainedModel, is_data_typed: bool) -> tuple[Samples, str]:
    """Return (the images to compare on, why they are random). The reason is "" if they are not random. is_data_typed:
    options of the data were typed, so data that cannot be opened raise ConfigError."""
    if config.images is not None:
        return _files(config, config.images), ""
    if trained.contents or is_data_typed:
        mistakes = check_data.validate(config.data, verb="evaluate")
    else:  # data.* has the default, which is not what these weights were trained on
        mistakes = ["data must be set, because these weights do not name their data. Hint: set data= and data.root=."]
    if not mistakes:
        return _of_source(config, trained), ""
    if is_data_typed:
        raise ConfigError(mistakes)
    return _random(), mistakes[0]


def _of_source(config: ExportConfig, trained: TrainedModel) -> Samples:
    """Return config.num_images evenly spaced validation images."""
    source = open_source(config.data, config.seed, verb="evaluate")
    images = source.val
    assert images is not None
    chosen = _evenly(len(images), config.num_images)
    targets = trained.positions(source)[images.targets[chosen]]
    return Samples("validation images", len(chosen), lambda position: images.read(int(chosen[position])), targets)


def _files(config: ExportConfig, pattern: str) -> Samples:
    paths = find_images(pattern)
    reading = Reading(config.data.decoder, config.data.exif_orientation)
    chosen = [paths[position] for position in _evenly(len(paths), config.num_images)]
    return Samples("images", len(chosen), lambda position: decode(read_file(chosen[position]), "", reading))


def _random() -> Samples:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(64, 640, (_NUM_RANDOM, 2), generator=generator).tolist()
    images = [torch.randint(0, 256, (3, *size), generator=generator, dtype=torch.uint8) for size in sizes]
    return Samples("random images", _NUM_RANDOM, images.__getitem__)


def _evenly(length: int, most: int) -> np.ndarray:
    return np.linspace(0, length - 1, min(length, most)).round().astype(np.int64)
