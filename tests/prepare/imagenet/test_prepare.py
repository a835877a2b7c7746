"""prepare=imagenet: the folders that come out of the archives, after any interruption, and what is said of bad ones."""

import gzip
import io
import os
import random
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Run, clean_environ
from helpers import fake_imagenet
from helpers.fake_imagenet import Made

from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare.imagenet import extract, prepare
from imagenet_ddp.prepare.options import FailedError, Plan

TRAIN, VAL, DEVKIT = (archive.name for archive in (prepare.ILSVRC2012.train, prepare.ILSVRC2012.val,
                                                   prepare.ILSVRC2012.devkit))  # fmt: skip


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return fake_imagenet.make(tmp_path / "archives")


def plan(made: Made, out: Path, *typed: str) -> Plan:
    found = prepare_options.read(["prepare=imagenet", f"archive_dir={made.folder}", f"out={out}", *typed], os.environ)
    assert found is not None
    return found


def refused(made: Made, out: Path, *typed: str) -> str:
    with pytest.raises(ConfigError) as caught:
        prepare.run(plan(made, out, *typed), made.edition)
    (sentence,) = caught.value.mistakes
    return sentence


# ---- what comes out


def test_every_image_in_its_folder(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "out"
    assert prepare.run(plan(made, out), made.edition) == 0
    assert fake_imagenet.below(out) == made.files
    printed = capsys.readouterr().out
    assert f"train: 19 images of 4 classes, MD5 as published: {out}/train" in printed
    assert f"val: 9 images of 4 classes, MD5 as published: {out}/val" in printed
    assert printed.endswith(f"python -m imagenet_ddp.train data=imagenet data.root={out}\n")
    assert sorted(path.name for path in out.iterdir()) == [".prepare.lock", "train", "val"]
    # again: nothing is done
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert prepare.run(plan(made, out), made.edition) == 0
    lock = out / ".prepare.lock"
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path != lock} == {
        path: time_ns for path, time_ns in before.items() if path != lock
    }


def test_the_command(made: Made, run: Run, tmp_path: Path):
    """Of these small archives it can only be typed with verify=false; without, their sizes are refused."""
    options = ["prepare=imagenet", f"archive_dir={made.folder}", "out=out"]
    done = run("prepare", *options)
    assert done.returncode == 2
    assert "must be 147,897,477,120 bytes, but is" in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()
    done = run("prepare", *options, "prepare.verify=false")
    assert done.returncode == 0, done.stderr
    assert fake_imagenet.below(tmp_path / "out") == made.files
    assert (
        "MD5 not compared with the official one; ImageNet has 1,281,167 images of 1,000 classes: out/train"
        in done.stdout
    )
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("missing", "said", "there"),
    [
        ([TRAIN], f"train is left out: .* has no {TRAIN}", {"val"}),
        ([VAL], f"val is left out: .* has no {VAL}", {"train"}),
        ([DEVKIT], f"val is left out: the classes of its images are in {DEVKIT}", {"train"}),
    ],
)
def test_a_part_of_the_archives(
    missing: list[str], said: str, there: set[str], made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for name in missing:
        (made.folder / name).unlink()
    assert prepare.run(plan(made, tmp_path / "out"), made.edition) == 0
    assert re.search(said, capsys.readouterr().out)
    files = {path: content for path, content in made.files.items() if path.partition("/")[0] in there}
    assert fake_imagenet.below(tmp_path / "out") == files


def test_the_command_that_is_proposed_can_be_typed(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / """my "data" (1), 50% = ñ's"""
    quoted = str(out).replace('"', '\\"')
    assert prepare.run(plan(made, Path(f'"{quoted}"')), made.edition) == 0
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    typed = words[words.index("imagenet_ddp.train") + 1 :]  # behind "python -m", or "uv run python -m"
    request = command_line("train", [*typed, "--cfg", "job"], {})
    assert request.configs[0].data.root == str(out)


def test_no_archive_at_all(made: Made, tmp_path: Path):
    for name in (TRAIN, DEVKIT):
        (made.folder / name).unlink()
    sentence = refused(made, tmp_path / "out")
    assert f"has no {TRAIN}" in sentence and f"are in {DEVKIT}" in sentence and "https://image-net.org" in sentence


# ---- archives that are not what they should be


def cut(path: Path, num_bytes: int) -> None:
    with path.open("r+b") as file:
        file.truncate(num_bytes)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.7])
