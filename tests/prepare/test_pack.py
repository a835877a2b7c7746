"""prepare=pack: the same bytes after any interruption, and messages about bad images and folders."""

import contextlib
import csv
import errno
import io
import itertools
import json
import multiprocessing
import os
import pickle
import random
import shutil
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Run, write_images
from helpers.image_table import write_table
from PIL import Image

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.sources import manifest
from imagenet_ddp.data.sources.files import MAX_FILE_BYTES
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import pack, shards
from imagenet_ddp.prepare.encode import encode_image, resize

EIGHT_SHARDS = ("prepare.form=raw", "prepare.short_side=0", "prepare.shard_mib=1")


def argv(source: Path, out: Path, *options: str) -> list[str]:
    found = [
        *("prepare=pack", "data=imagefolder", f"data.root={source}", f"out={out}", "prepare.num_workers=1"),
        "data.decoder=pillow",
    ]
    return [*found, *options]


def packs(source: Path, out: Path, *options: str) -> int:
    """Exit code of the command, without its start."""
    plan = prepare_options.read(argv(source, out, *options), {})
    try:
        return pack.run(plan)
    except RunError as error:
        print(error, file=sys.stderr)
        return 1


def refused(source: Path, out: Path, *options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        packs(source, out, *options)
    return str(caught.value)


def opened(out: Path, name: str = "train") -> PackedImages:
    found = manifest.read(out)
    return PackedImages(out, name, found.splits[name], found.form)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 and 9 images, 9 MiB once decoded."""
    root = tmp_path_factory.mktemp("photos")
    generator = np.random.default_rng(0)
    for split, count in (("train", 20), ("val", 3)):
        for name in ("a", "b", "c"):
            (root / split / name).mkdir(parents=True)
            for number in range(count):
                pixels = generator.integers(0, 255, (4, 5, 3), dtype=np.uint8)
                image = Image.fromarray(pixels).resize((250 + 10 * number, 200), Image.Resampling.BICUBIC)
                image.save(root / split / name / f"{number}.jpg")
    return root


@pytest.fixture(scope="module")
def uninterrupted(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("whole") / "out"
    assert packs(photos, out, *EIGHT_SHARDS) == 0
    found = contents(out)
    assert sum(name.startswith("train-") for name in found) > 5
    return found


@contextlib.contextmanager
def started(source: Path, out: Path, *options: str) -> Any:
    """A process that packs; its output is in out.parent/said."""
    process = multiprocessing.get_context("forkserver").Process(
        target=_in_a_process, args=(source, out, options, out.parent / "said")
    )
    process.start()
    yield process
    process.join(300)
    assert process.exitcode is not None


def _in_a_process(source: Path, out: Path, options: tuple[str, ...], said: Path) -> None:
    torch.set_num_threads(1)
    sys.stderr = sys.stdout = said.open("a", buffering=1)
    sys.exit(packs(source, out, *options))


def test_weights_of_a_table_are_packed(photos: Path, tmp_path: Path):
    weight = lambda path: 1 + int(path.stem) / 4  # noqa: E731
    table = write_table(tmp_path / "t.csv", photos, absolute=True, weight=weight)
    (photos / "train" / "b" / "odd.jpg").write_bytes(b"none")
    try:
        write_table(table, photos, absolute=True, weight=lambda path: 9 if path.stem == "odd" else weight(path))
        assert packs(table, tmp_path / "out", "data=table", "data.on_bad_image=skip") == 0
    finally:
        (photos / "train" / "b" / "odd.jpg").unlink()
    write_table(table, photos, absolute=True, weight=weight)
    found = open_source({**asdict(DataConfig()), "name": "packed", "root": str(tmp_path / "out")}, 0, {}).train
    expected = open_source({**asdict(DataConfig()), "name": "table", "root": str(table)}, 0, {}).train
    assert found is not None and expected is not None
    for images in (found, pickle.loads(pickle.dumps(found))):
        assert images.weights is not None and expected.weights is not None
        assert images.weights.tolist() == expected.weights.tolist()
        assert images.targets.tolist() == expected.targets.tolist()
    assert opened(tmp_path / "out", "val").weights is None
    # a pack of the same images with other weights is another one
    write_table(table, photos, absolute=True, weight=lambda path: 1.0)
    assert "other images" in refused(table, tmp_path / "out", "data=table")


def test_an_interrupted_pack_is_resumed(photos: Path, uninterrupted: dict[str, bytes], tmp_path: Path):
    """A finished shard is kept, one that lost its end in a power cut is made again; the bytes are the same."""
    out, counted = tmp_path / "out", itertools.count()

    def encode(*args: Any) -> Any:
        return encode_image(*args) if next(counted) < 50 else _killed()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "encode_image", encode)
        with pytest.raises(KeyboardInterrupt):
            packs(photos, out, *EIGHT_SHARDS)
    with pytest.raises(ConfigError, match="packing was interrupted"):
        manifest.read(out)
    before = (out / "train-00001.bin").stat()
    (out / "train-00000.bin").write_bytes(uninterrupted["train-00000.bin"][:1000])
    assert packs(photos, out, *EIGHT_SHARDS) == 0
    assert (out / "train-00001.bin").stat().st_ino == before.st_ino
    assert contents(out) == uninterrupted


def test_killed_at_random_moments_the_bytes_are_the_same(photos: Path, uninterrupted: dict[str, bytes], tmp_path: Path):
    out, moments, unfinished, longest_s = tmp_path / "out", random.Random(time.time_ns()), 0, 0.5
    for _ in range(60):
        with started(photos, out, *EIGHT_SHARDS) as process:
            _wait_for(out / manifest.WORK / "plan.json")
            time.sleep(moments.uniform(0, longest_s))
            process.kill()
        if (out / manifest.FILE).exists():  # the kill came too late: from the start, and sooner
            shutil.rmtree(out)
            longest_s /= 2
            continue
        unfinished += 1
        with pytest.raises(ConfigError, match="packing was interrupted"):
            manifest.read(out)
        if unfinished == 4:
            break
    assert unfinished == 4, "hardly a kill came in time"
    assert packs(photos, out, *EIGHT_SHARDS) == 0
    assert contents(out) == uninterrupted


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 60
    while not path.exists() and not (path.parents[1] / manifest.FILE).exists():
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.001)


def test_two_at_once(photos: Path, uninterrupted: dict[str, bytes], tmp_path: Path):
    out = tmp_path / "out"
    with started(photos, out, *EIGHT_SHARDS) as one, started(photos, out, *EIGHT_SHARDS) as other:
        pass
    said = (tmp_path / "said").read_text()
    assert (one.exitcode, other.exitcode) == (0, 0), said
    assert "is already packed: 60 train and 9 val images" in said
    assert contents(out) == uninterrupted


@pytest.mark.parametrize("how", ["a missing shard", "a short index"])
def test_a_damaged_pack_is_mended(how: str, photos: Path, uninterrupted: dict[str, bytes], tmp_path: Path, capsys: Any):
    out = tmp_path / "out"
    for name, content in uninterrupted.items():
        out.mkdir(exist_ok=True)
        (out / name).write_bytes(content)
    if how == "a missing shard":
        (out / "train-00001.bin").unlink()
    else:
        os.truncate(out / "train.names.npy", 100)
    assert packs(photos, out, *EIGHT_SHARDS) == 0
    assert "Packing the images again, because " in capsys.readouterr().err
    assert contents(out) == uninterrupted


@pytest.mark.slow
def test_several_processes_give_the_same_bytes(photos: Path, uninterrupted: dict[str, bytes], run: Run, tmp_path: Path):
    done = run("prepare", *argv(photos, tmp_path / "out", *EIGHT_SHARDS, "prepare.num_workers=3"))
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "out") == uninterrupted
    assert "60 train and 9 val images packed" in done.stdout
    assert "MiB after" in done.stdout
    again = run("prepare", *argv(photos, tmp_path / "out", "prepare.short_side=100"))
    assert again.returncode == 2
    assert "form=raw instead of jpeg" in " ".join(again.stderr.split())


@pytest.mark.parametrize("form", ["jpeg", "raw"])
def test_a_short_side(photos: Path, form: str, tmp_path: Path):
    assert packs(photos, tmp_path / "out", "prepare.short_side=64", f"prepare.form={form}") == 0
    source = open_source(json.loads(json.dumps(_keys(photos))), 0, {})
    images = opened(tmp_path / "out")
    assert source.train is not None
    for index in (0, 31):
        record, whole, small = images.record(index), source.train.read(index), images.read(index)
        height, width = whole.shape[1:]
        assert (record.height, record.width) == small.shape[1:] == (64, round(64 / height * width))
        expected = torch.from_numpy(resize(whole.permute(1, 2, 0).numpy(), 64)).permute(2, 0, 1)
        difference = (expected.int() - small.int()).abs().float().mean().item()
        assert difference == 0 if form == "raw" else difference < 4
        if form == "jpeg":
            assert Image.open(io.BytesIO(images.encoded(index))).layer[0][1:3] == (2, 2)  # type: ignore[attr-defined]


def _keys(root: Path) -> dict[str, Any]:
    plan = prepare_options.read(argv(root, root.parent / "nowhere"), {})
    return dict(plan.config["data"])


def test_files_are_kept_as_they_are_where_they_can_be(tmp_path: Path):
    write_images(tmp_path / "tree/train", {"cat": 3, "dog": 1})
    write_images(tmp_path / "tree/val", {"cat": 1})
    cat = tmp_path / "tree/train/cat"
    pixels = np.full((30, 20, 3), (200, 40, 90), np.uint8)
    Image.fromarray(pixels).convert("CMYK").save(cat / "3.jpg", quality=95)
    Image.fromarray(pixels).save(cat / "4.png")
    Image.fromarray(pixels).save(cat / "5.jpg", "PNG")
    Image.fromarray(pixels[..., 0]).save(cat / "6.jpg")
    assert packs(tmp_path / "tree", tmp_path / "out", "prepare.short_side=0") == 0
    images = opened(tmp_path / "out")
    for index in range(7):
        before = Path(cat / images.path(index).rpartition("/")[2]).read_bytes()
        assert (images.encoded(index) == before) == (index in (0, 1, 2, 6)), index
        assert images.encoded(index)[:2] == b"\xff\xd8"
    for index in (4, 5):
        assert np.abs(images.read(index).permute(1, 2, 0).numpy().astype(int) - pixels).max() < 6
    # nothing is enlarged, and what would not become smaller is not encoded once more
    assert packs(tmp_path / "tree", tmp_path / "400", "prepare.short_side=400") == 0
    assert contents(tmp_path / "400")["train-00000.bin"] == contents(tmp_path / "out")["train-00000.bin"]
    noise = np.random.default_rng(0).integers(0, 255, (90, 60, 3), dtype=np.uint8)
    Image.fromarray(noise).save(cat / "000.jpg", quality=100, subsampling=0)
    assert packs(tmp_path / "tree", tmp_path / "smaller", "prepare.short_side=400") == 0
    assert len(opened(tmp_path / "smaller").encoded(0)) < (cat / "000.jpg").stat().st_size


def test_bad_images_are_refused_all_together_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_images(tmp_path / "tree/train", {"cat": 5, "dog": 5})
    write_images(tmp_path / "tree/val", {"cat": 3, "dog": 3})
    tree, out = tmp_path / "tree", tmp_path / "out"
    (tree / "train/cat/002.jpg").write_bytes(b"no image")
    (tree / "train/dog/004.jpg").write_bytes((tree / "train/dog/003.jpg").read_bytes()[:200])
    (tree / "val/dog/000.jpg").write_bytes(b"")
    assert packs(tree, out) == 1
    said = capsys.readouterr().err
    assert "3 of 16 images cannot be read" in said
    assert f"\n  {tree}/train/cat/002.jpg: it is not an image in a known format" in said
    assert "train/dog/004.jpg: " in said
    assert "val/dog/000.jpg: the file is empty" in said
    assert "Hint: replace the files, or set data.on_bad_image=skip to leave them out" in said
    with (out / manifest.WORK / "bad_images.csv").open() as file:
        assert len(list(csv.reader(file))) == 4
    skip = ("data.on_bad_image=skip", "data.bad_image_limit=2")
    assert packs(tree, out, *skip) == 1
    assert "more than data.bad_image_limit=2 allows" in capsys.readouterr().err
    assert packs(tree, out, skip[0], "data.bad_image_limit=0.2") == 0
    assert "8 train and 5 val images (3 left out) packed" in capsys.readouterr().out
    images = opened(out)
    assert images.targets.tolist() == [0] * 4 + [1] * 4
    assert [images.path(index).rpartition(": ")[2] for index in (1, 2)] == ["cat/001.jpg", "cat/003.jpg"]
    assert all(images.read(index).shape[1] == 40 for index in range(8))
    left_out = manifest.read(out).splits["train"].left_out
    assert [entry["name"] for entry in left_out] == ["cat/002.jpg", "dog/004.jpg"]


def test_a_file_that_is_far_too_large_is_named_and_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write_images(tmp_path / "tree/train", {"cat": 3, "dog": 1})
    write_images(tmp_path / "tree/val", {"cat": 1})
    with (tmp_path / "tree/train/cat/001.jpg").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 2**30)  # takes no room on the disk
    assert packs(tmp_path / "tree", tmp_path / "out") == 1
    assert "train/cat/001.jpg: the file is too large (2.0 GiB)" in capsys.readouterr().err


def test_names_that_are_not_utf8_are_kept(tmp_path: Path):
    odd_class, odd_name = os.fsdecode(b"kl\xe4sse"), os.fsdecode(b"bad\xff\xfe.JPEG")
    for split in ("train", "val"):
        write_images(tmp_path / "tree" / split, {"cat": 3, odd_class: 3})
        (tmp_path / "tree" / split / odd_class / "000.jpg").rename(tmp_path / "tree" / split / odd_class / odd_name)
    (tmp_path / "tree/train/cat" / odd_name).write_bytes(b"no image")
    options = ("data.on_bad_image=skip", "data.bad_image_limit=1")
    assert packs(tmp_path / "tree", tmp_path / "out", *options) == 0
    found = manifest.read(tmp_path / "out")
    assert found.classes == ["cat", odd_class]
    assert manifest.parse(found.dump(), "it") == found
    assert [entry["name"] for entry in found.splits["train"].left_out] == [f"cat/{odd_name}"]
    names = [opened(tmp_path / "out").names[index] for index in range(6)]
    assert f"{odd_class}/{odd_name}" in names


def test_mended_images_need_no_new_start(tmp_path: Path):
    write_images(tmp_path / "tree/train", {"cat": 5, "dog": 1})
    write_images(tmp_path / "tree/val", {"cat": 3})
    good = (tmp_path / "tree/train/cat/002.jpg").read_bytes()
    assert packs(tmp_path / "tree", tmp_path / "whole") == 0
    (tmp_path / "tree/train/cat/002.jpg").write_bytes(b"no image")
    assert packs(tmp_path / "tree", tmp_path / "out") == 1
    (tmp_path / "tree/train/cat/002.jpg").write_bytes(good)
    assert packs(tmp_path / "tree", tmp_path / "out") == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def packs_until_judged(source: Path, out: Path) -> None:
    """All shards are made, and it is not finished."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("imagenet_ddp.prepare.pack._validate_bad_images", _killed)
        with pytest.raises(KeyboardInterrupt):
            packs(source, out)


def test_changed_images_are_packed_anew_or_refused(tmp_path: Path):
    tree, out = tmp_path / "tree", tmp_path / "out"
    write_images(tree / "train", {"cat": 5, "dog": 1})
    write_images(tree / "val", {"cat": 3})
    packs_until_judged(tree, out)
    Image.new("RGB", (33, 22)).save(tree / "train/cat/001.jpg")
    assert packs(tree, out) == 0
    assert opened(out).read(1).shape == (3, 22, 33)
    assert packs(tree, out) == 0  # is already packed
    Image.new("RGB", (55, 44)).save(tree / "val/cat/001.jpg", quality=100)
    assert "a pack of these images and options, but was made with other images" in refused(tree, out)


def test_an_image_that_changes_meanwhile(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any):
    shutil.copytree(photos, tmp_path / "own")
    image, write = tmp_path / "own/train/b/3.jpg", pack._write_shards

    def changed(*args: Any, **more: Any) -> Any:
        found = write(*args, **more)
        shutil.copyfile(photos / "train/c/7.jpg", image)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(pack, "_write_shards", changed)
        assert packs(tmp_path / "own", tmp_path / "out", *EIGHT_SHARDS) == 1
    said = capsys.readouterr().err
    assert "1 image changed during packing; the first was train/b/3.jpg. Hint: run the same command again" in said
    assert packs(tmp_path / "own", tmp_path / "out", *EIGHT_SHARDS) == 0
    assert packs(tmp_path / "own", tmp_path / "fresh", *EIGHT_SHARDS) == 0
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_what_would_mix_is_refused(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    assert "contains thesis.tex. Hint: set out=FOLDER" in refused(photos, foreign)
    assert sorted(path.name for path in foreign.iterdir()) == ["thesis.tex"]
    out = tmp_path / "out"
    monkeypatch.setattr("imagenet_ddp.prepare.pack._write_shards", _killed)
    with pytest.raises(KeyboardInterrupt):
        packs(photos, out)
    monkeypatch.undo()
    assert "short_side=256 instead of 100" in refused(photos, out, "prepare.short_side=100")
    assert "quality=90 instead of 80" in refused(photos, out, "prepare.quality=80")
    shutil.copytree(photos, tmp_path / "more")
    shutil.copy(photos / "train/a/0.jpg", tmp_path / "more/train/a/x.jpg")
    assert "an unfinished pack of these images and options, but was made with other images" in refused(
        tmp_path / "more", out
    )
    assert packs(photos, out) == 0


def _killed(*args: object, **more: object) -> None:
    raise KeyboardInterrupt


def test_a_full_disk_is_foreseen(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 1_000_000))  # type: ignore[attr-defined]
    text = refused(photos, tmp_path / "out", *EIGHT_SHARDS)
    assert "must have 14 MiB free, got 0 MiB in" in text


def test_a_disk_that_fills_up_is_named(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        whole = Path.open
        patch.setattr(Path, "open", lambda path, *a, **k: Full() if path.name == "shard.part" else whole(path, *a, **k))
        assert packs(photos, tmp_path / "out") == 1
    said = capsys.readouterr().err
    assert "out cannot be written: [Errno 28] No space left on device. Hint: free some disk space" in said
    assert packs(photos, tmp_path / "out") == 0


def test_odd_files_are_packed_or_left_out(shared_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "tree/train").mkdir(parents=True)
    (tmp_path / "tree/train/odd").symlink_to(shared_data / "odd")
    write_images(tmp_path / "tree/train", {"dog": 1})
    write_images(tmp_path / "tree/val", {"odd": 1})
    monkeypatch.setattr(shards, "NUM_SAMPLES", 1)
    options = ("data.on_bad_image=skip", "data.bad_image_limit=0.9", "prepare.short_side=32")
    assert packs(tmp_path / "tree", tmp_path / "out", *options) == 0
    found = manifest.read(tmp_path / "out").splits["train"]
    assert found.num_images > 50
    assert len(found.left_out) > 10
    assert all(entry["reason"] for entry in found.left_out)
    images = opened(tmp_path / "out")
    for index in range(len(images)):
        record = images.record(index)
        assert images.read(index).shape == (3, record.height, record.width)
