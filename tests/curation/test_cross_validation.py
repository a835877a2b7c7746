"""Folds, probabilities of images that were not fitted, and what they say about new photographs."""

import numpy as np
import pytest
import torch
from helpers.made_features import blobs

from imagenet_ddp.curation.cross_validation import (
    Accuracy,
    LearningCurve,
    estimate,
    fold_of_each,
    interval,
    learning_curve,
    out_of_fold,
)
from imagenet_ddp.curation.interval import without_words
from imagenet_ddp.models.regression import PrincipalAxes


def test_the_interval_is_wilsons():
    """90.9 % of 110 is 84.1 to 95.0 %: R's prop.test(100, 110, correct=FALSE). All of 10 right is at least 72.2 %."""
    assert interval(100, 110) == pytest.approx((0.8407, 0.9499), abs=1e-4)
    assert interval(10, 10) == pytest.approx((0.7225, 1.0), abs=1e-4)
    assert interval(0, 0) == (0.0, 1.0)


def test_an_accuracy_that_is_the_same_as_printed_is_given_once():
    assert without_words((15, 17), (15, 17)) == "top-1 100.00 % without them (80 to 100 %), the same as with them"
    assert without_words((15, 16), (15, 17)) == "top-1 100.00 % without them (80 to 100 %), 94.12 % with them"


def test_each_fold_has_its_share_of_each_class_and_groups_stay_together():
    targets = np.repeat(np.arange(4), [50, 50, 23, 3])
    groups = np.arange(126)
    groups[[1, 60, 110]] = 0  # of three classes
    folds = fold_of_each(targets, 5, seed=3, groups=groups)
    assert len(set(folds[groups == 0].tolist())) == 1
    counts = np.array([np.bincount(folds[targets == target], minlength=5) for target in range(4)])
    assert (counts.max(1) - counts.min(1) <= 2).all() and np.ptp(counts.sum(0)) <= 5
    assert (fold_of_each(targets, 5, seed=3) == fold_of_each(targets, 5, seed=3)).all()
    assert (fold_of_each(targets, 5, seed=3) != fold_of_each(targets, 5, seed=4)).any()


def test_an_image_does_not_see_its_own_label():
    """With labels at random, a regression that had seen them would be right more often than by chance."""
    features = blobs(300, 3, size=64)
    random = np.random.default_rng(1).permutation(features.targets)
    folds = fold_of_each(random)
    found = out_of_fold(features.vectors, random, 3, folds, l2=1e-3)
    assert abs((found.argmax(1) == random).mean() - 1 / 3) < 0.09
    np.testing.assert_allclose(found.sum(1), 1, rtol=1e-5)
    right = out_of_fold(features.vectors, features.targets, 3, fold_of_each(features.targets))
    assert (right.argmax(1) == features.targets).mean() == 1


def test_the_curve_says_whether_more_photographs_help():
    def sentence(spread: float, size: int) -> str:
        features = blobs(240, 4, size=size, spread=spread)
        folds = fold_of_each(features.targets)
        shares = out_of_fold(features.vectors, features.targets, 4, folds)
        whole = Accuracy(int((shares.argmax(1) == features.targets).sum()), 240)
        axes = PrincipalAxes(torch.from_numpy(features.vectors))
        curve = learning_curve(axes, features.targets, 4, folds, whole)
        assert curve.num_images == pytest.approx([48, 96, 192], abs=3)
        return curve.sentence

    assert "would hardly help" in sentence(0.1, 16)
    assert "would help" in sentence(6.0, 200)
    for half, whole, number, words in (
        (117, 119, 121, "too few to tell whether more would help: the second half of them brought +1.7 points, which"),
        (118, 117, 121, "too few to tell"),
        (9000, 9150, 10_000, "would help"),
        (9800, 9810, 10_000, "would hardly help"),
    ):
        assert words in LearningCurve([1, 2], [Accuracy(half, number), Accuracy(whole, number)]).sentence


def test_copies_that_are_held_together_do_not_change_the_curve():
    features, rows = blobs(240, 4, size=64, spread=4.0), np.tile(np.arange(240), 4)
    once = estimate(features.vectors, features.targets, 4, 0.03, 0).curve
    copied = estimate(features.vectors[rows], features.targets[rows], 4, 0.03, 0, groups=rows).curve
    assert copied.num_images == [4 * number for number in once.num_images]
    assert [each.share for each in copied.accuracies] == pytest.approx(
        [each.share for each in once.accuracies], abs=0.01
    )
    assert once.accuracies[0].share < once.accuracies[2].share - 0.05
