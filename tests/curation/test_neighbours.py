"""The nearest images are those of a search one by one, in blocks of any size."""

import numpy as np
import pytest

from imagenet_ddp.curation import neighbours

GENERATOR = np.random.default_rng(0)
REFERENCES, QUERIES = (GENERATOR.normal(size=(number, 8)).astype(np.float32) for number in (57, 13))


@pytest.mark.parametrize("block_bytes", [1, 1000, 2**26])
@pytest.mark.parametrize("exclude_self", [False, True])
def test_the_nearest_are_those_of_a_search_one_by_one(
    block_bytes: int, exclude_self: bool, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(neighbours, "_BLOCK_BYTES", block_bytes)
    queries = REFERENCES if exclude_self else QUERIES
    cosines, positions = neighbours.nearest(queries, REFERENCES, 4, exclude_self=exclude_self)
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(REFERENCES, axis=1)
    every = queries @ REFERENCES.T / lengths
    if exclude_self:
        np.fill_diagonal(every, -np.inf)
    expected = np.argsort(-every, axis=1)[:, :4]
    assert positions.tolist() == expected.tolist()
    np.testing.assert_allclose(cosines, np.take_along_axis(every, expected, 1), rtol=1e-4, atol=1e-5)


def test_there_may_be_fewer_references_than_are_asked_for():
    cosines, positions = neighbours.nearest(QUERIES, REFERENCES[:2], 5)
    assert cosines.shape == positions.shape == (13, 2)
    one = REFERENCES[:1]
    assert neighbours.nearest(one, one, 3, exclude_self=True)[1].shape == (1, 0)
    assert np.isfinite(neighbours.nearest(np.zeros((2, 8), np.float32), REFERENCES, 1)[0]).all()


def test_of_many_references_the_candidates_come_from_some_axes(monkeypatch: pytest.MonkeyPatch):
    """Features of photographs vary much along few axes: here, 12 of 40."""
    generator = np.random.default_rng(1)
    spread = np.where(np.arange(40) < 12, 1.0, 0.1)
    many = (3 + generator.normal(size=(600, 40)) * spread).astype(np.float32)
    exact = neighbours.nearest(many, many, 3, exclude_self=True)
    monkeypatch.setattr(neighbours, "MOST_EXACT", 100)
    monkeypatch.setattr(neighbours, "NUM_AXES", 12)
    found = neighbours.nearest(many, many, 3, exclude_self=True)
    assert (found[1] == exact[1]).mean() > 0.99
    same = found[1] == exact[1]
    np.testing.assert_allclose(found[0][same], exact[0][same], rtol=1e-5)
    assert (found[1] != np.arange(600)[:, None]).all()
    other = neighbours.nearest(many[:7], many.copy(), 3)
    assert other[1][:, 0].tolist() == list(range(7)) and other[0][:, 0] == pytest.approx(np.ones(7))
