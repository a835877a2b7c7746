"""Duplicates by their bytes, and by similar pictures."""

import numpy as np
import pytest

from imagenet_ddp.prepare.check import duplicates
from imagenet_ddp.prepare.check.probe import picture_hash


def hashes(number: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (number, 16), dtype=np.uint8)


def test_pairs_within_and_between():
    train = np.array([5, 7, 0, 5, 9, 0, 5], dtype=np.uint64)  # 0: could not be read, and is like nothing
    val = np.array([9, 0, 4, 5], dtype=np.uint64)
    found = duplicates.find_duplicates({"train": train, "val": val}, {"train": hashes(7, 0), "val": hashes(4, 1)})
    assert found.same_within["train"] == [(("train", 0), ("train", 3)), (("train", 0), ("train", 6))]
    assert found.same_within["val"] == []
    assert found.same_between == [(("train", 0), ("val", 3)), (("train", 4), ("val", 0))]
    assert found.similar_between == []


def test_nearly_the_same_pictures():
    train, val = hashes(1000, 0), hashes(50, 1)
    train[7] = 0  # no contrast
    val[0], val[1], val[2], val[3], val[4] = train[3], train[4], train[5], train[6], train[7]
    val[1, 0] ^= 0b111  # 3 bits
    val[2, [0, 4, 8, 12]] ^= 1  # 4 bits, one in each part
    val[3, 5] ^= 0b11111  # 5 bits
    train[900] = train[3]
    train[900, 2] ^= 1  # farther than train[3]
    contents = {"train": np.arange(1, 1001, dtype=np.uint64), "val": np.arange(2001, 2051, dtype=np.uint64)}
    found = duplicates.find_duplicates(contents, {"train": train, "val": val})
    assert found.similar_between == [(("train", 3), ("val", 0)), (("train", 4), ("val", 1))]
    contents["val"][0] = contents["train"][3]  # then it is said once, as the same bytes
    found = duplicates.find_duplicates(contents, {"train": train, "val": val})
    assert found.same_between == [(("train", 3), ("val", 0))]
    assert found.similar_between == [(("train", 4), ("val", 1))]


def test_many_pictures_that_are_all_similar(monkeypatch: pytest.MonkeyPatch):
    """Their pairs are compared in parts, in bounded memory."""
    monkeypatch.setattr(duplicates, "_MAX_PAIRS", 20_000)
    train, val = np.repeat(hashes(1, 0), 1000, axis=0), np.repeat(hashes(1, 0), 300, axis=0)
    contents = {"train": np.arange(1, 1001, dtype=np.uint64), "val": np.arange(50_000, 50_300, dtype=np.uint64)}
    found = duplicates.find_duplicates(contents, {"train": train, "val": val})
    assert len(found.similar_between) == 300


def test_empty_splits():
    none = {"train": np.zeros(0, dtype=np.uint64), "val": np.zeros(0, dtype=np.uint64)}
    empty = {"train": np.zeros((0, 16), dtype=np.uint8), "val": np.zeros((0, 16), dtype=np.uint8)}
    assert duplicates.find_duplicates(none, empty) == duplicates.Duplicates(same_within={"train": [], "val": []})


def test_a_picture_without_contrast_tells_nothing():
    assert picture_hash(np.full((50, 60, 3), 255, dtype=np.uint8)) == bytes(16)
    noise = np.random.default_rng(0).integers(0, 256, (400, 300, 3), dtype=np.uint8)
    assert picture_hash(noise) == bytes(16)  # grey from afar
    slope = np.tile(np.linspace(0, 255, 300).astype(np.uint8)[None, :, None], (200, 1, 3))
    assert picture_hash(slope)[:8] == b"\xff" * 8  # each brighter than the one left of it
    assert picture_hash(slope[:1, :1]) == bytes(16)  # one pixel
