"""prepare=check: what it finds in real and in odd images; no image ends it."""

import csv
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Run, write_images
from helpers.forked_commands import start_code
from helpers.sample_images import write_odd_files
from PIL import ExifTags, Image

from imagenet_ddp.cli import parse
from imagenet_ddp.data.decoding.pixel_conversion import Ignored
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare import check, pack
from imagenet_ddp.prepare import options as prepare_options

KILLERS = """
import os, signal, time
import numpy as np, torch
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data import Images, Source

class Killers(Images):
    def __init__(self, deeds):
        self.deeds, self.targets = deeds, np.zeros(len(deeds), dtype=np.int64)
    def __len__(self):
        return len(self.deeds)
    def path(self, index):
        return f"{index:02} {self.deeds[index]}"
    def read(self, index):
        match self.deeds[index]:
            case "segv": os.kill(os.getpid(), signal.SIGSEGV)
            case "hang": time.sleep(60)
            case "deep": return (lambda f: f(f))(lambda f: f(f))
            case "bad": raise UnreadableImage(self.path(index), "for a reason")
            case "odd": raise ZeroDivisionError("division by zero")
        return torch.full((3, 20, 30 + index), index, dtype=torch.uint8)

def make():
    deeds = ["ok", "segv", "hang", "deep", "bad", "odd", "ok"]
    return Source(["a"], Killers(deeds), Killers(["ok"] * 3 + ["segv"]))

def crashing():
    return Source(["a"], Killers(["ok", "segv", "ok"]), Killers(["ok"]))
"""


# The command, which is stopped before it reads the first image.
STOPPED = """
import signal
from imagenet_ddp.prepare import __main__, check

check._probe_all = lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.argv[1:] = args
__main__.main()
"""


def test_a_check_that_is_stopped_says_what_is_left(tmp_path: Path):
    write_images(tmp_path / "pets", {"cat": 3, "dog": 3})
    stopped = start_code(STOPPED, "prepare=check", "data=imagefolder", f"data.root={tmp_path / 'pets'}",
                         f"out={tmp_path / 'out'}")  # fmt: skip
    assert stopped.wait(120) == 128 + signal.SIGINT
    assert "The check was stopped: no list and no page is written." in stopped.err
    assert not (tmp_path / "out").exists()


def bad_images(folder: Path) -> dict[str, str]:
    with (folder / "bad_images.csv").open(newline="", encoding="utf-8-sig") as file:
        return {row["path"]: row["reason"] for row in csv.DictReader(file)}


@pytest.mark.slow
def test_nothing_ends_it(run: Run, tmp_path: Path):
    (tmp_path / "killers.py").write_text(KILLERS)
    done = run("prepare", "prepare=check", "data._target_=killers.make", "allow_targets=[killers]", "out=report",
               "prepare.num_workers=2", "prepare.timeout_s=2")  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    found = bad_images(tmp_path / "report")
    assert found == {
        "01 segv": "it crashes the decoder (SIGSEGV)",
        "02 hang": "it takes longer than 2 s (prepare.timeout_s)",
        "03 deep": "RecursionError: maximum recursion depth exceeded",
        "04 bad": "for a reason",
        "05 odd": "ZeroDivisionError: division by zero",
        "03 segv": "it crashes the decoder (SIGSEGV)",  # of val
    }
    assert "train: 2 of 7 images can be read" in done.stdout and "val: 3 of 4 images can be read" in done.stdout
    assert "Traceback" not in done.stderr


def test_an_image_that_crashes_is_left_out_of_a_pack(run: Run, tmp_path: Path):
    """Also if it is one of those from which the size is estimated."""
    (tmp_path / "killers.py").write_text(KILLERS)
    options = ["prepare=pack", "allow_targets=[killers]", "out=packed", "prepare.num_workers=1"]
    skip = ["data.on_bad_image=skip", "data.bad_image_limit=1"]
    done = run("prepare", *options, "data._target_=killers.crashing", *skip)
    assert "2 train and 1 val images (1 left out) packed" in done.stdout, done.stdout + done.stderr
    assert bad_images(tmp_path / "packed") == {"01 segv": "it crashes the decoder (SIGSEGV)"}


@pytest.fixture
def pets(tmp_path: Path, tree: Path) -> Path:
    """29 training and 11 validation images, a copy of one's own."""
    return Path(shutil.copytree(tree, tmp_path / "pets"))


