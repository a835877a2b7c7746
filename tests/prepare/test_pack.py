"""prepare=pack: the same bytes after any interruption, and messages about bad images and folders."""

import os
import pickle
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import Run, clean_environ, write_images
from helpers.forked_commands import Command
from helpers.image_table import write_table
from PIL import Image

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.decoding.jpeg import read_header
from imagenet_ddp.data.sources import pack_format
from imagenet_ddp.data.sources.packed import PackedImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import pack
from imagenet_ddp.prepare.encode import resize

EIGHT_SHARDS = ("prepare.form=raw", "prepare.short_side=0", "prepare.shard_mib=1")


def argv(source: Path, out: Path, *options: str) -> list[str]:
    found = ["prepare=pack", "data=imagefolder", f"data.root={source}", f"out={out}", "prepare.num_workers=1"]
    return [*found, "data.decoder=pillow", *options]


def packs(source: Path, out: Path, *options: str) -> int:
    """Exit code of the command, without its start."""
    plan = prepare_options.read(argv(source, out, *options), {})
    try:
        return pack.run(plan)
    except RunError as error:
        print(str(error).encode(errors="replace").decode(), file=sys.stderr)
        return 1


def refused(source: Path, out: Path, *options: str) -> str:
    with pytest.raises(ConfigError) as caught:
        packs(source, out, *options)
    return str(caught.value)


def opened(out: Path, name: str = "train") -> PackedImages:
    found = pack_format.read_manifest(out)
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


def started(source: Path, out: Path, *options: str) -> Command:
    words = argv(source, out, *options)
    return Command("imagenet_ddp.prepare", *words, folder=out.parent, environment=clean_environ())


@pytest.mark.slow(4)
def test_weights_of_a_table_are_packed(photos: Path, tmp_path: Path):
    table = write_table(tmp_path / "t.csv", photos, absolute=True, weight=lambda path: 1 + int(path.stem) / 4)
    assert packs(table, tmp_path / "out", "data=table") == 0
    found = open_source(DataConfig.of(name="packed", root=str(tmp_path / "out")), 0).train
    expected = open_source(DataConfig.of(name="table", root=str(table)), 0).train
    assert found is not None and expected is not None
    for images in (found, pickle.loads(pickle.dumps(found))):
        assert images.weights is not None and expected.weights is not None
        assert images.weights.tolist() == expected.weights.tolist()
        assert images.targets.tolist() == expected.targets.tolist()
    assert opened(tmp_path / "out", "val").weights is None
    # a pack of the same images with other weights is another one
    write_table(table, photos, absolute=True, weight=lambda path: 1.0)
    assert "another one" in refused(table, tmp_path / "out", "data=table")


@pytest.mark.slow
def test_killed_at_random_moments_the_bytes_are_the_same(photos: Path, uninterrupted: dict[str, bytes], tmp_path: Path):
    out = tmp_path / "out"
    for number_of_files in (1, 4, 9):
        process = started(photos, out, *EIGHT_SHARDS)
        deadline_s = time.monotonic() + 60
        while len(list((out / pack_format.WORK).glob("*"))) < number_of_files:
            assert time.monotonic() < deadline_s and process.poll() is None
            time.sleep(0.001)
        process.kill()
        process.wait()
        with pytest.raises(ConfigError, match="packing was interrupted"):
            pack_format.read_manifest(out)
    assert packs(photos, out, *EIGHT_SHARDS) == 0
    assert contents(out) == uninterrupted


def test_only_the_same_whole_pack_is_accepted(photos: Path, uninterrupted: dict[str, bytes], tmp_path: Path):
    out = tmp_path / "out"
    out.mkdir()
    for name, content in uninterrupted.items():
        (out / name).write_bytes(content)
    assert packs(photos, out, *EIGHT_SHARDS) == 0
    assert contents(out) == uninterrupted
    assert "damaged or another one" in refused(photos, out)
    shutil.copytree(photos, tmp_path / "more")
    shutil.copy(photos / "train/a/0.jpg", tmp_path / "more/train/a/x.jpg")
    assert "damaged or another one" in refused(tmp_path / "more", out, *EIGHT_SHARDS)
    os.truncate(out / "train.names.npy", 100)
    assert "damaged or another one" in refused(photos, out, *EIGHT_SHARDS)


@pytest.mark.slow
def test_several_processes_give_the_same_bytes(photos: Path, uninterrupted: dict[str, bytes], run: Run, tmp_path: Path):
    done = run("prepare", *argv(photos, tmp_path / "out", *EIGHT_SHARDS, "prepare.num_workers=3"))
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "out") == uninterrupted
    assert "60 train and 9 val images packed" in done.stdout


