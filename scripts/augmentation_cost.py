"""Measure the CPU milliseconds per image of each augmentation of data.*, on one core, for the table in docs/data.md:

    taskset -c 0 python scripts/augmentation_cost.py FOLDER [image_size ...]

FOLDER/train/<class>/ contains photographs. The first row is the cost of every image (decode, crop, resize), to which
the costs in the other rows are added. The figures are medians over interleaved repeats, so that other load on the
machine affects all rows alike.
"""

import random
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.augment import Augmentation, make_train_transform
from imagenet_ddp.data.sources.image_files import list_images
from imagenet_ddp.data.sources.walk import class_folders
from imagenet_ddp.data.transforms import empty
from imagenet_ddp.system.text_table import Cell, Column, Table, as_text, text_cell

REPEATS = 7
NUM_IMAGES = 64
ROWS: list[dict[str, Any]] = [
    *({"policy": policy} for policy in ("randaugment", "trivialaugment", "autoaugment", "augmix", "three_augment",
                               "rand-m9-mstd0.5-inc1")),
    {"color_jitter": 0.3}, {"grayscale": 1.0}, {"blur": 1.0}, {"erasing": 1.0}, {"cutout": 16},
]  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    sizes = [int(size) for size in sys.argv[2:]] or [224, 64]
    folder = Path(sys.argv[1]) / "train"
    images = list_images(folder, class_folders(folder))
    step = max(1, len(images) // NUM_IMAGES)
    pictures = [images.open(index) for index in range(0, len(images), step)][:NUM_IMAGES]
    columns = [Column("", "", right=False), *(Column("", f"ms at {size} px") for size in sizes)]
    found = [_costs(pictures, size) for size in sizes]
    rows = [[text_cell(name), *(Cell(None, f"{costs[name]:.2f}") for costs in found)] for name in found[0]]
    print("\n".join(as_text(Table(columns, rows), 80)[0]))


def _costs(pictures: list[Any], size: int) -> dict[str, float]:
    """Return row -> milliseconds per image."""
    data = DataConfig(image_size=size)
    crop, out = make_train_transform(data), empty(len(pictures), size, size, 3)

    def cropped() -> None:
        for number, picture in enumerate(pictures):
            crop.into(out[number], picture, random.Random(number))

    times: dict[str, list[float]] = {}
    for repeat in range(REPEATS + 1):
        times.setdefault("decode, crop, resize", []).append(_time(cropped))
        for row in ROWS:
            cropped()
            augmentation, generator = Augmentation(replace(data, **row)), random.Random(repeat)

            def augmented(augmentation: Augmentation = augmentation, generator: random.Random = generator) -> None:
                for pixels in out:
                    augmentation.apply(pixels, generator)

            ((key, value),) = row.items()
            times.setdefault(f"data.{key}={value}", []).append(_time(augmented))
    # the first repeat warms up
    return {name: 1000 * statistics.median(each[1:]) / len(pictures) for name, each in times.items()}


def _time(function: Any) -> float:
    start_s = time.thread_time()
    function()
    return time.thread_time() - start_s


if __name__ == "__main__":
    main()
