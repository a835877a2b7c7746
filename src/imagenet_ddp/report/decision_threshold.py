"""Of two classes, such as healthy and ill, say what each decision threshold finds, and what it takes wrongly."""

import math
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from imagenet_ddp.curation.accuracies import share_words
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.system.text import percent

AT_LEAST = (0.99, 0.95, 0.9, 0.8)  # shares of the class to be found
LEAST_IMAGES = 10  # of each class; of fewer, a threshold is that of one image
_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True)
class OperatingPoint:
    """What is right and wrong from one probability on. goal: share of the class to be found at least; None: the
    threshold is 50 %, as in predict. num_found: of the images of the class. num_false: images of the other class that
    are taken for it."""

    goal: float | None
    threshold: float
    num_found: int
    num_false: int


@dataclass(frozen=True)
class Thresholds:
    """label: of the class to find, the rarer one. other: label of the other one. num_images: of the class, and of the
    other one."""

    label: str
    other: str
    num_images: tuple[int, int]
    auroc: str
    points: list[OperatingPoint]

    @property
    def rows(self) -> list[tuple[str, str, str, str, str]]:
        """Return the cells of each row: what is wanted, the threshold, the sensitivity, the specificity, and how many
        of the images above the threshold belong to the class."""
        number, num_others = self.num_images
        return [
            (
                "as predict says" if each.goal is None else f"{percent(each.goal, 0)} found",
                f"{100 * each.threshold:.3g} %",
                _share(each.num_found, number),
                _share(num_others - each.num_false, num_others),
                f"{each.num_found:,} of {each.num_found + each.num_false:,}",
            )
            for each in self.points
        ]


def thresholds(found: Predictions) -> Thresholds | None:
    """Return what each threshold does; None if there are not two classes, each with LEAST_IMAGES."""
    counts = np.bincount(found.target, minlength=len(found.classes))
    if len(counts) != 2 or counts.min() < LEAST_IMAGES or found.top.shape[1] < 2:
        return None
    wanted = int(counts[1] <= counts[0])
    scores = np.nan_to_num(np.where(found.top == wanted, found.top_probability, 0).sum(1))
    is_wanted = found.target == wanted
    points = [operating_point(scores, is_wanted, goal) for goal in (None, *AT_LEAST)]
    number = int(counts[wanted])
    return Thresholds(
        found.labels[wanted],
        found.labels[1 - wanted],
        (number, len(found) - number),
        auroc_words(scores[is_wanted], scores[~is_wanted]),
        points,
    )


def operating_point(scores: np.ndarray, is_wanted: np.ndarray, goal: float | None) -> OperatingPoint:
    """Return the highest threshold that finds the share `goal` of the images of the class, rounded down to three digits
    that count, because it is typed as it is shown. scores: probabilities of the class, (N,). is_wanted: bool (N,)."""
    ordered = np.sort(scores[is_wanted])[::-1]
    threshold = 0.5 if goal is None else _rounded_down(float(ordered[math.ceil(goal * len(ordered) - 1e-9) - 1]))
    is_said = scores >= threshold
    return OperatingPoint(goal, threshold, int((is_said & is_wanted).sum()), int((is_said & ~is_wanted).sum()))


def _rounded_down(share: float) -> float:
    unit = 10.0 ** (math.floor(math.log10(share)) - 2) if share > 0 else 1.0
    return math.floor(share / unit) * unit


def auroc_words(scores: np.ndarray, others: np.ndarray) -> str:
    """Return the area under the ROC curve as "0.947 (0.912 to 0.969)", with the 95 % interval of DeLong et al. 1988
    (Biometrics 44, 837) on the scale of the logit. scores, others: those of the images of the class, and of the other
    one."""
    # of each image, the share of those of the other class that have less; of each of those, the share that has more
    shares = _share_below(scores, others), 1 - _share_below(others, scores)
    area = float(shares[0].mean())
    variance = sum(float(each.var(ddof=1)) / len(each) for each in shares)
    if not 0 < area < 1:
        return f"{area:.3f}"
    half = _Z * variance**0.5 / (area * (1 - area))
    low, high = (1 / (1 + math.exp(-math.log(area / (1 - area)) - sign * half)) for sign in (-1, 1))
    return f"{area:.3f} ({low:.3f} to {high:.3f})"


def _share_below(scores: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return which share of the others is below each score, an equal one counting half, float64 (N,)."""
    ordered = np.sort(others)
    return (np.searchsorted(ordered, scores) + np.searchsorted(ordered, scores, "right")) / (2 * len(ordered))


def _share(number: int, of: int) -> str:
    return f"{share_words(number, of)} ({interval_words(number, of)})"