@pytest.mark.parametrize("form", ["jpeg", "raw"])
def test_a_short_side(photos: Path, form: str, tmp_path: Path):
    assert packs(photos, tmp_path / "out", "prepare.short_side=64", f"prepare.form={form}") == 0
    plan = prepare_options.read(argv(photos, tmp_path / "nowhere"), {})
    source, images = open_source(plan.config.data, 0), opened(tmp_path / "out")
    assert source.train is not None
    for index in (0, 31):
        record, whole, small = images.record(index), source.train.read(index), images.read(index)
        height, width = whole.shape[1:]
        assert (record.height, record.width) == small.shape[1:] == (64, round(64 / height * width))
        expected = torch.from_numpy(resize(whole.permute(1, 2, 0).numpy(), 64)).permute(2, 0, 1)
        difference = (expected.int() - small.int()).abs().float().mean().item()
        assert difference == 0 if form == "raw" else difference < 4
    if form == "jpeg":  # so that the rows above a crop need not be decoded
        header = read_header(images.encoded(0))
        assert header is not None
        assert header.restarts_in_rows


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


def test_bad_images_are_refused_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Names of classes and images may have any bytes."""
    odd_class, odd_name = os.fsdecode(b"kl\xe4sse"), os.fsdecode(b"bad\xff\xfe.JPEG")
    tree, out = tmp_path / "tree", tmp_path / "out"
    write_images(tree / "train", {"cat": 5, odd_class: 5})
    write_images(tree / "val", {"cat": 3, odd_class: 3})
    (tree / "train/cat/003.jpg").rename(tree / "train/cat" / odd_name)
    (tree / "train/cat/002.jpg").write_bytes(b"no image")
    (tree / "train/cat/004.jpg").write_bytes((tree / "train/cat/001.jpg").read_bytes()[:200])
    (tree / "val/cat/000.jpg").write_bytes(b"")
    assert packs(tree, out, "data.on_bad_image=raise") == 1
    assert "cannot be read: it is not an image in a known format. Hint: set data.on_bad_image=skip" in (
        capsys.readouterr().err
    )
    assert packs(tree, out, "data.on_bad_image=skip", "data.bad_image_limit=2") == 1
    assert "at most 2 images may be unreadable (data.bad_image_limit)" in capsys.readouterr().err
    assert packs(tree, out, "data.on_bad_image=skip", "data.bad_image_limit=0.2") == 0
    assert "8 train and 5 val images (3 left out) packed" in capsys.readouterr().out
    assert len((out / "bad_images.csv").read_bytes().splitlines()) == 4
    images, found = opened(out), pack_format.read_manifest(out)
    assert images.targets.tolist() == [0] * 3 + [1] * 5
    assert [images.names[index] for index in (0, 1, 2)] == ["cat/000.jpg", "cat/001.jpg", f"cat/{odd_name}"]
    assert all(images.read(index).shape[1] == 40 for index in range(8))
    assert found.classes == ["cat", odd_class] and pack_format.parse_manifest(found.dump(), "it") == found
    assert [entry["name"] for entry in found.splits["train"].left_out] == ["cat/002.jpg", "cat/004.jpg"]


def test_images_that_could_not_be_read_are_read_again(photos: Path, uninterrupted: dict[str, bytes], tmp_path: Path):
    """A disk or a worker that failed may work again, and a file may have been repaired."""
    shutil.copytree(photos, tmp_path / "photos")
    files = sorted((tmp_path / "photos/train").rglob("*.jpg"))[::20]
    whole = [file.read_bytes() for file in files]
    for file in files:
        file.write_bytes(bytes(file.stat().st_size))
    assert packs(tmp_path / "photos", tmp_path / "out", *EIGHT_SHARDS, "data.bad_image_limit=2") == 1
    for file, content in zip(files, whole, strict=True):
        file.write_bytes(content)
    assert packs(tmp_path / "photos", tmp_path / "out", *EIGHT_SHARDS, "data.bad_image_limit=2") == 0
    assert contents(tmp_path / "out") == uninterrupted


def test_what_a_pack_does_not_keep_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    page, clear = Image.new("RGB", (20, 20), "red"), Image.new("RGBA", (20, 20), (200, 0, 0, 0))
    for split, name in ((split, name) for split in ("train", "val") for name in ("cat", "dog")):
        (tmp_path / "in" / split / name).mkdir(parents=True)
        clear.save(tmp_path / "in" / split / name / "clear.png")
        page.save(tmp_path / "in" / split / name / "plain.jpg")
    page.save(tmp_path / "in/train/cat/two.tif", save_all=True, append_images=[page])
    assert packs(tmp_path / "in", tmp_path / "out") == 0
    said = capsys.readouterr().err
    assert "train: 1 image with several frames or pages, of which the first is used." in said
    assert "train: 2 images with fully transparent pixels" in said and "val: 2 images with fully" in said
    assert said.count("These are counted at the end.") == 2


def test_a_folder_with_other_files_is_refused(photos: Path, tmp_path: Path):
    (tmp_path / "thesis.tex").touch()
    assert "out must be a new or an empty folder" in refused(photos, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["thesis.tex"]


def test_a_full_disk_is_foreseen(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    free = shutil._ntuple_diskusage(10**9, 10**9, 1_000_000)  # type: ignore[attr-defined]
    monkeypatch.setattr(shutil, "disk_usage", lambda path: free)
    assert "must have 14 MiB free, got 0 MiB in" in refused(photos, tmp_path / "out", *EIGHT_SHARDS)
