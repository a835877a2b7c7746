"""The file of features: what is written is read, and a file of another form is refused in a sentence."""

from pathlib import Path

import numpy as np
import pytest
from helpers.made_features import blobs

from imagenet_ddp.curation.features import read_features, write_features
from imagenet_ddp.errors import ConfigError


def test_what_is_written_is_read(tmp_path: Path):
    features = blobs(30)
    features.paths[3] = "cat/\udcff bytes that are no text.jpg"
    features.unreadable.append(("cat/broken.jpg", "it is empty"))
    write_features(tmp_path / "f.npz", features)
    found = read_features(tmp_path / "f.npz")
    for name, value in vars(features).items():
        assert np.array_equal(getattr(found, name), value), name


def test_rows_are_chosen_together():
    features = blobs(30)
    some = features.rows(np.array([4, 2]))
    assert some.paths == [features.paths[4], features.paths[2]]
    assert some.targets.tolist() == features.targets[[4, 2]].tolist() and len(some) == 2
    assert features.rows(features.is_val).is_val.all()


def _spoil(path: Path, **arrays: object) -> None:
    with np.load(path) as file:
        content = {**file, **arrays}
    np.savez(path, **{name: value for name, value in content.items() if value is not None})


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        ({"vectors": np.full((30, 16), np.nan, np.float32)}, "must hold finite features"),
        ({"vectors": np.zeros((30, 16))}, "vectors is float64"),
        ({"vectors": np.zeros((29, 16), np.float32)}, "different lengths"),
        ({"targets": np.full(30, 9)}, "labels outside its classes"),
        ({"targets": np.full(30, None)}, "Object arrays cannot be loaded"),
        ({"targets": None}, "targets"),
        ({"texts": np.frombuffer(b"[" * 100_000, np.uint8)}, "must be a file of features"),
        ({"texts": np.frombuffer(b'{"paths": []}', np.uint8)}, "classes"),
        (None, "must be a file of features"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, spoil: dict[str, object] | None, words: str):
    path = tmp_path / "f.npz"
    write_features(path, blobs(30))
    if spoil is None:
        path.write_bytes(path.read_bytes()[:2000])
    else:
        _spoil(path, **spoil)
    with pytest.raises(ConfigError, match=words):
        read_features(path)
