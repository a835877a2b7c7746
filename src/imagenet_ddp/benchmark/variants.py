"""Prepare variants of the same images to compare: the files, and packs that are deleted when the benchmark ends."""

import contextlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.data.decode import UnreadableImage
from imagenet_ddp.data.sources.files import FileImages
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import pack
from imagenet_ddp.system.cpu_cores import num_cores

FILES = "files"


@dataclass(frozen=True)
class Variant:
    name: str  # key in benchmark.json
    title: str
    images: FileImages | PackedImages
    mib: float


def make_variants(config: CommonConfig, options: Mapping[str, Any], work: Path) -> list[Variant]:
    """Return files, packed JPEGs and packed pixels, in this order. work: folder to write in. options: benchmark.*"""
    tree = work / "files"
    link_images(config, options["num_images"], tree)
    data = replace(config.data, name="imagefolder", root=str(tree), train_dir="train", val_dir="val")
    data = replace(data, val_fraction=None, args={})
    config = replace(config, data=data)
    files = _train(config)
    side = options["short_side"]
    variants = [Variant(FILES, "files", files, _mib(files))]
    for name, form, title in ((f"packed_{side}_jpeg", "jpeg", "JPEG"), ("packed_raw", "raw", "pixels")):
        out = work / name
        prepare = {"form": form, "short_side": side, "quality": options["quality"], "shard_mib": 256}
        plan = prepare_options.Plan(prepare, config, out, num_cores())
        with contextlib.redirect_stdout(io.StringIO()):  # hide the training command that pack prints
            if pack.run(plan):
                raise SystemExit(1)
        packed = _train(replace(config, data=replace(data, name="packed", root=str(out))))
        mib = sum(path.stat().st_size for path in out.glob("train*.bin")) / 2**20
        variants.append(Variant(name, f"packed at {side}, {title}", packed, mib))
    return variants


def _train(config: CommonConfig) -> Any:
    images = open_source(config["data"], config["seed"], os.environ).train
    assert isinstance(images, FileImages | PackedImages)
    return images


def link_images(config: CommonConfig, num_images: int, tree: Path, at_least: int = 0) -> None:
    """Link evenly spaced images into tree/train, and one per class into tree/val, because a pack needs both splits.

    at_least: minimum number of links in tree/train. If there are fewer images, each is linked several times.
    """
    source = open_source(config["data"], config["seed"], os.environ)
    images = source.train
    assert isinstance(images, FileImages)
    seen: set[int] = set()
    chosen = np.linspace(0, len(images) - 1, min(num_images, len(images)), dtype=np.int64)
    # the baseline would fail on unreadable images
    chosen = [int(index) for index in chosen if _is_readable(images, int(index))]
    for number in range(max(len(chosen), at_least if chosen else 0)):
        index = chosen[number % len(chosen)]
        path, target = Path(images.path(index)).absolute(), int(images.targets[index])
        splits = ["train"] if target in seen else ["train", "val"]
        seen.add(target)
        for split in splits:
            folder = tree / split / source.classes[target]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:06}{path.suffix}").symlink_to(path)


def _is_readable(images: FileImages, index: int) -> bool:
    try:
        images.read(index)
    except (UnreadableImage, OSError):
        return False
    return True


def _mib(images: FileImages) -> float:
    return sum(Path(images.path(index)).stat().st_size for index in range(len(images))) / 2**20
