"""Measure how many near-copies are found, and how many pairs of different photographs are taken for copies.

    python scripts/measure_near_copies.py FOLDER WORK experiment=finetune    # FOLDER/<class>/*.jpg

Writes the photographs of FOLDER to WORK/photos, and beside each of NUM_COPIED of them a copy of each kind, gets their
features with the options that follow (model, weights), and looks for near-copies as prepare=check does: among the
photographs and the copies of one kind at a time. The figures are those of every second class.
"""

import io
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFont

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.curation.features import read_features
from imagenet_ddp.curation.near_copies import find_near_copies
from imagenet_ddp.data.sources.registry import open_source

NUM_COPIED = 100
SUFFIXES = (".jpg", ".jpeg", ".png")


def encoded(image: Image.Image, quality: int) -> Image.Image:
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=quality)
    return Image.open(stream).convert("RGB")


def crop(image: Image.Image, share: float, x: float, y: float) -> Image.Image:
    """x, y: 0 to keep the left or the upper side, 1 the other."""
    width, height = round(image.width * share), round(image.height * share)
    left, top = round(x * (image.width - width)), round(y * (image.height - height))
    return image.crop((left, top, left + width, top + height))


def resized(image: Image.Image, share: float) -> Image.Image:
    return image.resize((max(round(image.width * share), 32), max(round(image.height * share), 32)))


def with_text(image: Image.Image, share: float, y: float) -> Image.Image:
    image = image.copy()
    font = ImageFont.load_default(size=max(image.height * share, 8))
    words = "copyright 2026 somebody"
    ImageDraw.Draw(image).text((5, image.height * y), words, "white", font, stroke_width=1, stroke_fill="black")
    return image


KINDS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "JPEG quality 30": lambda image: encoded(image, 30),
    "half the size": lambda image: resized(image, 0.5),
    "a third of the size": lambda image: resized(image, 1 / 3),
    "crop to 90 %": lambda image: crop(image, 0.9, 0, 0),
    "crop to 75 %": lambda image: crop(image, 0.75, 0.5, 0.5),
    "crop to 75 %, corner": lambda image: crop(image, 0.75, 1, 1),
    "mirrored": lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    "brighter (× 1.3)": lambda image: ImageEnhance.Brightness(image).enhance(1.3),
    "grey": lambda image: image.convert("L").convert("RGB"),
    "text": lambda image: with_text(image, 0.04, 0.9),
    "large text": lambda image: with_text(image, 0.12, 0.42),
    "crop, size and JPEG": lambda image: encoded(resized(crop(image, 0.92, 0, 0), 2 / 3), 50),
}


def main() -> None:
    folder, work, *options = sys.argv[1:]
    photos = Path(work) / "photos"
    paths = sorted(path for path in Path(folder).glob("*/*") if path.suffix.lower() in SUFFIXES)
    copied = set(random.Random(3).sample(paths, min(NUM_COPIED, len(paths))))
    for path in paths:
        image = Image.open(path).convert("RGB")
        (photos / path.parent.name).mkdir(parents=True, exist_ok=True)
        image.save(photos / path.parent.name / f"{path.stem}.jpg", quality=92)
        for number, change in enumerate(KINDS.values() if path in copied else ()):
            change(image).save(photos / path.parent.name / f"{path.stem}~{number}.jpg", quality=85)
    file = Path(work).absolute() / "features.npz"
    data = ["data=imagefolder", f"data.root={photos}", "data.train_dir=.", "data.val_fraction=0.2"]
    subprocess.run([sys.executable, "-m", "imagenet_ddp.features", *options, *data, f"out={file}"], check=True)
    features = read_features(file)
    source = open_source(DataConfig.of(name="imagefolder", root=str(photos), train_dir=".", val_fraction=0.2), 0)
    assert source.train is not None and source.val is not None
    images = {"train": source.train, "val": source.val}
    kind_of = np.array([int(Path(path).stem.rpartition("~")[2]) if "~" in Path(path).stem else -1
                        for path in features.paths])  # fmt: skip
    is_counted = features.targets % 2 == 1
    for number, kind in enumerate(["photographs alone", *KINDS], -1):
        part = features.rows((kind_of < 0) | (kind_of == number))
        names = [Path(path).with_suffix("") for path in part.paths]
        counted = is_counted[(kind_of < 0) | (kind_of == number)]
        found = {(names[pair.first], names[pair.second]) for pair in find_near_copies(part, images).pairs}
        if number < 0:
            wrong = sum(counted[names.index(first)] for first, _ in found)
            print(f"{kind}: {wrong} pairs taken for copies, of {counted.sum()} photographs")
            continue
        copies = [name for name, is_so in zip(names, counted, strict=True) if is_so and "~" in name.name]
        originals = [name.with_name(name.name.rpartition("~")[0]) for name in copies]
        num = sum((a, b) in found or (b, a) in found for a, b in zip(copies, originals, strict=True))
        print(f"{kind}: {num} of {len(copies)} found", flush=True)


if __name__ == "__main__":
    main()
