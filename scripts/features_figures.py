"""Measure, on the features of a collection, how well unknown images are told apart, and what labelling the chosen
images brings: python scripts/features_figures.py runs/features/NAME/features.npz.

Strangers are half of the classes of the same collection. Labels come three to a class at first.
"""

import sys
from pathlib import Path

import numpy as np
import torch

from imagenet_ddp.curation.cross_validation import fold_of_each
from imagenet_ddp.curation.features import Features, read_features
from imagenet_ddp.curation.label_next import choose
from imagenet_ddp.curation.unknown import Familiarity, reference_of
from imagenet_ddp.models.regression import PrincipalAxes

DRAWS, SEEDS = 20, 5  # of classes, which differ much; of labels
FIRST, RANDOM = 3, 4  # labels of each class at first; draws of random images that are compared with


def probabilities(vectors: np.ndarray, targets: np.ndarray, num_classes: int, others: np.ndarray) -> np.ndarray:
    axes = PrincipalAxes(torch.from_numpy(vectors))
    weight, bias = axes.of_features(axes.minimise(torch.from_numpy(targets), num_classes, 0.03))
    return (torch.from_numpy(others) @ weight.T + bias).softmax(1).numpy()


def auroc(known: np.ndarray, strangers: np.ndarray) -> float:
    """Return the probability that a known image has a higher score than a stranger."""
    below = [np.searchsorted(np.sort(strangers), known, side) for side in ("left", "right")]
    return float(np.mean(below) / len(strangers))


def unknown(every: Features, seed: int) -> list[float]:
    classes = np.random.default_rng(seed).permutation(np.unique(every.targets))
    is_known = np.isin(every.targets, classes[: len(classes) // 2])
    own, others = every.rows(is_known), every.rows(~is_known)
    targets = np.unique(own.targets, return_inverse=True)[1]
    folds = fold_of_each(targets, 5, seed)
    train, test = folds < 4, folds == 4  # as many training images as a run has; the threshold comes from folds of them
    given = own.rows(train)
    reference = reference_of(Features(**{**vars(given), "is_val": np.zeros(train.sum(), bool)}), "")
    familiarity = Familiarity(reference)
    scores = [familiarity(torch.from_numpy(each)).numpy() for each in (own.vectors[test], others.vectors)]
    shares = [
        probabilities(own.vectors[train], targets[train], len(classes) // 2, each).max(1)
        for each in (own.vectors[test], others.vectors)
    ]
    accepted = [float((each >= reference.threshold).mean()) for each in scores]
    return [auroc(*scores), auroc(*shares), *accepted]


def label_next(every: Features, seed: int) -> list[float]:
    """Return the accuracy on the validation images with the first labels, with random ones and with the chosen ones."""
    generator = np.random.default_rng(seed)
    num_classes = len(every.classes)
    pool, test = np.flatnonzero(~every.is_val), np.flatnonzero(every.is_val)
    if len(test) < 100:  # a collection that is not split
        folds = fold_of_each(every.targets, 5, seed)
        pool, test = np.flatnonzero(folds > 1), np.flatnonzero(folds < 2)
    first = np.concatenate(
        [generator.permutation(pool[every.targets[pool] == each])[:FIRST] for each in range(num_classes)]
    )
    rest = np.setdiff1d(pool, first)
    count = min(4 * num_classes, len(rest) // 4)

    def accuracy(rows: np.ndarray) -> float:
        found = probabilities(every.vectors[rows], every.targets[rows], num_classes, every.vectors[test])
        return float((found.argmax(1) == every.targets[test]).mean())

    shares = np.sort(probabilities(every.vectors[first], every.targets[first], num_classes, every.vectors[rest]), 1)
    chosen = rest[choose(every.vectors[rest], shares[:, -1] - shares[:, -2], count)]
    of_random = [accuracy(np.r_[first, generator.choice(rest, count, replace=False)]) for _ in range(RANDOM)]
    return [accuracy(first), float(np.mean(of_random)), accuracy(np.r_[first, chosen])]


def main() -> None:
    every = read_features(Path(sys.argv[1]))
    print(f"{len(every):,} images, {len(every.classes)} classes")
    for name, measure, draws, columns in (
        ("unknown", unknown, DRAWS, ("AUROC of familiarity", "of the highest probability", "known accepted",
                              "strangers accepted")),
        ("label_next", label_next, SEEDS, ("first labels", "random", "chosen")),
    ):  # fmt: skip
        rows = np.array([measure(every, seed) for seed in range(draws)])
        for column, values in zip(columns, rows.T, strict=True):
            print(f"{name}: {column} {values.mean():.3f} ({values.min():.3f} to {values.max():.3f})", flush=True)


if __name__ == "__main__":
    main()