@pytest.mark.parametrize("name", [TRAIN, VAL])
def test_an_archive_that_breaks_off(name: str, share: float, made: Made, tmp_path: Path):
    path = made.folder / name
    whole = path.stat().st_size
    size = int(whole * share)
    cut(path, size)
    sentence = refused(made, tmp_path / "out")
    assert sentence.startswith(f"{path} must be {whole:,} bytes, got {size:,}: the download or copy broke")
    sentence = refused(made, tmp_path / "out", "prepare.verify=false")
    assert sentence.startswith(f"{path} ({size:,} bytes) must be a whole tar archive, but it ")
    assert "out/train" not in str(fake_imagenet.below(tmp_path)) and not (tmp_path / "out" / "train").exists()


def test_cut_between_two_members(made: Made, tmp_path: Path):
    """There tarfile sees the end of the archive, and says nothing."""
    path = made.folder / TRAIN
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    cut(path, last.offset)
    with tarfile.open(path) as tar:
        assert len(tar.getmembers()) == 3
    sentence = refused(made, tmp_path / "out", "prepare.verify=false")
    assert f"after 3 files, at byte {last.offset:,} of {last.offset:,}, it neither goes on nor ends" in sentence


def test_a_class_archive_that_breaks_off(made: Made, tmp_path: Path):
    """The other classes are unpacked, and stay."""
    with tarfile.open(made.folder / TRAIN) as tar:
        inner = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
    inner["n02119789.tar"] = inner["n02119789.tar"][:9000]
    (made.folder / TRAIN).write_bytes(fake_imagenet.packed(inner))
    with pytest.raises(FailedError) as caught:
        prepare.run(plan(made, tmp_path / "out", "prepare.verify=false"), made.edition)
    (sentence,) = caught.value.mistakes
    assert sentence.startswith(
        f"n02119789.tar in {made.folder / TRAIN} must be a whole archive of 9,000 bytes, but it breaks off "
        "in n02119789_15.JPEG: "
    )
    draft = tmp_path / "out" / "train.unpacking"
    assert sorted(path.name for path in draft.iterdir()) == [".prepared.json", "n01440764", "n03000684", "n15075141"]
    assert not (tmp_path / "out" / "train").exists()
    assert (tmp_path / "out" / "val").exists()
    # with the right archive in its place, all is made anew
    fake_imagenet.make(made.folder)
    assert prepare.run(plan(made, tmp_path / "out"), made.edition) == 0
    assert fake_imagenet.below(tmp_path / "out") == made.files


def offsets(content: bytes) -> list[int]:
    """Of the headers in an archive."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return [member.offset for member in tar.getmembers()]


def a_link(content: bytes) -> bytes:
    """The third file is a hard link to the first: its content would not be found."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=io.BytesIO(content)) as old, tarfile.open(fileobj=stream, mode="w") as new:
        for number, member in enumerate(old.getmembers()):
            if number == 2:
                member.type, member.linkname, member.size = tarfile.LNKTYPE, old.getnames()[0], 0
            new.addfile(member, None if number == 2 else old.extractfile(member))
    return stream.getvalue()


def overwritten(content: bytes, at: int, other: bytes) -> bytes:
    return content[:at] + other + content[at + len(other) :]


# Each loses images, and tarfile says nothing: in the class archive, or with the large one around it.
LOSSES = [
    ("no header", lambda tar: overwritten(tar, offsets(tar)[2] + 100, b"x"), "it has no header there"),
    ("hole", lambda tar: overwritten(tar, offsets(tar)[2], bytes(512)), "it has zeros there, and something after them"),
    ("zeros", lambda tar: tar[: offsets(tar)[2]].ljust(len(tar), b"\0"), "begin with zeros and are more than the end"),
    ("nothing", lambda tar: bytes(len(tar)), ""),
    ("empty", lambda tar: fake_imagenet.packed({}), "it holds no file"),
    ("cut", lambda tar: tar[: offsets(tar)[2]], "it breaks off there"),
    ("link", a_link, "in it is no plain file, but a link, a special or a sparse one"),
]


