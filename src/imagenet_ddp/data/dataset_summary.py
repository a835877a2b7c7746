"""Describe the images of a source for doctor and prepare=check, from the source that training opens, and read a sample
of them."""

import itertools
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data import check_data
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.mistakes import Mistake

UNEVEN = 10  # a larger ratio of the largest class to the smallest is noted


@dataclass
class Split:
    images: Images
    counts: dict[str, int]  # class -> number of images, for the classes that have images
    samples: list[int]  # position of one image of each class, in random order

    @property
    def num_images(self) -> int:
        return len(self.images)


@dataclass
class DatasetSummary:
    """What was found. mistakes: messages with a hint. notes: other remarks."""

    mistakes: Sequence[str | Mistake]
    notes: list[str] = field(default_factory=list)
    splits: dict[str, Split] = field(default_factory=dict)  # train, val; empty if the images must first be made
    num_classes: int | None = None


def summarise(data: DataConfig, seed: int) -> DatasetSummary:
    """Check a data set and count its images without writing, generating or downloading anything. Raises ConfigError for
    what is found only by opening the source."""
    mistakes, found = check_data.inspect(data, seed)
    if mistakes or found is None:
        return DatasetSummary(mistakes)
    if pending := found.pending:
        return DatasetSummary([], [pending.note], num_classes=pending.num_classes)
    return summarise_source(seed, open_source(data, seed, found=found))


def summarise_source(seed: int, source: Source) -> DatasetSummary:
    """Count the images of an opened source, and find what training accepts but hardly anyone wants."""
    summary = DatasetSummary(
        source.doubts, [note.rstrip(".") for note in source.notes], num_classes=len(source.classes)
    )
    for name, images in source.splits.items():
        split = summary.splits[name] = _split(images, source.classes, seed)
        least, most = (choose(split.counts, key=split.counts.__getitem__) for choose in (min, max))
        if split.counts[most] > UNEVEN * split.counts[least]:
            summary.notes.append(
                f"{name} is imbalanced: {split.counts[most]:,} images of {most}, {split.counts[least]:,} of {least}"
            )
    if len(summary.splits) == 2 and summary.splits["val"].num_images > summary.splits["train"].num_images:
        summary.notes.append("there are more validation images than training images: are the two splits swapped?")
    return summary


def _split(images: Images, classes: list[str], seed: int) -> Split:
    order = np.random.default_rng(seed % 2**64).permutation(len(images))
    named = {
        name: count for name, count in zip(classes, images.num_of_each(len(classes)).tolist(), strict=True) if count
    }
    if images.targets.ndim == 2:  # several labels: any images
        return Split(images, named, order[: len(named)].tolist())
    _, positions = np.unique(images.targets[order], return_index=True)
    samples = order[positions].tolist()
    random.Random(seed).shuffle(samples)
    return Split(images, named, samples)


@dataclass
class SampleReading:
    """Result of reading images from the disk and decoding them in one thread."""

    num_read: int = 0
    seconds: float = 0.0
    mistakes: list[str] = field(default_factory=list)

    @property
    def images_per_s(self) -> float:
        return self.num_read / self.seconds if self.num_read else 0.0


def read_samples(summary: DatasetSummary, budget_s: float = 5.0) -> SampleReading:
    """Read one image of each class and split, alternating between the splits, until budget_s seconds have passed."""
    splits = summary.splits.values()
    turns = itertools.zip_longest(*([(split.images, index) for index in split.samples] for split in splits))
    begin_s, found = time.monotonic(), SampleReading()
    for images, index in (each for each in itertools.chain.from_iterable(turns) if each):
        start_s = time.monotonic()
        try:
            picture = images.open(index)
            picture.region(0, 0, picture.height, picture.width)
            found.num_read, found.seconds = found.num_read + 1, found.seconds + time.monotonic() - start_s
        except OSError as error:
            found.mistakes.append(f"{images.path(index)} cannot be read: {error.strerror}. Hint: copy that file again.")
        except UnreadableImage as error:
            found.mistakes.append(f"{str(error).rstrip('.')}. Hint: copy that file again, or remove it.")
        if time.monotonic() - begin_s > budget_s:
            break
    return found
