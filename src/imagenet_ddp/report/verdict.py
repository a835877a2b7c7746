"""Say which of two nets to keep, from their predictions for the same images."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from imagenet_ddp.curation.interval import images_to_decide, paired_interval
from imagenet_ddp.report.error_analysis import calibration_bins, calibration_error
from imagenet_ddp.system.text import format_loss, percent

BEYOND_CHANCE = 1.96  # standard errors
LEAST = 20  # images; the standard error of fewer losses is itself a guess, and that of one is 0


@dataclass(frozen=True)
class Verdict:
    """right, confidence: of the old and the new net, (N,) each. losses: of those whose label has not changed, (M,).
    is_same: the two have the same weights."""

    right: Sequence[np.ndarray]
    losses: Sequence[np.ndarray]
    confidence: Sequence[np.ndarray]
    is_same: bool

    @cached_property
    def _counts(self) -> tuple[int, int, int, int]:
        old, new = self.right
        both, first, second, neither = (int(each.sum()) for each in (old & new, old & ~new, ~old & new, ~old & ~new))
        return both, first, second, neither

    @cached_property
    def ends(self) -> tuple[float, float]:
        """Return the 95 % interval of the difference of the accuracies."""
        return paired_interval(*self._counts)

    @property
    def difference(self) -> float:
        _, first, second, _ = self._counts
        return (second - first) / len(self.right[0])

    @property
    def words(self) -> str:
        _, first, second, _ = self._counts
        if self.is_same:
            return f"both nets have the same weights{', evaluated with different options' * (first + second > 0)}"
        if self.is_open:
            return "the difference may be chance"
        return f"the new net is {'better' if self.ends[0] > 0 else 'worse'}"

    @property
    def is_open(self) -> bool:
        """Return whether more images may still show either net to be the better one."""
        return not self.is_same and self.ends[0] <= 0 <= self.ends[1]

    @property
    def probabilities(self) -> str:
        """Return how well the probabilities of both fit."""
        old, new = (format_loss(float(each.mean()) if len(each) else math.nan) for each in self.losses)
        num_kept = len(self.losses[0])
        some = f" of the {num_kept:,} whose label has not changed" if num_kept < len(self.right[0]) else ""
        errors = (calibration_error(calibration_bins(*each)) for each in zip(self.confidence, self.right, strict=True))
        old_error, new_error = (percent(each) for each in errors)
        return f"Mean loss{some} {new}, was {old}; calibration error {new_error}, was {old_error}."

    @cached_property
    def kept(self) -> str:
        """Return old or new, whichever is better beyond chance by the accuracy, else by the loss; "" if neither is."""
        if self.is_same:
            return ""
        if not self.is_open:
            return "new" if self.ends[0] > 0 else "old"
        change = self.losses[1] - self.losses[0]
        if len(change) < LEAST or not abs(change.mean()) > BEYOND_CHANCE * change.std() / len(change) ** 0.5:
            return ""
        return "new" if change.mean() < 0 else "old"

    @property
    def advice(self) -> str:
        """Return which net to keep, and why."""
        if self.is_same:
            return "Keep either."
        if not self.is_open:
            return f"Keep the {self.kept} net: the other is right less often, and by more than chance explains."
        number = images_to_decide(*self._counts)
        which = (
            "they are right for equally many of these"
            if number is None
            else f"about {number:,} images like these would tell, if the nets differ on them as here"
        )
        better = (
            f"Until then, keep the {self.kept} net: its loss is lower by more than chance explains, so its "
            "probabilities fit better."
            if self.kept
            else "Until then, keep either: the loss does not tell them apart either."
        )
        return f"Which net is right more often is open: {which}. {better}"
