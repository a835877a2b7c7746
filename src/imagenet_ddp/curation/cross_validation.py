"""Estimate the accuracy of a logistic regression on new photographs, from folds of those that are there."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from imagenet_ddp.curation.interval import interval
from imagenet_ddp.data.sources.base import positions_of_each
from imagenet_ddp.models.regression import PrincipalAxes
from imagenet_ddp.system.text import count_noun

NUM_FOLDS = 5
HELPS = 1.0  # points of accuracy from twice as many images, from which on more photographs are worth taking


@dataclass(frozen=True)
class Accuracy:
    """An accuracy, with its 95 % interval."""

    num_right: int
    num_images: int

    @property
    def share(self) -> float:
        return self.num_right / max(self.num_images, 1)

    @property
    def low(self) -> float:
        return interval(self.num_right, self.num_images)[0]

    @property
    def high(self) -> float:
        return interval(self.num_right, self.num_images)[1]

    @property
    def plain(self) -> dict[str, float]:
        """Return what a check and a training store of it."""
        return {"top1": self.share, "num_images": self.num_images}


def fold_of_each(
    targets: np.ndarray, num_folds: int = NUM_FOLDS, seed: int = 0, groups: np.ndarray | None = None
) -> np.ndarray:
    """Return the fold that holds out each image, int64 (N,). Each fold has about the same share of each class, and the
    images of a group are in one fold. groups: int64 (N,); None: each image is its own group."""
    folds = np.empty(len(targets), np.int64)
    generator = np.random.default_rng(seed)
    groups = np.arange(len(targets)) if groups is None else groups
    _, first, group_of = np.unique(groups, return_index=True, return_inverse=True)
    of_group = np.empty(len(first), np.int64)
    begin = 0
    for members in positions_of_each(targets[first]):  # the class of a group is that of its first image
        order = generator.permutation(members)
        of_group[order] = (begin + np.arange(len(order))) % num_folds
        begin += len(order)  # each class starts where the last ended, so that the remainders are spread
    folds[:] = of_group[group_of]
    return folds


def why_no_estimate(targets: np.ndarray, num_classes: int, groups: np.ndarray | None = None) -> str:
    """Return why folds of these images say nothing about new ones, or "". groups: as for fold_of_each."""
    number = len(targets) if groups is None else len(np.unique(groups))
    if len(np.unique(targets)) >= 2 and number >= 2 * num_classes:
        return ""
    return "What accuracy to expect needs at least two classes, and two images, or groups of images, of each."


def out_of_fold(
    vectors: np.ndarray,
    targets: np.ndarray,
    num_classes: int,
    folds: np.ndarray,
    l2: float = 0.03,
    axes: PrincipalAxes | None = None,
) -> np.ndarray:
    """Return the probabilities of each image by a logistic regression to the images of the other folds, float32 (N,
    num_classes).

    vectors: float (N, D). targets: int64 (N,). folds: result of fold_of_each. l2: as in models.regression. Mean,
    variance and axes of the features are those of all images; they do not depend on the labels. axes: of these
    features, if they are known.
    """
    axes = axes or PrincipalAxes(torch.from_numpy(vectors))
    labels = torch.from_numpy(targets).to(axes.places.device)
    found = np.full((len(targets), num_classes), 1 / num_classes, np.float32)
    for fold in np.unique(folds).tolist():
        rows = np.flatnonzero(folds == fold)
        if len(rows) == len(folds):
            continue  # one image, or one group of copies
        weights = axes.minimise(labels, num_classes, l2, torch.from_numpy(folds != fold))
        found[rows] = axes.logits(weights, torch.from_numpy(rows)).softmax(1).cpu().numpy()
    return found


@dataclass(frozen=True)
class LearningCurve:
    """The accuracy by regressions to a part of the images outside each fold. num_images: of each part, in ascending
    order; the last is all of them."""

    num_images: list[int]
    accuracies: list[Accuracy]

    @property
    def sentence(self) -> str:
        """Return what the curve says about more photographs. The images that one of both regressions alone gets right
        tell, which are about half of the mistakes."""
        half, whole = self.accuracies[-2:]
        more = whole.num_right - half.num_right
        num_wrong = 2 * whole.num_images - whole.num_right - half.num_right
        chance, worth = 2 * (num_wrong / 2) ** 0.5, HELPS / 100 * whole.num_images
        brought = f"the second half of them brought {100 * (whole.share - half.share):+.1f} points"
        if worth <= more and chance < more:
            return f"More photographs like these would help: {brought}."
        if more + chance < worth:
            return f"More photographs like these would hardly help: {brought}."
        images = count_noun(abs(more), "image")
        return f"These photographs are too few to tell whether more would help: {brought}, which is {images}."


def learning_curve(
    axes: PrincipalAxes, targets: np.ndarray, num_classes: int, folds: np.ndarray, whole: Accuracy, l2: float = 0.03,
    groups: np.ndarray | None = None,
) -> LearningCurve:  # fmt: skip
    """Return the accuracy with a quarter and half of the images outside each fold, and with all, which is `whole`.
    axes: of the features. folds: result of fold_of_each. groups: as for fold_of_each, because a quarter with one copy
    of each photograph would have them all."""
    labels = torch.from_numpy(targets).to(axes.places.device)
    quarters = fold_of_each(targets, 4, seed=1, groups=groups)
    numbers, found = list[int](), list[Accuracy]()
    for count in (1, 2):
        num_right, sizes = 0, list[int]()
        for fold in np.unique(folds).tolist():
            is_fitted = (folds != fold) & (quarters < count)
            rows = torch.from_numpy(np.flatnonzero(folds == fold))
            weights = axes.minimise(labels, num_classes, l2, torch.from_numpy(is_fitted))
            num_right += int((axes.logits(weights, rows).argmax(1) == labels[rows]).sum())
            sizes.append(int(is_fitted.sum()))
        numbers.append(round(float(np.mean(sizes))))
        found.append(Accuracy(num_right, len(targets)))
    all_but_one = round(len(targets) * (1 - 1 / max(len(np.unique(folds)), 2)))
    return LearningCurve([*numbers, all_but_one], [*found, whole])


@dataclass(frozen=True)
class Estimate:
    """What accuracy to expect of a regression on new images, from folds. shares: result of out_of_fold."""

    shares: np.ndarray
    regression: Accuracy
    curve: LearningCurve

    @property
    def plain(self) -> dict[str, Any]:
        """Return the content of `expected` in summary.json."""
        curve = zip(self.curve.num_images, self.curve.accuracies, strict=True)
        return {
            **self.regression.plain,
            "top1_interval": [self.regression.low, self.regression.high],
            "num_folds": NUM_FOLDS,
            "top1_of_num_images": {str(number): accuracy.share for number, accuracy in curve},
        }


def estimate(
    vectors: np.ndarray, targets: np.ndarray, num_classes: int, l2: float, seed: int, groups: np.ndarray | None = None,
    device: torch.device | str = "cpu",
) -> Estimate:  # fmt: skip
    """Estimate the accuracy of a regression of this strength, which is fitted on the device. groups: as for
    fold_of_each."""
    folds = fold_of_each(targets, seed=seed, groups=groups)

    axes = PrincipalAxes(torch.from_numpy(vectors).to(device))
    probabilities = out_of_fold(vectors, targets, num_classes, folds, l2, axes)
    regression = Accuracy(int((probabilities.argmax(1) == targets).sum()), len(targets))
    return Estimate(
        probabilities, regression, learning_curve(axes, targets, num_classes, folds, regression, l2, groups)
    )
