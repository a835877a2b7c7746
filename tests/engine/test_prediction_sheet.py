"""The contact sheet of predict."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from imagenet_ddp.data.contact_sheet import COLUMNS, GAP
from imagenet_ddp.data.decode import Reading, UnreadableImage
from imagenet_ddp.data.loader import FileReader
from imagenet_ddp.engine.prediction_sheet import SIDE, SheetWriter
from imagenet_ddp.engine.predictor import Predictor


def test_a_map_stands_beside_its_image(tmp_path: Path) -> None:
    """Also in the rows behind an image that cannot be read."""
    predictor = Predictor(
        ["a"], ["a"], FileReader(Reading(), lambda image: image), lambda images: torch.ones(len(images), 1),
        torch.device("cpu"), explain=lambda images, classes, how: torch.ones(len(images), 8, 8),
    )  # fmt: skip
    sheet = SheetWriter(tmp_path / "s.png", predictor, "gradcam")
    sheet.write("broken.jpg", [], "the file is empty", UnreadableImage("broken.jpg", "the file is empty"))
    for number in range(COLUMNS):
        sheet.write(f"{number}.jpg", [(0, 1.0)], "", torch.zeros(3, 8, 8, dtype=torch.uint8))
    sheet.close()
    with Image.open(tmp_path / "s.png") as image:
        pixels = np.asarray(image)
    row = pixels[GAP + SIDE // 2, GAP + SIDE // 2 :: GAP + SIDE]
    kinds = ["grey" if level[0] == level[2] > 0 else "image" if not level.any() else "map" for level in row]
    assert kinds == ["grey"] * 2 + ["image", "map"] * 3