@pytest.mark.parametrize(("loses", "said"), [loss[1:] for loss in LOSSES], ids=[loss[0] for loss in LOSSES])
@pytest.mark.parametrize("place", ["inner", "outer", "val"])
def test_no_image_is_lost_without_a_word(
    place: str, loses: Callable[[bytes], bytes], said: str, made: Made, tmp_path: Path
):
    """Neither MD5 nor, but for val, the devkit to tell."""
    path = made.folder / (VAL if place == "val" else TRAIN)
    whole = path.read_bytes()
    if place == "inner":
        with tarfile.open(path) as tar:
            inner = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
        inner["n01440764.tar"] = loses(inner["n01440764.tar"])
        path.write_bytes(fake_imagenet.packed(inner))
    else:
        path.write_bytes(loses(whole))
    if place != "val":
        (made.folder / DEVKIT).unlink()
    with pytest.raises(ConfigError) as caught:
        prepare.run(plan(made, tmp_path / "out", "prepare.verify=false"), made.edition)
    (sentence,) = caught.value.mistakes
    assert ("n01440764.tar in " in sentence) == (place == "inner")
    assert f"{path}" in sentence and said in sentence and sentence.endswith(" again.")
    assert not (tmp_path / "out" / ("val" if place == "val" else "train")).exists()


@pytest.mark.parametrize("blocks", [1, 2, 20, 2048])
def test_an_archive_may_be_of_any_writer(blocks: int, made: Made, tmp_path: Path):
    """Of one that ends with two blocks of zeros, or pads to a record of up to 1 MiB."""
    path = made.folder / TRAIN
    with tarfile.open(path) as tar:
        last = tar.getmembers()[-1]
    content = path.read_bytes()[: last.offset_data + last.size] + bytes(-last.size % 512 + 1024)
    path.write_bytes(content + bytes(-len(content) % (512 * blocks)))
    (made.folder / DEVKIT).unlink()
    assert prepare.run(plan(made, tmp_path / "out", "prepare.verify=false"), made.edition) == 0


def test_an_archive_may_end_as_it_likes_where_all_files_are_there(made: Made, tmp_path: Path):
    """By the devkit."""
    for name in (TRAIN, VAL):
        with (made.folder / name).open("ab") as file:
            file.write(b"what was left in a buffer")
    assert prepare.run(plan(made, tmp_path / "out", "prepare.verify=false"), made.edition) == 0
    assert fake_imagenet.below(tmp_path / "out") == made.files


@pytest.mark.parametrize("num_bytes", [0, 10, 300, 500])
def test_a_devkit_that_breaks_off(num_bytes: int, made: Made, tmp_path: Path):
    cut(made.folder / DEVKIT, num_bytes)
    assert f"{made.folder / DEVKIT} must have MD5 " in refused(made, tmp_path / "out")
    sentence = refused(made, tmp_path / "out", "prepare.verify=false")
    assert sentence.startswith(f"{made.folder / DEVKIT} ({num_bytes} bytes) must be a whole gzipped tar")


@pytest.mark.parametrize(
    ("meta", "truth", "said"),
    [
        (b"", b"1\n", "to list ImageNet's classes, but is no MATLAB 5.0 file"),
        (fake_imagenet.meta(), b"", "but is empty"),
        (fake_imagenet.meta(), b"1\n5\n", "but holds 5"),  # what is above the classes
        (
            fake_imagenet.meta(),
            b"1\n2\n",
            "must hold 2 images, as many as the devkit has classes for, but holds 9",
        ),
    ],
)
def test_a_devkit_of_something_else(meta: bytes, truth: bytes, said: str, made: Made, tmp_path: Path):
    (made.folder / DEVKIT).write_bytes(fake_imagenet.devkit(meta, truth))
    assert said in refused(made, tmp_path / "out", "prepare.verify=false")


def test_a_byte_that_differs(made: Made, tmp_path: Path):
    """Seen by the MD5 alone; the split does not get its name, and is not taken for the right archive's later."""
    path = made.folder / TRAIN
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(FailedError) as caught:
            prepare.run(plan(made, tmp_path / "out"), made.edition)
        (sentence,) = caught.value.mistakes
        assert sentence.startswith(f"{path} must have MD5 {made.edition.train.md5}, but has ")
    assert not (tmp_path / "out" / "train").exists()
    fake_imagenet.make(made.folder)
    assert prepare.run(plan(made, tmp_path / "out"), made.edition) == 0
    assert fake_imagenet.below(tmp_path / "out") == made.files