@pytest.fixture
def done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The exit code of a command, without its four seconds of imports."""
    monkeypatch.chdir(tmp_path)

    def do(*typed: str) -> int:
        plan = prepare_options.read([*typed, "prepare.num_workers=1"], os.environ)
        return {"check": check, "pack": pack}[plan.config.prepare.name].run(plan)

    return do


def test_nothing_bad(done: Callable[..., int], pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert done("prepare=check", "data=imagefolder", f"data.root={pets}") == 0
    printed = capsys.readouterr().out
    assert "train: 29 of 29 images can be read, 3 classes with 9 to 10 images each" in printed
    assert printed.startswith("Checking 40 images of 3 classes.\n") and "cannot be read" not in printed
    (folder,) = (tmp_path / "runs" / "imagefolder").iterdir()
    assert folder.name.startswith("check_")
    assert bad_images(folder) == {}


def test_all_that_can_be_wrong(
    done: Callable[..., int], pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """A bad file, a leak byte for byte, a wrong label."""
    (pets / "train" / "cat" / "000.jpg").write_bytes(b"<html>404</html>")
    shutil.copyfile(pets / "train" / "owl" / "001.jpg", pets / "val" / "owl" / "other name.jpg")
    shutil.copyfile(pets / "train" / "cat" / "005.jpg", pets / "train" / "dog" / "cat.jpg")
    shutil.copyfile(pets / "train" / "cat" / "006.jpg", pets / "train" / "cat" / "006 (2).jpg")
    shutil.copyfile(pets / "val" / "owl" / "000.jpg", pets / "val" / "dog" / "1.jpg")
    (pets / "train" / "cat" / ".DS_Store").touch()
    (pets / "train" / "cat" / "notes.txt").touch()
    assert done("prepare=check", "data=imagefolder", f"data.root={pets}", "out=report") == 1
    printed = capsys.readouterr().out
    assert "1 validation image is among the training images, too" in printed
    assert "2 images are in two classes, so that one label is wrong" in printed
    assert "1 image is twice in a class" in printed
    assert "2 files were left out: 1 hidden, 1 of another type (.txt)" in printed
    assert bad_images(tmp_path / "report") == {
        str(pets / "train" / "cat" / "000.jpg"): "it is not an image in a known format"
    }
    with (tmp_path / "report" / "duplicates.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    # only where all are in one class and split, it makes no difference which of them is kept
    assert [(row["group"], Path(row["path"]).name, row["label"], row["split"], row["decision"]) for row in rows] == [
        ("1", "005.jpg", "cat", "train", ""), ("1", "cat.jpg", "dog", "train", ""),
        ("2", "1.jpg", "dog", "val", ""), ("2", "000.jpg", "owl", "val", ""),
        ("3", "001.jpg", "owl", "train", ""), ("3", "other name.jpg", "owl", "val", ""),
        ("4", "006.jpg", "cat", "train", "keep"), ("4", "006 (2).jpg", "cat", "train", "remove"),
    ]  # fmt: skip
    assert f"bad: {pets}/train/cat/000.jpg: it is not an image in a known format" in printed


def test_a_list_that_cannot_be_read_is_not_replaced(done: Callable[..., int], pets: Path):
    """It may have decisions, which another check would drop."""
    content = "path,label,suggested,score,split,decision\ncat/é.jpg,cat,dog,0.1,train,keep\n".encode("cp1252")
    Path("report").mkdir()
    Path("report/wrong_labels.csv").write_bytes(content)
    with pytest.raises(ConfigError, match=r"got report/wrong_labels.csv. Hint: .* as CSV in UTF-8"):
        done("prepare=check", "data=imagefolder", f"data.root={pets}", "out=report")
    assert Path("report/wrong_labels.csv").read_bytes() == content


@pytest.mark.parametrize("is_split", [False, True])
def test_a_class_without_images_is_a_fault(
    is_split: bool, done: Callable[..., int], pets: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """Which the check names once and leaves out, also of the features, and training refuses; without any image there is
    nothing to check."""
    if not is_split:  # data.root contains the class folders
        pets = (pets / "train").rename(tmp_path / "all")
    folder = pets / "train" if is_split else pets
    (folder / "wolf").mkdir()
    (folder / "cat" / "000.jpg").write_bytes(b"no image")
    options = ["data=imagefolder", f"data.root={pets}", "out=report"]
    fault = "must contain images, but 1 of 4 contains none: wolf. Hint: add images, or remove the folder"
    left_out = "without images is left out here, and refused by train: wolf. Hint: add images, or remove the folder"
    assert done("prepare=check", *options) == 1
    said = capsys.readouterr().out
    first, *others = said.partition("What to mend first:\n")[2].splitlines()
    assert left_out in first and any("cannot be read" in line for line in others)
    assert said.count("wolf") == 1 and " of 3 classes." in said
    scan = parse.command_line("features", [*options[:2], "model.weights=DEFAULT"], {}).scan
    assert scan is not None and scan.open is not None and len(scan.open().classes) == 3
    with pytest.raises(ConfigError, match=fault):
        done("prepare=pack", *options)
    for path in folder.rglob("*.jpg"):
        path.unlink()
    with pytest.raises(ConfigError, match="must contain images"):
        done("prepare=check", *options)


@pytest.mark.parametrize("form", ["folder", "table"])
def test_a_class_in_one_split_alone_is_a_fault(
    form: str, done: Callable[..., int], pets: Path, capsys: pytest.CaptureFixture[str]
):
    """Each is named once, beside the class folders without any image."""
    is_folder, emptied = form == "folder", ["val/owl", "train/dog" if form == "folder" else "val/dog"]
    for path in (path for name in emptied for path in (pets / name).iterdir()):
        path.unlink()
    (pets / "train" / "wolf").mkdir()
    options = ["data=imagefolder", f"data.root={pets}"]
    if not is_folder:  # which is refused if a class has validation images alone
        rows = [f"{path},{path.parts[-2]},{path.parts[-3]}" for path in sorted(pets.rglob("*.jpg"))]
        Path("pets.csv").write_text("\n".join(["path,label,split", *rows]), encoding="utf-8")
        options = ["data=table", "data.root=pets.csv"]
    assert done("prepare=check", *options, "out=report") == is_folder
    said = capsys.readouterr().out
    of_val = r"1 class has validation images alone, .*: dog\. Add training images, or remove the class"
    assert bool(re.search(of_val, said)) == is_folder
    of_train = "1 class has training images alone, .*: owl" if is_folder else "2 classes have .* alone, .*: dog, owl"
    assert re.search(rf"{of_train}\. Add validation images", said) and "no validation images" not in said
    assert said.count("wolf") == said.count("left out here") == is_folder


def test_what_is_not_used_of_an_image_is_counted(tmp_path: Path):
    """Pages after the first, and transparency: pictures that differ in these alone are the same to a net."""
    page, clear = Image.new("RGB", (20, 20), "red"), Image.new("RGBA", (20, 20), (200, 0, 0, 0))
    half = Image.new("RGBA", (20, 20), (200, 0, 0, 128))
    palette = page.convert("P")
    options: dict[str, Any]
    for name, image, options in (
        ("two.tif", page, {"save_all": True, "append_images": [page]}), ("one.tif", page, {}),
        ("two.gif", page, {"save_all": True, "append_images": [Image.new("RGB", (20, 20), "blue")]}),
        ("clear.png", clear, {}), ("clear.webp", clear, {"lossless": True}), ("half.png", half, {}),
        ("clear_palette.png", palette, {"transparency": palette.getpixel((0, 0))}),
        ("plain.png", page, {}), ("plain.jpg", page, {}),
    ):  # fmt: skip
        image.save(tmp_path / name, **options)
    names = sorted(path.name for path in tmp_path.iterdir())
    images = FileImages(tmp_path, Names.of(names), np.zeros(len(names), np.int64))
    probes = {name: check.probe_image(images, index) for index, name in enumerate(names)}
    assert {name for name, probe in probes.items() if probe.reason} == set()
    assert {name for name, probe in probes.items() if probe.ignored & Ignored.PAGES} == {"two.tif", "two.gif"}
    assert {name for name, probe in probes.items() if probe.ignored & Ignored.TRANSPARENCY} == {
        "clear.png", "clear.webp", "clear_palette.png"
    }  # fmt: skip


def test_photographs_that_phones_have_rotated_are_counted(
    done: Callable[..., int], pets: Path, capsys: pytest.CaptureFixture[str]
):
    for name, orientation in (("000", 6), ("001", 2), ("002", 1)):
        exif = Image.Exif()
        exif[ExifTags.Base.Orientation] = orientation
        Image.new("RGB", (60, 40), "red").save(pets / f"val/owl/{name}.jpg", quality=80 + orientation, exif=exif)
    assert done("prepare=check", "data=imagefolder", f"data.root={pets}") == 0
    printed = capsys.readouterr().out
    assert "note: val: 2 photographs with an EXIF rotation or mirroring, turned" in printed
    assert "note: train" not in printed


def test_packed_images_against_their_checksums(done: Callable[..., int], pets: Path, tmp_path: Path):
    assert done("prepare=pack", "data=imagefolder", f"data.root={pets}", "out=packed", "prepare.short_side=0") == 0
    options = ["prepare=check", "data=packed", "data.root=packed", "out=report"]
    assert done(*options) == 0
    shard = max((tmp_path / "packed").rglob("*"), key=lambda path: path.stat().st_size if path.is_file() else 0)
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert done(*options) == 1
    (reason,) = bad_images(tmp_path / "report").values()
    assert "checksum" in reason


# ---- unusual files


@pytest.mark.slow
def test_every_odd_file(
    odd_images: Path | None, done: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    odd = tmp_path / "odd" / "train" / "a"
    if odd_images is not None:
        shutil.copytree(odd_images, odd, ignore=shutil.ignore_patterns("MANIFEST.md"))
    made = write_odd_files(odd)
    (odd.parent / "b").mkdir()
    (odd / "grey.jpg").rename(odd.parent / "b" / "grey.jpg")  # two classes are needed
    options = ["prepare=check", "data=imagefolder", "data.root=odd", "data.val_fraction=0.1", "out=report"]
    assert done(*options) == 1
    bad = {Path(path).name for path in bad_images(tmp_path / "report")}
    counts = re.findall(r"(\d+) of (\d+) images can be read", capsys.readouterr().out)
    assert sum(int(num_images) - int(num_read) for num_read, num_images in counts) == len(bad)
    assert sum(int(num_images) for _, num_images in counts) > (90 if odd_images else 40)
    white_unknown = {"grey_16bit_tRNS.png", "float_32bit.tiff"}
    assert {name for name, is_readable in made.items() if not is_readable} | white_unknown <= bad
    assert not bad & {name for name, is_readable in made.items() if is_readable and name not in white_unknown}
