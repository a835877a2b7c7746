"""Put the accuracies that were measured of a net into the order in which to believe them, in words."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from imagenet_ddp.curation.interval import interval, interval_words
from imagenet_ddp.system.text import count_noun, percent

TITLE = "What accuracy to expect on new images like these (95 % interval), the most reliable first"
UNEVEN = 0.6  # share of the most frequent class, from which on always answering it looks like a good net
FEW = 20  # images of a class; the interval of so few is 30 points wide, and more


def share_words(num_right: int, num_images: int, digits: int = 1) -> str:
    """Return an accuracy as text: one of 100 % as "20 of 20", because 100.0 % would look more exact than it is."""
    return f"{num_right:,} of {num_images:,}" if num_right == num_images else percent(num_right / num_images, digits)


def uneven_sentence(targets: np.ndarray, is_right: np.ndarray | None, labels: Sequence[str]) -> str:
    """Return what always answering the most frequent class would reach, beside the mean accuracy of the classes; "" if
    no class has most of the images. targets: int64 (N,). is_right: bool (N,); None: not known of each image."""
    counts = np.bincount(targets, minlength=len(labels))
    there = np.flatnonzero(counts)  # classes
    if len(there) < 2 or counts.max() <= UNEVEN * len(targets):
        return ""
    words = (
        f"Always answering {labels[int(counts.argmax())]} would be right for {percent(counts.max() / len(targets), 1)}"
    )
    if is_right is None:
        return f"{words}: look at the accuracy of each class, in the report."
    mean = float((np.bincount(targets[is_right], minlength=len(labels))[there] / counts[there]).mean())
    words += f": judge by the mean accuracy of the classes (balanced accuracy), {percent(mean, 1)}, which is "
    words += f"{percent(1 / len(there), 1)} for such a guess."
    least = int(there[counts[there].argmin()])
    if (number := int(counts[least])) < FEW:
        words += f" It is rough, because {labels[least]} has {count_noun(number, 'image')}."
    return words


def grouped_sentence(groups: np.ndarray | None) -> str:
    """Return that an interval is too narrow where several images are of one group, such as a patient; "" if they are
    not. groups: int64 (N,); None: each image is its own."""
    if groups is None or len(groups) < 2 * (number := len(np.unique(groups))):
        return ""
    return (
        f"The interval counts {len(groups):,} images, but these are of {count_noun(number, 'group')}: new groups may "
        "differ more than it says."
    )


class Measured(NamedTuple):
    """An accuracy. words: on what it was measured, and how. distance: 0 for that of this net, or of one that is made in
    the same way; 1 for that of the net before it was trained; 2 for that of another net, or at another image size."""

    num_right: int
    num_images: int
    words: str
    distance: int = 0

    @property
    def sentence(self) -> str:
        share = share_words(self.num_right, self.num_images)
        return f"{share} ({interval_words(self.num_right, self.num_images)}): {self.words}."

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.num_right, self.num_images)


def of_net(num_right: int, num_images: int, *, is_chosen: bool = False) -> Measured:
    """Return the accuracy of a net on its validation images. is_chosen: whether they have chosen its best epoch."""
    chosen = ", by which its best epoch was chosen: on new ones, it may be a little lower" if is_chosen else ""
    return Measured(num_right, num_images, f"this net, on {count_noun(num_images, 'validation image')}{chosen}")


def of_folds(num_right: int, num_images: int, by: str, *, distance: int = 0, but: str = "") -> Measured:
    """Return the accuracy of regressions to the features of images. by: who has fitted them, to which images. but: what
    else is different from the net."""
    before = ", on what the net gave before its training" if distance == 1 else ""
    return Measured(
        num_right, num_images, f"{by}, each predicted by a regression that had not learned it{before}{but}", distance
    )


def in_order(found: Iterable[Measured]) -> list[Measured]:
    """Return the nearest to the net first, and of equally near ones that of the most images."""
    return sorted(found, key=lambda each: (each.distance, -each.num_images))