def test_a_class_with_an_image_less(made: Made, tmp_path: Path):
    """The devkit knows how many there are."""
    with tarfile.open(made.folder / TRAIN) as tar:
        inner = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
    with tarfile.open(fileobj=io.BytesIO(inner["n01440764.tar"])) as tar:
        images = {member.name: tar.extractfile(member).read() for member in tar.getmembers()}  # type: ignore[union-attr]
    images.popitem()
    inner["n01440764.tar"] = fake_imagenet.packed(images).ljust(len(inner["n01440764.tar"]), b"\0")
    (made.folder / TRAIN).write_bytes(fake_imagenet.packed(inner))
    assert "n01440764 must have 7 images by the devkit, but " in refused(made, tmp_path / "out")


def test_the_devkit_counts_without_md5_too(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    of_class = fake_imagenet.packed({"n01440764_1.JPEG": b"x"})
    (made.folder / TRAIN).write_bytes(fake_imagenet.packed({"n01440764.tar": of_class}))
    with pytest.raises(FailedError) as caught:
        prepare.run(plan(made, tmp_path / "out", "prepare.verify=false"), made.edition)
    (sentence,) = caught.value.mistakes
    assert "n01440764 must have 7 images by the devkit, but " in sentence and "without the devkit" in sentence
    (made.folder / DEVKIT).unlink()
    assert prepare.run(plan(made, tmp_path / "out", "prepare.verify=false"), made.edition) == 0
    said = "train: 1 image of 1 class, MD5 not compared with the official one; ImageNet has 19 images of 4 classes: "
    assert said in capsys.readouterr().out


def test_a_devkit_with_another_number_in_it(made: Made, tmp_path: Path):
    """Every later image would have the right class, and one another."""
    content = bytearray(gzip.compress(gzip.decompress((made.folder / DEVKIT).read_bytes()), compresslevel=0))
    content[content.index(b"3\n1\n1\n")] = ord("2")
    (made.folder / DEVKIT).write_bytes(content)
    sentence = refused(made, tmp_path / "out", "prepare.verify=false")
    assert sentence.startswith(f"{made.folder / DEVKIT} (") and "CRC check failed" in sentence


def test_an_archive_chooses_no_path(made: Made, tmp_path: Path):
    (made.folder / DEVKIT).unlink()  # which would miss images
    evil = fake_imagenet.packed({"../../../evil.JPEG": b"x", "/tmp/evil2.JPEG": b"y"})
    (made.folder / TRAIN).write_bytes(fake_imagenet.packed({"n01440764.tar": evil}))
    prepare.run(plan(made, tmp_path / "out", "prepare.verify=false"), made.edition)
    assert sorted(path.name for path in (tmp_path / "out" / "train" / "n01440764").iterdir()) == [
        "evil.JPEG",
        "evil2.JPEG",
    ]
    assert not list(tmp_path.glob("*.JPEG"))


# ---- folders that are there


def test_a_folder_of_someone_else(made: Made, tmp_path: Path):
    (tmp_path / "out" / "val").mkdir(parents=True)
    (tmp_path / "out" / "val" / "ILSVRC2012_val_00000001.JPEG").touch()
    sentence = refused(made, tmp_path / "out")
    assert "out/val is expected not to exist yet, but does, and holds images without class folders" in sentence
    assert fake_imagenet.below(tmp_path / "out") == {"val/ILSVRC2012_val_00000001.JPEG": b""}


def test_a_split_that_someone_else_has_unpacked_is_left_as_it_is(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "out" / "train" / "n01440764").mkdir(parents=True)
    (tmp_path / "out" / "train" / "n01440764" / "mine.JPEG").touch()
    assert prepare.run(plan(made, tmp_path / "out"), made.edition) == 0
    assert "train is left out: " in (printed := capsys.readouterr().out) and "prepare=check data=imagenet" in printed
    of_val = {path: content for path, content in made.files.items() if path.startswith("val/")}
    assert fake_imagenet.below(tmp_path / "out") == {**of_val, "train/n01440764/mine.JPEG": b""}


def test_an_image_was_deleted_since(made: Made, tmp_path: Path):
    prepare.run(plan(made, tmp_path / "out"), made.edition)
    next((tmp_path / "out" / "train").rglob("*.JPEG")).unlink()
    assert "must have 19 images, as it was prepared, but has 18" in refused(made, tmp_path / "out")


# ---- interruptions


def started(made: Made, out: Path, pause_s: float) -> subprocess.Popen[str]:
    """The command's own function, of the small edition, a pause before each image."""
    code = f"""
import os, sys, time
from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.prepare import options as asked
from imagenet_ddp.prepare.imagenet import prepare as imagenet
from imagenet_ddp.prepare.imagenet import extract as unpacking
from imagenet_ddp.prepare.imagenet.archives import Archive
from imagenet_ddp.prepare.imagenet.archives import Edition
from imagenet_ddp.runs.signals import exit_on_signal
exit_on_signal()
copy = unpacking.Unpacking._copy
def slow(*args):
    time.sleep({pause_s})
    copy(*args)
unpacking.Unpacking._copy = slow
print("begun", flush=True)
plan = asked.read(["prepare=imagenet", "archive_dir={made.folder}", "out={out}", "prepare.num_workers=2"], os.environ)
sys.exit(imagenet.run(plan, {made.edition!r}))
"""
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            env=clean_environ())  # fmt: skip


