import io
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_images

from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources import pack_format
from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.data.sources.registry import open_source, scan
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import pack
from imagenet_ddp.system.files import sha256

TINY = "prepare.shard_mib=1"


def packed(tree: Path, out: Path, *options: str) -> Path:
    """The command without its start."""
    argv = [
        *("prepare=pack", "data=imagefolder", f"data.root={tree}", f"out={out}", "prepare.num_workers=1"),
        *("data.decoder=pillow", *options),
    ]
    plan = prepare_options.read(argv, {})
    assert plan is not None
    assert pack.run(plan) == 0
    return out


def keys(root: Path, name: str = "packed", **more: Any) -> DataConfig:
    return DataConfig.of(name=name, root=str(root), **more)


def train_of(source: Source) -> PackedImages:
    assert isinstance(source.train, PackedImages)
    return source.train


@pytest.fixture(scope="module")
def as_it_is(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw pixels of the sizes they had, as they were stored."""
    options = ("prepare.form=raw", "prepare.short_side=0", "data.exif_orientation=false")
    return packed(tree, tmp_path_factory.mktemp("raw") / "out", *options)


@pytest.fixture(scope="module")
def in_shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 images in 8 shards or so."""
    root = tmp_path_factory.mktemp("many")
    for split, count in (("train", 20), ("val", 3)):
        write_images(root / "tree" / split, dict.fromkeys("abc", count), size=200)
    return packed(root / "tree", root / "out", "prepare.form=raw", "prepare.short_side=0", TINY)


def test_packed_is_the_same_as_unpacked(tree: Path, as_it_is: Path):
    files, found = open_source(keys(tree, "imagefolder", decoder="pillow"), 0), open_source(keys(as_it_is), 0)
    assert (found.classes, found.labels) == (files.classes, files.labels)
    for name in ("train", "val"):
        one, other = getattr(files, name), getattr(found, name)
        assert len(one) == len(other) > 0
        assert other.targets.dtype == np.int64
        assert one.targets.tolist() == other.targets.tolist()
        for index in range(len(one)):
            assert one.path(index).endswith(other.path(index).partition(f"{name}: ")[2])
            assert torch.equal(one.read(index), other.read(index))
    assert train_of(found).path(10) == f"{as_it_is}/train: dog/000.jpg"


def test_a_window_of_shards(in_shards: Path):
    images = train_of(open_source(keys(in_shards, shuffle_window_shards=2), 0))
    order = images.order(1, 0)
    assert order is not None
    assert sorted(order) == list(range(60))
    shards = [images.record(int(index)).shard for index in order]
    sizes = np.bincount(shards)
    begin = 0
    while begin < len(shards):  # each window is made of two whole shards
        window = list(dict.fromkeys(shards[begin:]))[:2]
        end = begin + int(sizes[window].sum())
        assert set(shards[begin:end]) <= set(window)
        assert window not in (shards[begin:end], [])
        begin = end
    assert list(dict.fromkeys(shards))[:2] != list(dict.fromkeys(shards))[2:4]
    assert images.order(1, 0).tolist() == order.tolist()  # type: ignore[union-attr]
    assert images.order(1, 1).tolist() != order.tolist()  # type: ignore[union-attr]
    assert images.order(2, 0).tolist() != order.tolist()  # type: ignore[union-attr]
    classes = images.targets[order[:16]]
    assert len(set(classes.tolist())) == 3, "images lie in a shard as they stood in the folders"
    whole = train_of(open_source(keys(in_shards), 0))
    assert whole.order(1, 0) is None


def test_an_altered_image_is_found(in_shards: Path, tmp_path: Path):
    folder = tmp_path / "copy"
    shutil.copytree(in_shards, folder)
    images = train_of(open_source(keys(folder), 0))
    record = images.record(17)
    with (folder / images.split.shards[record.shard].file).open("r+b") as file:
        file.seek(record.offset + 1000)
        byte = file.read(1)
        file.seek(record.offset + 1000)
        file.write(bytes([byte[0] ^ 1]))
    for index in range(len(images)):
        if index != 17:
            images.verify(index)
    with pytest.raises(UnreadableImage, match=r"train: a/017\.jpg cannot be read as an image: its bytes in train-\d+"):
        images.verify(17)
    images.read(17)
    with pytest.raises(UnreadableImage, match="checksum"):
        train_of(open_source(keys(folder, verify=True), 0)).read(17)


@pytest.mark.parametrize("form", ["jpeg", "raw"])
def test_a_shard_cut_off_under_way_is_named(form: str, tree: Path, tmp_path: Path):
    folder = packed(tree, tmp_path / "out", f"prepare.form={form}")
    # in a process of its own, which a page that is gone would end
    process = multiprocessing.get_context("fork").Process(target=_reads_what_is_cut_off, args=(folder,))
    process.start()
    process.join(60)
    assert process.exitcode == 0


def _reads_what_is_cut_off(folder: Path) -> None:
    images = train_of(open_source(keys(folder), 0))
    images.read(0)
    with (folder / "train-00000.bin").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(UnreadableImage, match=r"train-00000\.bin is truncated"):
        images.read(20)


def npy_header(size: int) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<i8", "fortran_order": False, "shape": (size,)})
    return stream.getvalue()


def _edit(old: str, new: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        text = (folder / pack_format.FILE).read_text()
        assert old in text
        (folder / pack_format.FILE).write_text(text.replace(old, new, 1))

    return edit


def _unfinished(folder: Path) -> None:
    (folder / pack_format.FILE).unlink()
    (folder / pack_format.WORK).mkdir()


def _truncated(folder: Path) -> None:
    with (folder / "val-00000.bin").open("r+b") as file:
        file.truncate(10)


def _flip(name: str, at: int) -> Callable[[Path], None]:
    def flip(folder: Path) -> None:
        data = bytearray((folder / name).read_bytes())
        data[at] ^= 1
        (folder / name).write_bytes(data)

    return flip


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / pack_format.FILE).unlink(), "must be a packed folder, but .* has no"),
        (_unfinished, "packing was interrupted. Hint: run the same command with prepare=pack again"),
        (_edit('"version": 1', '"version": 7'), "must describe a packed folder of version 1"),
        (_edit("{", "{{"), "but was altered"),
        (_edit('"val": {', '"test": {'), "must contain packed val images, but contains train, test"),
        (_truncated, r"but val-00000.bin has 10 bytes instead of [\d,]+. Hint: copy the folder"),
        (_flip("val.targets.npy", -8), r"/val\.targets\.npy must be unchanged since .*SHA-256"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(damage: Callable[[Path], Any], said: str, as_it_is: Path, tmp_path: Path):
    folder = tmp_path / "copy"
    shutil.copytree(as_it_is, folder)
    assert scan(keys(folder), 0).mistakes == []
    damage(folder)
    with pytest.raises(ConfigError, match=said):
        open_source(keys(folder), 0)


def _index(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Replace an array of the index, with the right size and SHA-256, as its author can."""

    def edit(folder: Path) -> None:
        manifest = json.loads((folder / pack_format.FILE).read_text())
        path = folder / f"train.{name}.npy"
        content = change(np.load(path))
        path.write_bytes(content) if isinstance(content, bytes) else np.save(path, content)
        found = {"num_bytes": path.stat().st_size, "sha256": sha256(path)}
        manifest["splits"]["train"]["arrays"][name] |= found
        (folder / pack_format.FILE).write_text(json.dumps(manifest))

    return edit


def _records(**changed: int) -> Callable[[Path], None]:
    def change(records: Any) -> Any:
        for name, value in changed.items():
            records[name][3] = value
        return records

    return _index("records", change)


@pytest.mark.parametrize(
    "damage",
    [
        _records(offset=2**64 - 1), _records(num_bytes=2**62), _records(offset=10**9), _records(shard=7),
        _records(height=2**32 - 1, width=2**32 - 1), _records(num_bytes=0, height=0), _index("records", np.atleast_2d),
        _index("records", lambda records: records["offset"]), _index("targets", lambda targets: targets[1:]),
        _index("name_ends", np.negative),
        _index("name_ends", lambda ends: ends * 10**9), _index("names", lambda text: b"x"),
        _index("targets", lambda targets: npy_header(10**12)),
        _edit('"num_images": ', '"num_images": 1'), _edit('"labels": [', '"labels": ["x", '),
        lambda folder: (folder / pack_format.FILE).write_text("[" * 100_000),
        lambda folder: os.truncate(folder / pack_format.FILE, 2**40),
    ],
)  # fmt: skip
def test_the_index_of_a_stranger_is_refused_in_a_sentence(
    damage: Callable[[Path], Any], as_it_is: Path, tmp_path: Path
):
    folder = tmp_path / "copy"
    shutil.copytree(as_it_is, folder)
    damage(folder)
    with pytest.raises(ConfigError, match="Hint: "):
        open_source(keys(folder), 0)


@pytest.mark.parametrize("turned", [True, False])
def test_a_checkpoint_of_a_pack_turns_photographs_as_the_pack_has(turned: bool, tree: Path, tmp_path: Path):
    out = packed(tree, tmp_path / "out", f"data.exif_orientation={str(turned).lower()}")
    request = parse.command_line("train", ["data=packed", f"data.root={out}", "trainer.max_epochs=1"], {})
    assert request.config.data.exif_orientation is turned
    again = prepare_options.read(["prepare=pack", "data=packed", f"data.root={out}", f"out={tmp_path / 'again'}"], {})
    assert again.config.data.exif_orientation is turned
    streamed = keys(out, "streamed", cache_dir=str(tmp_path / "cache"))
    streamed = replace(streamed, root=f"file://{out}")
    with pytest.raises(ConfigError, match=r"Hint: set data\.exif_orientation=true") if turned else nullcontext():
        open_source(streamed, 0)
    assert open_source(replace(streamed, exif_orientation=turned), 0).val


def test_a_pack_without_rotation_is_not_read_as_rotated(as_it_is: Path):
    [text] = map(str, scan(keys(as_it_is, exif_orientation=True), 0).mistakes)
    assert "Hint: pack them again with data.exif_orientation=true" in text
