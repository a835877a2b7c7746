"""Say which of two nets to keep, and how sure that is, from their predictions for the same images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from imagenet_ddp.curation.accuracies import share_words
from imagenet_ddp.curation.interval import images_to_decide, interval, interval_words, paired_interval
from imagenet_ddp.report.error_analysis import calibration_bins, calibration_error
from imagenet_ddp.system.text import class_list, count_noun, format_loss, percent

BEYOND_CHANCE = 1.96  # standard errors
LEAST = 20  # images; the standard error of fewer losses is itself a guess, and that of one is 0


def points(share: float) -> str:
    """Return the size of a difference of accuracies, as in "6.2 points"."""
    text = f"{100 * abs(share):.1f}"
    return text if float(text) else "less than 0.1"


@dataclass(frozen=True)
class Verdict:
    """names: of the two nets. right, confidence: (N,) each. losses: of the images that have the same label in both
    evaluations, (M,) each. only: labels of the classes that each alone knows. is_same: they have the same weights.
    folds: (right images, all images) of each net, by folds over the training images of both; [] if not known."""

    names: Sequence[str]
    right: Sequence[np.ndarray]
    losses: Sequence[np.ndarray]
    confidence: Sequence[np.ndarray]
    only: Sequence[list[str]]
    is_same: bool
    folds: Sequence[tuple[int, int]] = ()

    @cached_property
    def counts(self) -> tuple[int, int, int, int]:
        """Return how many images both, only the first, only the second, and neither of the nets predicts correctly."""
        one, other = self.right
        first, second = int((one & ~other).sum()), int((other & ~one).sum())
        return int((one & other).sum()), first, second, int((~one & ~other).sum())

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Return the 95 % interval of the accuracy of the second net minus that of the first."""
        return paired_interval(*self.counts)

    @property
    def is_open(self) -> bool:
        """Return whether more images may still show either net to be the better one."""
        return not self.is_same and self.ends[0] <= 0 <= self.ends[1] and self.by_folds is None

    @cached_property
    def by_folds(self) -> int | None:
        """Return the position of the net that is better by folds: where the images leave it open, and the intervals of
        the folds have nothing in common. They are not paired, so that tells less than it could, but nothing false."""
        if not self.folds or self.is_same or not self.ends[0] <= 0 <= self.ends[1]:
            return None
        (low, high), (other_low, other_high) = (interval(*each) for each in self.folds)
        return int(other_low > high) if other_low > high or low > other_high else None

    @cached_property
    def kept(self) -> int | None:
        """Return the position of the net that is better beyond chance by accuracy, else of the one that knows more
        classes or, of the same classes, is better beyond chance by loss; None: neither is."""
        if self.is_same:
            return None
        if self.by_folds is not None:
            return self.by_folds
        if not self.is_open:
            return int(self.ends[0] > 0)
        if any(self.only):
            return None if all(self.only) else int(bool(self.only[1]))
        change = self.losses[1] - self.losses[0]
        if len(change) < LEAST or not abs(change.mean()) > BEYOND_CHANCE * change.std() / len(change) ** 0.5:
            return None
        return int(change.mean() < 0)

    @cached_property
    def used(self) -> int:
        """Return the position of the net to use: the one to keep or, of two that may be kept, the one that is right
        more often, else the one with the lower loss, else the second."""
        ranks = [(int(right.sum()), -float(loss.sum())) for right, loss in zip(self.right, self.losses, strict=True)]
        return int(ranks[1] >= ranks[0]) if self.kept is None else self.kept

    @property
    def title(self) -> str:
        which = "either net" if self.kept is None else self.names[self.kept]
        lost = any(self.only) if self.kept is None else self.only[1 - self.kept]
        known = " for the classes that both know" if lost else ""
        return f"{'For now, keep' if self.is_open else 'Keep'} {which}{known}"

    @property
    def other_classes(self) -> list[str]:
        """Return a sentence about the classes that one of the nets alone knows."""
        return [
            f"Only {name} knows {class_list(labels)}: keep it for images of {'those' if labels[1:] else 'that class'}."
            for name, labels in zip(self.names, self.only, strict=True)
            if labels
        ]

    @property
    def reason(self) -> str:
        """Return how often each net is right, and how sure it is that one is better."""
        total, num_right = len(self.right[0]), [int(each.sum()) for each in self.right]
        best = int(num_right[1] > num_right[0])
        (name, most), (other, least) = ((self.names[each], num_right[each]) for each in (best, 1 - best))
        of_all = f"{most:,} of {count_noun(total, 'image')} ({percent(most / total, 1)})"
        how_often = f"{'It' if best == self.kept else name} is right for {of_all}, {other} for {least:,} "
        how_often += f"({percent(least / total, 1)})."
        if most == least:
            how_often = f"{name} and {other} are each right for {of_all}."
        if self.is_same:
            how = ", evaluated with different options" * any(self.counts[1:3])
            return f"{how_often} Both have the same weights{how}."
        if self.by_folds is not None:
            return (
                f"{self._folds_words}, more than chance explains: these 95 % intervals have nothing in common. "
                f"{how_often} That alone leaves open which is better."
            )
        folds = f" {self._folds_words}." if self.folds else ""
        low, high = self.ends if best else (-self.ends[1], -self.ends[0])
        if not self.is_open:
            return (
                f"{how_often} That is more than chance explains: for new images like these, expect its accuracy to be "
                f"{points(low)} to {points(high)} points higher (95 % interval).{folds}"
            )
        return (
            f"{how_often} Which is better is open: for new images like these, the accuracy of {name} is between "
            f"{points(low)} points lower and {points(high)} points higher (95 % interval).{folds}{self._what_tells}"
        )

    @property
    def _folds_words(self) -> str:
        """Return what the folds say, the better net first; only if there are some."""
        (name, first), (other, second) = sorted(zip(self.names, self.folds, strict=True), key=lambda each: -each[1][0])
        shares = [f"{share_words(*each)} ({interval_words(*each)})" for each in (first, second)]
        by = f"By five folds over all {first[1]:,} training images"
        return f"{by}, {name} is right for {shares[0]}, {other} for {shares[1]}"

    @property
    def _what_tells(self) -> str:
        number = images_to_decide(*self.counts)
        tells = f" About {number:,} images like these would tell, if the nets differ on them as here." if number else ""
        if any(self.only):
            return tells
        if self.kept is None:
            return f"{tells} The loss does not tell them apart either."
        name = self.names[self.kept]
        return f"{tells} The loss of {name} is lower by more than chance explains, so its probabilities fit better."

    @property
    def figures(self) -> list[tuple[str, str]]:
        """Return (name, accuracy) of each net."""
        return [(name, percent(float(each.mean()), 1)) for name, each in zip(self.names, self.right, strict=True)]

    @property
    def measured(self) -> list[tuple[str, list[str]]]:
        """Return what was measured, as (words, text of each net)."""
        total, kept = len(self.right[0]), len(self.losses[0])
        some = f" of the {kept:,} whose label has not changed" if kept < total else ""
        errors = [calibration_error(calibration_bins(*each)) for each in zip(self.confidence, self.right, strict=True)]
        return [
            ("Accuracy, 95 % interval", [interval_words(int(each.sum()), total) for each in self.right]),
            (f"Mean loss{some}", [format_loss(float(each.mean()) if kept else math.nan) for each in self.losses]),
            ("Calibration error", [*map(percent, errors)]),
        ]
