"""Which images are like the training images, from made features and a small net."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.made_features import blobs
from torch import nn

from imagenet_ddp.curation import unknown
from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.unknown import Familiarity, Reference, accepting, find, net_digest, read, reference_of, write
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.transforms import EvalTransform
from imagenet_ddp.errors import ConfigError

TRANSFORM = EvalTransform(32, 36, (0.5,) * 3, (0.2,) * 3, "bilinear", "crop", 0.0, 0.0, False)
ONES, ZEROS = np.ones((2, 3), np.float32), np.zeros(3, np.float32)
REFERENCE = Reference(ONES, ZEROS[:2], ZEROS, ONES, np.ones((4, 2), np.float32), 0.25, "digest")


def scores(reference: Reference, vectors: np.ndarray) -> np.ndarray:
    return Familiarity(reference)(torch.from_numpy(vectors)).numpy()


@pytest.mark.parametrize("has_val", [True, False])
def test_the_known_are_accepted_and_strangers_are_not(has_val: bool) -> None:
    """Strangers are classes that the reference has not seen, of the same collection."""
    every = blobs(2000, num_classes=8, size=32, spread=0.6)
    is_known = every.targets < 4
    first, later = every.rows(is_known & (every.index % 2 == 0)), every.rows(is_known & (every.index % 2 == 1))
    given = first if has_val else first.rows(~first.is_val)
    reference = reference_of(given, "digest")
    of_known, of_strangers = scores(reference, later.vectors), scores(reference, every.rows(~is_known).vectors)
    assert 0.9 < (of_known >= reference.threshold).mean() < 0.99
    assert (of_strangers >= reference.threshold).mean() < 0.1
    assert np.median(of_known) == pytest.approx(1, abs=0.2), "1 is typical"
    middle = first.vectors[~first.is_val].mean(0, keepdims=True)
    assert scores(reference, middle)[0] < 0.01


def test_it_is_the_sum_of_two_scores() -> None:
    """Compared with the log densities of two normal distributions, and with the cosines to the training images."""
    features = blobs(400, size=4)
    found = scores(reference_of(features, ""), features.vectors)
    rows = features.rows(~features.is_val)
    means = np.stack([rows.vectors[rows.targets == each].mean(0) for each in range(3)]).astype(float)
    centre, rest = rows.vectors.mean(0), rows.vectors - means[rows.targets]
    covariance = rest.T @ rest / (len(rest) - 3)
    covariance = 0.1 * covariance + 0.9 * np.trace(covariance) / 4 * np.eye(4)

    def log_density(mean: np.ndarray) -> np.ndarray:
        away = features.vectors - mean
        return -(away * np.linalg.solve(covariance, away.T).T).sum(1) / 2

    ratio = np.max([log_density(mean) for mean in means], axis=0) - log_density(centre)
    units = features.vectors - centre
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    cosines = np.sort(units @ units[~features.is_val].T)[:, -3:].mean(1)
    expected = ratio / ratio[features.is_val].std() + 0.5 * cosines / cosines[features.is_val].std()
    np.testing.assert_allclose(found, expected / np.median(expected[features.is_val]), rtol=1e-3, atol=1e-4)


def test_the_nearest_images_tell_classes_of_several_kinds_from_strangers() -> None:
    """Each class has two kinds of things. A stranger lies between them, where the mean of the class is."""
    kinds = np.eye(8, 40, dtype=np.float32)
    own = blobs(800, size=40)
    generator = np.random.default_rng(0)
    places = generator.integers(8, size=len(own))
    noise = 0.05 * generator.standard_normal((len(own), 40)).astype(np.float32)
    reference = reference_of(replace(own, vectors=kinds[places] + noise, targets=places % 4), "")
    between = (kinds[:4] + kinds[4:]) / 2 + noise[:4]
    accepted = scores(reference, between) >= reference.threshold
    assert not accepted.any()


def test_how_much_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    """A share of the images of each class, in as many axes as are allowed."""
    monkeypatch.setattr(unknown, "MOST_IMAGES", 100)
    monkeypatch.setattr(unknown, "MOST_AXES", 7)
    features = blobs(900, size=12)
    reference = reference_of(features, "")
    assert 50 < len(reference.images) <= 100 and reference.images.shape[1:] == (7,) and reference.axes.shape == (7, 12)
    held_out = scores(reference, features.rows(features.is_val).vectors)
    assert np.median(held_out) == pytest.approx(1) and 0.9 < (held_out >= reference.threshold).mean() < 1


@pytest.mark.parametrize("number", [20, 64, 1000])
def test_how_rough_the_threshold_is(number: int, tmp_path: Path) -> None:
    """The interval that is said holds the shares of further images that the thresholds of such samples accept."""
    draw = np.random.default_rng(0).random
    shares = [100 * (1 - accepting(draw(number))) for _ in range(2000)]
    features = blobs(number + 20)
    features = replace(features, is_val=np.arange(number + 20) >= 20)
    said = unknown.write_reference(tmp_path / "known.npz", features, "")
    low, high = map(float, re.findall(r"([\d.]+) to ([\d.]+) % will be like them", said)[0])
    assert f"the threshold is that of {number:,} images." in said
    assert np.quantile(shares, [0.025, 0.975]) == pytest.approx([low, high], abs=2.5)


def test_features_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    """A training that diverges gives them, and must not end in the error of a library."""
    features = blobs(60)
    features.vectors[3, 1] = np.nan
    said = unknown.write_reference(tmp_path / "known.npz", features, "")
    assert said.startswith("No known.npz is written: the features must be finite") and not any(tmp_path.iterdir())


def test_the_threshold() -> None:
    """Of n images, a further one is below the k-th lowest with a probability of k / (n + 1)."""
    assert accepting(np.arange(99.0)) == 4
    assert accepting(np.arange(20.0)) == 0 and accepting(np.array([3.0, 2.0])) == 2


@pytest.mark.parametrize("change", [{"targets": np.zeros(20, int)}, {"is_val": np.ones(20, bool)}])
def test_too_few_classes(change: dict[str, np.ndarray]) -> None:
    with pytest.raises(ConfigError, match="at least two classes"):
        reference_of(replace(blobs(20), **change), "")


def test_one_image_per_class_and_equal_images() -> None:
    for features in (blobs(12, num_classes=12), blobs(60, spread=0.0)):
        reference = reference_of(features, "")
        assert np.isfinite(scores(reference, features.vectors)).all()
        assert (scores(reference, features.vectors) >= reference.threshold).mean() > 0.7


# ---- the file


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(4, 3), nn.Linear(3, 2)


def test_a_reference_belongs_to_the_layers_below_the_last(tmp_path: Path) -> None:
    (tmp_path / "r/checkpoints").mkdir(parents=True)
    checkpoint, net = tmp_path / "r/checkpoints/best.ckpt", Net()

    def digest_of(transform: EvalTransform = TRANSFORM) -> str:
        return net_digest(net, ("head",), transform, Reading())

    assert find(checkpoint, 3, digest_of) == (None, f"there is no {tmp_path / 'r/known.npz'}")
    digest = digest_of()
    write(tmp_path / "r/known.npz", replace(REFERENCE, digest=digest))
    nn.init.zeros_(net.head.weight)  # a probe fits it anew
    found, reason = find(checkpoint, 3, digest_of)
    assert found is not None and not reason
    assert (found.weight == 1).all() and (found.threshold, found.digest) == (0.25, digest)
    assert "is of other weights" in find(checkpoint, 4, digest_of)[1], "with another number of features"
    assert "another preprocessing" in find(checkpoint, 3, lambda: digest_of(replace(TRANSFORM, image_size=64)))[1]
    nn.init.zeros_(net.body.bias)
    assert find(checkpoint, 3, digest_of)[1] == f"{tmp_path / 'r/known.npz'} is of other weights, or of " \
        "another preprocessing"  # fmt: skip


def test_a_file_from_anyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "known.npz"

    def refused(words: str) -> None:
        with pytest.raises(ConfigError, match=words):
            read(path)

    path.write_bytes(b"no zip")
    refused("must be what the command features writes, but is not")
    write(path, REFERENCE)
    whole = path.read_bytes()
    assert read(path).threshold == 0.25
    path.write_bytes(whole[:-30])
    refused("but is not")
    path.write_bytes(whole.replace(b"\x80\x3f", b"\x80\x7f"))  # ones become infinite, and the checksum is wrong
    refused("but is not")
    for change, words in (
        ({"weight": np.array([object()])}, "pickle"),
        ({"weight": np.ones((2, 3))}, "float32"),
        ({"weight": np.full((2, 3), np.nan, np.float32)}, "finite"),
        ({"bias": ZEROS}, r"\(K,\)"),
        ({"centre": ZEROS[:2]}, r"\(D,\)"),
        ({"images": ONES}, r"\(N, A\)"),
        ({"images": ONES[:0]}, "at least one row"),
        ({"axes": ZEROS}, "two dimensions"),
        ({"threshold": np.array([1.0, 2.0])}, "a number"),
        ({"threshold": np.nan}, "a number"),
        ({"digest": 3.0}, "text"),
    ):
        arrays: Any = vars(REFERENCE) | change
        np.savez(path, **arrays)
        refused(words)
    np.savez(path, weight=REFERENCE.weight)
    refused("KeyError")
    monkeypatch.setattr(unknown, "MOST_FILE_BYTES", 100)
    write(path, REFERENCE)
    refused("more than 100")


def test_a_pass_of_more_images_than_features_is_not_needed() -> None:
    """More features than images, as is usual."""
    features: Features = blobs(30, size=200)
    reference = reference_of(features, "")
    assert reference.weight.shape == (3, 200) and reference.weight.dtype == np.float32
