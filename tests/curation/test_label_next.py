"""Which images are to be labelled next."""

import numpy as np

from imagenet_ddp.curation.label_next import choose


def test_the_uncertain_are_chosen_and_copies_once() -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(40, 16))
    margins = np.repeat([0.1, 0.999], 20)
    vectors[1] = vectors[0] + 0.01 * generator.normal(size=16)  # a near-copy
    found = choose(vectors, margins, 5).tolist()
    assert len(set(found)) == 5 and max(found) < 20, "the certain half is left out"
    every = choose(vectors, margins, 40).tolist()
    assert len(every) == 39 and len({0, 1} & {*every}) == 1, "however many are asked for"
    assert every[-1] >= 20


def test_they_are_spread() -> None:
    """Of four groups that are equally uncertain, each is shown before any is shown twice."""
    generator = np.random.default_rng(0)
    vectors = np.repeat(np.eye(4, 8), [20, 10, 10, 10], axis=0) + 0.1 * generator.normal(size=(50, 8))
    groups = np.repeat(np.arange(4), [20, 10, 10, 10])
    assert sorted(groups[choose(vectors, np.zeros(50), 4)].tolist()) == [0, 1, 2, 3]


def test_few_images() -> None:
    assert len(choose(np.eye(3), np.array([1.0, 0.5, 0.0]), 10)) == 3
    assert choose(np.empty((0, 3)), np.empty(0), 5).tolist() == []
