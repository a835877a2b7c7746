"""Compare predictors on the same images: the checkpoint's validation images, files, or random ones."""

from collections.abc import Callable, Iterator
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
    """How the predictions of a file differ from those of its checkpoint."""

    images: str  # kind of images, such as "validation images"
    num_images: int
    max_difference: float  # of a probability
    num_same_top1: int
    top1: tuple[float, float] | None  # fractions, of the checkpoint and of the file; None: the classes are unknown

    def sentence(self, name: str) -> str:
        top1 = "" if self.top1 is None else f"; top-1 {percent(self.top1[1])} and {percent(self.top1[0])}"
        return (
            f"{name} and the checkpoint on {self.num_images} {self.images}: probabilities differ by at most "
            f"{self.max_difference:.1e}, same top-1 class for {self.num_same_top1}{top1}."
        )


def compare(checkpoint: Predictor, file: Predictor, samples: Samples) -> Comparison:
    """Compare the probabilities of a file with those of its checkpoint. Raises ConfigError if no image can be read."""
    difference, num_same, num_images, correct = 0.0, 0, 0, np.zeros(2)
    for pictures in samples.chunks():
        found = torch.stack(
            [
                each.probabilities([each.read.prepare(image) for image in pictures.values()])
                for each in (checkpoint, file)
            ]
        )
        difference = max(difference, (found[1] - found[0]).abs().nan_to_num(torch.inf).max().item())
        tops = found.argmax(dim=2).numpy()
        num_same += int((tops[1] == tops[0]).sum())
        correct += 0 if samples.targets is None else (tops == samples.targets[[*pictures]]).sum(axis=1)
        num_images += len(pictures)
    if not num_images:
        raise ConfigError(
            f"at least one of the {samples.what} must be readable, but none is. Hint: set images=FOLDER to a folder of "
            "readable images."
        )
    top1 = None if samples.targets is None else (correct[0] / num_images, correct[1] / num_images)
    return Comparison(samples.what, num_images, difference, num_same, top1)


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