def test_killed_at_random_moments(made: Made, tmp_path: Path):
    """Then once to its end: the same bytes, and what was finished is not done again."""
    out, generator = tmp_path / "out", random.Random(0)
    kept: dict[str, int] = {}
    for _ in range(4):
        process = started(made, out, 0.03)
        assert process.stdout is not None and process.stdout.readline() == "begun\n"
        time.sleep(0.6 + 0.5 * generator.random())
        process.kill()
        process.communicate(timeout=30)
        now = {path.name: path.stat().st_ino for path in finished(out)}
        assert set(kept.values()) <= set(now.values())
        kept = now
    process = started(made, out, 0)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert fake_imagenet.below(out) == made.files
    inodes = {path.stat().st_ino for path in finished(out)}
    assert set(kept.values()) <= inodes
    assert not list(out.rglob("*.unpacking"))


def finished(out: Path) -> list[Path]:
    """Class folders, under the name they will have in the end."""
    return [path for split in out.glob("*/") for path in split.iterdir() if re.fullmatch(r"n\d{8}", path.name)]


def test_asked_to_stop(made: Made, tmp_path: Path):
    process = started(made, tmp_path / "out", 0.1)
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    while not (tmp_path / "out" / "val.unpacking").exists():
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Stopped. val: " in said and "The same command goes on there." in said and "Traceback" not in said


def test_two_at_once(made: Made, tmp_path: Path):
    both = [started(made, tmp_path / "out", 0.05) for _ in range(2)]
    said = [process.communicate(timeout=60) for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert fake_imagenet.below(tmp_path / "out") == made.files
    waited = [errors for _, errors in said if "Waiting for another process that prepares" in errors]
    assert len(waited) == 1
    assert all("train: 19 images of 4 classes" in output for output, _ in said)


@pytest.fixture
def small_disk(tmp_path: Path):
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip("mount needs root's rights")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_no_room(made: Made, small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    sentence = refused(fake_imagenet.make(made.folder, num_bytes=20_000), small_disk / "out")
    assert re.match(r"out must have room for \d+ MiB more, but .* has 0 MiB\. Hint: ", sentence)
    # it fills up on the way, because of another process
    monkeypatch.setattr(prepare, "_room", lambda *args: None)
    with pytest.raises(FailedError) as caught:
        prepare.run(plan(made, small_disk / "out", "prepare.verify=false"), made.edition)
    assert "No space left on device" in caught.value.mistakes[0] and "goes on there" in caught.value.mistakes[0]


def test_gone_on_with_once_there_is_room(made: Made, small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(prepare, "_room", lambda *args: None)
    with pytest.raises(FailedError):
        prepare.run(plan(made, small_disk / "out"), made.edition)
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    assert prepare.run(plan(made, small_disk / "out"), made.edition) == 0
    assert fake_imagenet.below(small_disk / "out") == made.files


def test_a_class_that_a_power_cut_emptied_is_done_again(made: Made, tmp_path: Path):
    out = tmp_path / "out"
    prepare.run(plan(made, out), made.edition)
    (out / "train").rename(out / "train.unpacking")
    damaged = next((out / "train.unpacking" / "n01440764").iterdir())
    damaged.write_bytes(b"")
    assert prepare.run(plan(made, out), made.edition) == 0
    assert fake_imagenet.below(out) == made.files
    assert extract.read_record(out / "train") is not None
    shutil.rmtree(out)
