"""data=arrays: the images of a NumPy or HDF5 file."""

import os
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, Run

from imagenet_ddp.data.decoding.pixel_conversion import MAX_PIXELS
from imagenet_ddp.data.sources.arrays import open_arrays
from imagenet_ddp.errors import ConfigError


def write(file: Path, **changed: np.ndarray | None) -> Path:
    """Write 40 and 20 images of 28 pixels, whose class, 3 or 7, is their brightest channel; the labels as a column."""
    arrays = {}
    for split, count in (("train", 40), ("val", 20)):
        labels = np.arange(count, dtype=np.uint8) % 2
        pixels = np.random.default_rng(count).integers(0, 50, (count, 28, 28, 3), dtype=np.uint8)
        pixels[np.arange(count), :, :, labels] += 150
        arrays |= {f"{split}_images": pixels, f"{split}_labels": (3 + 4 * labels)[:, None]}
    arrays = {name: array for name, array in {**arrays, **changed}.items() if array is not None}
    if file.suffix == ".npz":
        np.savez(file, **arrays)
    else:
        with pytest.importorskip("h5py").File(file, "w") as stream:
            for name, array in arrays.items():
                stream[name] = array
    return file


@pytest.mark.parametrize("name", ["images.npz", pytest.param("images.h5", marks=pytest.mark.slow(2))])
def test_a_file_of_arrays_trains(name: str, run: Run, tmp_path: Path):
    file = write(tmp_path / name)
    done = run(
        "train", *SMALL, "data=arrays", f"data.root={file}", "data.num_workers=2", "trainer.max_epochs=1", code=0
    )
    assert "40 training and 20 validation images of 2 classes" in done.stdout
    assert "20 of 20 validation images, each once" in done.stdout


def test_grey_images_have_three_channels(tmp_path: Path):
    grey = np.arange(40 * 28 * 28).reshape(40, 28, 28).astype(np.uint8)
    source = open_arrays(str(write(tmp_path / "grey.npz", train_images=grey, val_images=grey[:20, ..., None])))
    assert source.classes == ["3", "7"]
    assert source.train is not None and source.val is not None
    image = source.train.read(5)
    assert image.shape == (3, 28, 28)
    assert np.array_equal(image[2], grey[5])
    assert np.array_equal(source.val.read(5), image)
    assert source.train.targets.tolist()[:3] == [0, 1, 0]


def test_other_content_is_refused(tmp_path: Path):
    file = tmp_path / "wrong.npz"
    with pytest.raises(ConfigError, match=r"has no train_labels, val_images: its arrays are ") as caught:
        open_arrays(str(write(file, train_labels=None, val_images=None)))
    (mistake,) = caught.value.mistakes
    assert mistake.fixes[0].options == ("+data.args.train_labels=NAME", "+data.args.val_images=NAME")
    pixels, labels = np.zeros((40, 8, 8, 4), np.uint8), np.zeros((40, 14), np.uint8)
    with pytest.raises(ConfigError) as caught:
        open_arrays(str(write(file, train_images=pixels, train_labels=labels)))
    assert ["train_images" in str(caught.value.mistakes[0]), "train_labels" in str(caught.value.mistakes[1])] == [
        True,
        True,
    ]
    labels = np.arange(20)[:, None] % 2 * 4 + 3
    with pytest.raises(ConfigError) as caught:
        open_arrays(str(write(file, val_labels=np.where(np.arange(20)[:, None] == 5, -1, labels))))
    assert "1 image of 20 has a negative label, the first of them image 5 (-1)" in str(caught.value.mistakes[0])
    assert "1 image of 20 has another, the first of them image 5 (-1)" in str(caught.value.mistakes[1])
    os.mkfifo(tmp_path / "pipe.npz")
    for name in ("missing.npz", "pipe.npz"):
        with pytest.raises(ConfigError, match=rf"reading .*{name} failed"):
            open_arrays(str(tmp_path / name))


def test_images_that_no_memory_holds_are_refused(tmp_path: Path):
    with pytest.importorskip("h5py").File(tmp_path / "a.h5", "w") as file:  # 8 kB: chunks without numbers are left out
        file.create_dataset("train_images", (4, 100_000, 300_000), "uint8", chunks=(1, 1000, 1000))
        file["val_images"] = np.zeros((4, 0, 8), np.uint8)
        file["train_labels"] = file["val_labels"] = np.arange(4) % 2
    with pytest.raises(ConfigError) as caught:
        open_arrays(str(tmp_path / "a.h5"))
    assert [f"of 1 to {MAX_PIXELS:,} pixels, got uint8" in str(each) for each in caught.value.mistakes] == [True, True]
