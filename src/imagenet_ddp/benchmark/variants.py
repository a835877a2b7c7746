"""The forms that images may lie in, of the same images: as files, and packed here for the time of the benchmark."""

import contextlib
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.decoding.image import UnreadableImage
from imagenet_ddp.data.sources.folder.images import FileImages
from imagenet_ddp.data.sources.packed.local import PackedImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare.pack import pack
from imagenet_ddp.system.cpu_cores import num_cores

FILES = "raw"


@dataclass(frozen=True)
class Form:
    name: str  # in benchmark.json
    words: str  # for people
    images: FileImages | PackedImages
    mib: float


def make_forms(config: Mapping[str, Any], options: Mapping[str, Any], work: Path) -> list[Form]:
    """As files; packed as JPEGs; packed as pixels. work: a folder to write in. options: benchmark.*"""
    tree = work / "files"
    _link(config, options["num_images"], tree)
    data = {**config["data"], "name": "imagefolder", "root": str(tree), "train_dir": "train", "val_dir": "val"}
    data["val_fraction"] = None
    files = _train({**config, "data": data})
    side = options["short_side"]
    forms = [Form(FILES, "files", files, _mib(files))]
    for name, form, words in ((f"packed_{side}_jpeg", "jpeg", "JPEG"), ("packed_raw", "raw", "pixels")):
        out = work / name
        prepare = {"form": form, "short_side": side, "quality": options["quality"], "shard_mib": 256}
        plan = prepare_options.Plan("pack", prepare, {**config, "data": data}, None, out, num_cores())
        with contextlib.redirect_stdout(io.StringIO()):  # it would name the command that trains from there
            pack.run(plan)
        packed = _train({**config, "data": {**data, "name": "packed", "root": str(out)}})
        mib = sum(path.stat().st_size for path in out.glob("train*.bin")) / 2**20
        forms.append(Form(name, f"packed at {side}, {words}", packed, mib))
    return forms


def _train(config: Mapping[str, Any]) -> Any:
    images = open_source(config["data"], config["seed"], os.environ).train
    assert isinstance(images, FileImages | PackedImages)
    return images


def _link(config: Mapping[str, Any], num_images: int, tree: Path) -> None:
    """train/: so many images, evenly from all; val/: one of each of their classes, because a packed form has both."""
    source = open_source(config["data"], config["seed"], os.environ)
    images = source.train
    assert isinstance(images, FileImages)
    seen: set[int] = set()
    for number, index in enumerate(np.linspace(0, len(images) - 1, min(num_images, len(images)), dtype=np.int64)):
        path, target = Path(images.path(index)).absolute(), int(images.targets[index])
        if not _is_readable(images, int(index)):  # which the plain pipeline would not survive
            continue
        places = ["train"] if target in seen else ["train", "val"]
        seen.add(target)
        for place in places:
            folder = tree / place / source.classes[target]
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
