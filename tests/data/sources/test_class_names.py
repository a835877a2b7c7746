"""Names that mean the same class."""

import unicodedata
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from PIL import Image

from imagenet_ddp.data import ImageDataModule
from imagenet_ddp.data.sources.base import lookalikes


def test_folders_that_differ_in_unicode_form_are_one_class(tmp_path: Path):
    """As after copying one of the splits, or some of the images, from a Mac."""
    folders: list[tuple[str, Literal["NFC", "NFD"], str]] = [
        ("train", "NFC", "a"),
        ("train", "NFD", "b"),
        ("val", "NFD", "c"),
    ]
    for split, form, name in folders:
        for word in ("Caf\u00e9", "Th\u00e9"):
            folder = tmp_path / split / unicodedata.normalize(form, word)
            folder.mkdir(parents=True)
            Image.fromarray(np.full((40, 40, 3), 9, np.uint8)).save(folder / f"{name}.png")
    data = ImageDataModule.from_options("imagefolder", str(tmp_path), image_size=32, batch_size=2)
    source = data.source
    assert source.classes == ["Caf\u00e9", "Th\u00e9"] and source.train is not None and source.val is not None
    assert source.train.targets.tolist() == [0, 0, 1, 1] and source.val.targets.tolist() == [0, 1]
    for images in (source.train, source.val):
        assert all(images.read(index).shape == (3, 40, 40) for index in range(len(images)))


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["cat", "dog"], []),
        (["Cat", "cat", "dog"], ["'Cat' and 'cat'. Hint"]),
        (["a ", "A", "b", " B"], ["'a ' and 'A'; 'b' and ' B'"]),
    ],
)
def test_lookalikes_are_named(names: list[str], said: list[str]):
    assert [text for text in said if text in lookalikes(names)] == said
    assert bool(said) == bool(lookalikes(names))
