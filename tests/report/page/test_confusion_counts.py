"""Counts of confusions, and groups of classes that are confused."""

import numpy as np

from imagenet_ddp.report.page.confusion_counts import class_rows, group_classes, matrix, pairs

LABELS = ["cat", "dog", "owl", "eel"]
TARGET = np.array([0, 0, 0, 1, 1, 2, 2])
PREDICTION = np.array([0, 1, 1, 1, 0, 0, 2])


def test_pairs_and_rows():
    assert pairs(TARGET, PREDICTION, 4).tolist() == [[0, 1, 2], [1, 0, 1], [2, 0, 1]]
    rows = class_rows(TARGET, PREDICTION, ["n1", "n2", "n3", "n4"], LABELS)
    assert [(row.name, row.num_images, row.confused_with, row.num_confused) for row in rows] == [
        ("n1", 3, "dog", 2), ("n2", 2, "cat", 1), ("n3", 2, "cat", 1), ("n4", 0, "", 0),
    ]  # fmt: skip
    assert [row.accuracy for row in rows] == [1 / 3, 0.5, 0.5, None]


def test_the_matrix_of_few_classes():
    found = matrix(TARGET, PREDICTION, LABELS)
    assert found is not None and found.names == LABELS
    assert found.counts.tolist() == [[1, 2, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 0]]
    assert found.shares[0].tolist() == [1 / 3, 2 / 3, 0, 0]
    assert found.shares[3].sum() == 0


def planted(num_groups: int, size: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(group of each class, target, prediction): a third of each class's images are taken for others of its group."""
    generator = np.random.default_rng(seed)
    of_class = generator.permutation(np.repeat(np.arange(num_groups), size))
    target = np.repeat(np.arange(len(of_class)), 60)
    prediction = target.copy()
    for row in np.flatnonzero(generator.random(len(target)) < 0.33):
        prediction[row] = generator.choice(np.flatnonzero(of_class == of_class[target[row]]))
    return of_class, target, prediction


def test_confused_classes_are_in_one_group():
    of_class, target, prediction = planted(8, 8)
    counts = np.zeros((64, 64), dtype=int)
    np.add.at(counts, (target, prediction), 1)
    groups = group_classes(counts, 8)
    assert sorted(member for group in groups for member in group.tolist()) == list(range(64))
    assert all(len(set(of_class[group].tolist())) == 1 for group in groups)


def test_many_classes_are_grouped():
    _, target, prediction = planted(20, 10)
    labels = [f"class {number}, other name" for number in range(200)]
    found = matrix(target, prediction, labels)
    assert found is not None and len(found.names) == 20
    assert found.counts.sum() == len(target)
    assert np.trace(found.counts) / len(target) > 0.95 > (target == prediction).mean()
    assert all(" + " in name and "other" not in name for name in found.names)
    assert sum(title.count(",") + 1 for title in found.titles) == 200
