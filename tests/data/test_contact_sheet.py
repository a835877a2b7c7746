from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data import contact_sheet
from imagenet_ddp.data.contact_sheet import GAP, Line, caption, draw_sheet, drawable, write_sheet
from imagenet_ddp.data.transforms import EvalTransform, normalise

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def batch_of(count: int, size: int = 100, **more: Any) -> dict[str, Any]:
    """Plain colours."""
    colours = torch.randint(0, 256, (count, 3, 1, 1), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    images = normalise(colours.expand(count, 3, size, size).contiguous(), MEAN, STD, True)
    return {"image": images, "target": torch.arange(count) % 3, "num_counted": count, "colours": colours, **more}


def written(path: Path, batch: dict[str, Any], size: int = 100) -> np.ndarray:
    write_sheet(
        path,
        batch,
        EvalTransform.of(DataConfig(image_size=size, mean=list(MEAN), std=list(STD))),
        ["cat", "dog", "owl"],
    )
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


@pytest.mark.parametrize(("count", "size", "side"), [(70, 256, 128), (9, 120, 120), (3, 8, 96)])
def test_the_colours_come_back(tmp_path: Path, count: int, size: int, side: int):
    batch = batch_of(count, size)
    picture = written(tmp_path / "a.png", batch, size)
    shown, columns = min(count, 64), min(count, 8)
    assert picture.shape[1] == GAP + columns * (side + GAP)
    height = (picture.shape[0] - GAP) // -(-shown // columns)
    for number in range(shown):
        row, column = divmod(number, columns)
        top, left = GAP + row * height, GAP + column * (side + GAP)
        tile = picture[top : top + side, left : left + side]
        assert (tile == batch["colours"][number].flatten().numpy()).all(), number


def test_captions():
    labels = ["cat", "dog", "owl"]
    assert caption(torch.tensor(1), None, labels) == [Line("dog")]
    mixed = caption(torch.tensor(0), torch.tensor([0.7, 0.3, 0.0]), labels)
    assert mixed == [Line("cat", " 0.70"), Line("dog", " 0.30")]
    assert caption(torch.tensor(2), torch.tensor([0.0, 0.0, 1.0]), labels) == [Line("owl", " 1.00")]
    assert caption(torch.tensor(0), torch.tensor([1.0]), ["only"]) == [Line("only", " 1.00")]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("лимон", "лимон"),
        ("", ""),
        ("Zitro\u0308ne", "Zitröne"),
        ("\udcff", "\\udcff"),
    ],
)
def test_any_name_can_be_drawn(name: str, shown: str):
    assert drawable(name) == shown
    draw_sheet(torch.zeros(1, 96, 96, 3, dtype=torch.uint8), [[Line(drawable(name))]])


@pytest.mark.parametrize("width", [96, 128])
def test_a_line_that_wraps_is_shown_whole(width: int):
    words = "unlike the training images, between cassette player and église"
    for number in range(len(words.split())):
        text = " ".join(words.split()[number:])
        lines = contact_sheet._fitted(Line(text, wraps=True), contact_sheet._font(), width)
        assert " ".join(lines) == text and all(contact_sheet._font().getlength(line) <= width for line in lines)
    [cut] = contact_sheet._fitted(Line(words), contact_sheet._font(), width)
    assert cut.endswith("..")
    sheet = draw_sheet(torch.zeros(2, width, width, 3, dtype=torch.uint8), [[Line("a"), Line(words, wraps=True)], []])
    assert sheet.height > 2 * GAP + width + 3 * contact_sheet.LINE
