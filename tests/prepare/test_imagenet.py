"""prepare=imagenet: the folders made from the archives, and messages about bad archives."""

import hashlib
import os
import re
import shutil
import tarfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from helpers import fake_imagenet
from helpers.fake_imagenet import CLASSES, DEVKIT, NUM_TRAIN, TRAIN, VAL, VAL_IDS, FakeImageNet, files_below
from torchvision.datasets import imagenet as torchvision_imagenet

from imagenet_ddp.data.sources.imagenet import class_table
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare import imagenet
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare.archives import devkit


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeImageNet:
    """Small archives in place of the published ones."""
    found = fake_imagenet.make(tmp_path / "archives")
    names = {"train": TRAIN, "val": VAL, "devkit": DEVKIT}
    meta = {key: (name, found.md5[key]) for key, name in names.items()}
    numbers = {"train": (sum(NUM_TRAIN.values()), 0), "val": (len(VAL_IDS), 0)}
    monkeypatch.setattr(torchvision_imagenet, "ARCHIVE_META", meta)
    monkeypatch.setattr(imagenet, "NUM_IMAGES", numbers)
    monkeypatch.setattr(devkit, "class_table", lambda: [[name, "", str(key)] for key, name in CLASSES.items()])
    return found


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def run_prepare(fake: FakeImageNet, out: Path | str) -> None:
    typed = ["prepare=imagenet", f"archive_dir={fake.folder}", f"out={out}"]
    assert imagenet.run(prepare_options.read(typed, os.environ)) == 0


def refusal(fake: FakeImageNet, out: Path, error: type[Exception] = ConfigError) -> str:
    with pytest.raises(error) as caught:
        run_prepare(fake, out)
    assert str(caught.value).count("Hint: ") == 1
    return str(caught.value)


def test_every_image_is_in_its_folder(fake: FakeImageNet, out: Path, capsys: pytest.CaptureFixture[str]):
    (out / "train.unpacking" / "n01440764").mkdir(parents=True)  # left by a killed run
    (out / "train.unpacking" / "n01440764" / "half.JPEG").touch()
    run_prepare(fake, out)
    assert files_below(out) == fake.files
    printed = capsys.readouterr().out
    assert f"train: 19 images: {out}/train" in printed and f"val: 9 images: {out}/val" in printed
    assert printed.endswith(f"python -m imagenet_ddp.train data=imagenet data.root={out}\n")
    assert sorted(path.name for path in out.iterdir()) == [".prepare.lock", "train", "val"]
    before = {path: path.stat().st_mtime_ns for split in ("train", "val") for path in (out / split).rglob("*")}
    run_prepare(fake, out)  # nothing is done again
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(("missing", "left_out", "made"), [(TRAIN, "train", "val"), (DEVKIT, "val", "train")])
def test_missing_archives(
    missing: str, left_out: str, made: str, fake: FakeImageNet, out: Path, capsys: pytest.CaptureFixture[str]
):
    (fake.folder / missing).unlink()
    run_prepare(fake, out)
    assert re.search(f"{left_out} is left out: .* has no {missing}", capsys.readouterr().out)
    assert files_below(out) == {path: data for path, data in fake.files.items() if path.startswith(made)}


def test_a_changed_byte(fake: FakeImageNet, out: Path):
    path = fake.folder / TRAIN
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert "must have their published MD5, but one has not" in refusal(fake, out)
    assert not (out / "train").exists()
    fake_imagenet.make(fake.folder)
    run_prepare(fake, out)
    assert files_below(out) == fake.files


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE])
def test_no_member_is_written_outside(kind: bytes, fake: FakeImageNet, out: Path, tmp_path: Path):
    """Even with the right MD5, which only the published archives have."""
    member = tarfile.TarInfo("../../../evil" if kind == tarfile.REGTYPE else "evil")
    member.type, member.linkname = kind, "../../../archives"
    with tarfile.open(fake.folder / TRAIN, "w") as archive:
        archive.addfile(member)
        archive.addfile(tarfile.TarInfo("evil/mine" if kind == tarfile.SYMTYPE else "mine"))
    md5 = hashlib.md5((fake.folder / TRAIN).read_bytes(), usedforsecurity=False).hexdigest()
    torchvision_imagenet.ARCHIVE_META["train"] = (TRAIN, md5)
    with pytest.raises(tarfile.FilterError):
        run_prepare(fake, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["archives", "out"]
    assert sorted(path.name for path in fake.folder.iterdir()) == sorted([TRAIN, VAL, DEVKIT])


def test_existing_folders(fake: FakeImageNet, out: Path):
    (out / "val").mkdir(parents=True)
    (out / "val" / "ILSVRC2012_val_00000001.JPEG").touch()
    assert "out/val exists, so it must have 9 images in class folders, got 0. Hint: move " in refusal(fake, out)
    assert files_below(out) == {"val/ILSVRC2012_val_00000001.JPEG": b""}


def test_a_full_disk(fake: FakeImageNet, out: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    assert "out must have 1 MiB free, got 0 MiB in " in refusal(fake, out)


def test_the_ids_are_those_of_the_devkit():
    """The SHA-256 is of the first 1,000 WordNet ids of the official meta.mat, a line "ID<tab>WordNet id" each."""
    classes = {int(number): wordnet_id for wordnet_id, _, number in class_table()}
    lines = "".join(f"{number}\t{classes[number]}\n" for number in range(1, 1001))
    expected = "33cac7974cc0bb3935c6fca46b93729c29a6481fa635e92f5f0852859aecd361"
    assert hashlib.sha256(lines.encode()).hexdigest() == expected and len(classes) == 1000
