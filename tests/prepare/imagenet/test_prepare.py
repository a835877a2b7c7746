"""prepare=imagenet: the folders made from the archives, after any interruption, and messages about bad archives."""

import gzip
import os
import random
import re
import shlex
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
from helpers.fake_imagenet import DEVKIT, TRAIN, VAL, FakeImageNet, files_below, tar, untar

from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare.imagenet import prepare
from imagenet_ddp.prepare.options import Plan

NO_VERIFY = "prepare.verify=false"


@pytest.fixture
def fake(tmp_path: Path) -> FakeImageNet:
    return fake_imagenet.make(tmp_path / "archives")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def make_plan(fake: FakeImageNet, out: Path | str, *typed: str) -> Plan:
    plan = prepare_options.read(["prepare=imagenet", f"archive_dir={fake.folder}", f"out={out}", *typed], os.environ)
    assert plan is not None
    return plan


def run_prepare(fake: FakeImageNet, out: Path | str, *typed: str) -> None:
    assert prepare.run(make_plan(fake, out, *typed), fake.edition) == 0


def refusal(fake: FakeImageNet, out: Path, *typed: str, error: type[Exception] = ConfigError) -> str:
    with pytest.raises(error) as caught:
        prepare.run(make_plan(fake, out, *typed), fake.edition)
    assert str(caught.value).count("Hint: ") == 1
    return str(caught.value)


# ---- the result


def test_every_image_is_in_its_folder(fake: FakeImageNet, out: Path, capsys: pytest.CaptureFixture[str]):
    run_prepare(fake, out)
    assert files_below(out) == fake.files
    printed = capsys.readouterr().out
    assert f"train: 19 images of 4 classes, MD5 as published: {out}/train" in printed
    assert f"val: 9 images of 4 classes, MD5 as published: {out}/val" in printed
    assert printed.endswith(f"python -m imagenet_ddp.train data=imagenet data.root={out}\n")
    assert sorted(path.name for path in out.iterdir()) == [".prepare.lock", "train", "val"]
    before = {path: path.stat().st_mtime_ns for split in ("train", "val") for path in (out / split).rglob("*")}
    run_prepare(fake, out)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_the_command(fake: FakeImageNet, run: Run, tmp_path: Path):
    options = ["prepare=imagenet", f"archive_dir={fake.folder}", "out=out"]
    done = run("prepare", *options)
    assert done.returncode == 2
    assert "must be 147,897,477,120 bytes, got" in " ".join(done.stderr.split())
    assert not (tmp_path / "out").exists()
    done = run("prepare", *options, NO_VERIFY)
    assert done.returncode == 0 and "Traceback" not in done.stderr, done.stderr
    # the ids in the ground truth are those of the real table
    names = {path for path in files_below(tmp_path / "out") if path.startswith("val/")}
    assert "val/n02110185/ILSVRC2012_val_00000001.JPEG" in names and len(names) == 9
    published = "MD5 not compared with the published one; ImageNet has 1,281,167 images of 1,000 classes: out/train"
    assert published in done.stdout


@pytest.mark.parametrize(
    ("missing", "message", "splits"),
    [
        ([TRAIN], f"train is left out: .* has no {TRAIN}", {"val"}),
        ([VAL], f"val is left out: .* has no {VAL}", {"train"}),
        ([DEVKIT], f"val is left out: .* has no {DEVKIT}, with the classes of its images", {"train"}),
        ([TRAIN, DEVKIT], "", set()),
    ],
)
def test_missing_archives(
    missing: list[str],
    message: str,
    splits: set[str],
    fake: FakeImageNet,
    out: Path,
    capsys: pytest.CaptureFixture[str],
):
    for name in missing:
        (fake.folder / name).unlink()
    if splits:
        run_prepare(fake, out)
        assert re.search(message, capsys.readouterr().out)
        assert files_below(out) == {path: data for path, data in fake.files.items() if path.partition("/")[0] in splits}
    else:
        text = refusal(fake, out)
        assert f"has no {TRAIN}" in text and f"has no {DEVKIT}" in text and "https://image-net.org" in text


def test_the_proposed_command_can_be_typed(fake: FakeImageNet, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / """my "data" (1), 50% = ñ's"""
    quoted = str(out).replace('"', '\\"')
    run_prepare(fake, f'"{quoted}"')
    words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    typed = words[words.index("imagenet_ddp.train") + 1 :]  # behind "python -m", or "uv run python -m"
    request = command_line("train", [*typed, "--cfg", "job"], {})
    assert request.configs[0].data.root == str(out)


# ---- bad archives


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.7])
@pytest.mark.parametrize("name", [TRAIN, VAL])
def test_an_incomplete_archive(name: str, fraction: float, fake: FakeImageNet, out: Path):
    path = fake.folder / name
    whole = path.stat().st_size
    os.truncate(path, int(whole * fraction))
    size = path.stat().st_size
    text = refusal(fake, out)
    assert text.startswith(f"{path} must be {whole:,} bytes, got {size:,}: the download or copy is incomplete")
    assert not out.exists()
    text = refusal(fake, out, NO_VERIFY)
    assert text.startswith(f"{path} ({size:,} bytes) must be a complete tar archive, but ")
    assert files_below(out) == {}


def header_offsets(content: bytes) -> list[int]:
    with tarfile.open(fileobj=fake_imagenet.io.BytesIO(content)) as archive:
        return [member.offset for member in archive.getmembers()]


def overwritten(content: bytes, at: int, other: bytes) -> bytes:
    return content[:at] + other + content[at + len(other) :]


def with_link(content: bytes) -> bytes:
    stream = fake_imagenet.io.BytesIO(content)
    with tarfile.open(fileobj=stream, mode="a") as archive:
        link = tarfile.TarInfo("link.JPEG")
        link.type, link.linkname = tarfile.LNKTYPE, archive.getnames()[0]
        archive.addfile(link)
    return stream.getvalue()


# In each images are missing, and tarfile reports no error.
LOSSES = {
    "header": lambda data: overwritten(data, header_offsets(data)[2] + 100, b"x"),
    "hole": lambda data: overwritten(data, header_offsets(data)[2], bytes(512)),
    "zeros": lambda data: data[: header_offsets(data)[2]] + bytes(2**21),
    "nothing": lambda data: bytes(len(data)),
    "empty": lambda data: tar({}),
    "cut": lambda data: data[: header_offsets(data)[2]],
    "link": with_link,
}


@pytest.mark.parametrize("lose", LOSSES.values(), ids=LOSSES)
def test_a_damaged_archive_is_noticed_without_its_md5(
    lose: Callable[[bytes], bytes], fake: FakeImageNet, tmp_path: Path
):
    for place, name, error in (("outer", TRAIN, ConfigError), ("inner", TRAIN, RunError), ("val", VAL, ConfigError)):
        path, out = fake.folder / name, tmp_path / place
        original = path.read_bytes()
        if place == "inner":
            inner = untar(original)
            path.write_bytes(tar({**inner, "n01440764.tar": lose(inner["n01440764.tar"])}))
        else:
            path.write_bytes(lose(original))
        text = refusal(fake, out, NO_VERIFY, error=error)
        assert str(path) in text and " again" in text
        assert ("n01440764 in " in text) == (place == "inner")
        assert not (out / ("val" if place == "val" else "train")).exists()
        path.write_bytes(original)


def test_finished_classes_stay_until_another_archive_comes(fake: FakeImageNet, out: Path):
    path = fake.folder / TRAIN
    path.write_bytes(tar({**untar(path.read_bytes()), "n15075141.tar": b"x" * 9000}))
    text = refusal(fake, out, NO_VERIFY, "prepare.num_workers=1", error=RunError)
    assert text.startswith(f"n15075141 in {path} must be complete, but ")
    draft = out / "train.unpacking"
    names = {entry.name for entry in draft.iterdir()}
    assert {".prepared.json", "n01440764", "n02119789", "n03000684"} <= names and "n15075141" not in names
    assert (out / "val").exists() and not (out / "train").exists()
    fake_imagenet.make(fake.folder)
    run_prepare(fake, out)
    assert files_below(out) == fake.files


@pytest.mark.parametrize("num_blocks", [1, 2, 2048])
def test_archives_of_any_writer(num_blocks: int, fake: FakeImageNet, out: Path):
    """Some end with two blocks of zeros, others fill a record of up to 1 MiB."""
    path = fake.folder / TRAIN
    with tarfile.open(path) as archive:
        last = archive.getmembers()[-1]
    content = path.read_bytes()[: last.offset_data + last.size] + bytes(-last.size % 512 + 1024)
    path.write_bytes(content + bytes(-len(content) % (512 * num_blocks)))
    run_prepare(fake, out, NO_VERIFY)
    assert files_below(out) == fake.files


@pytest.mark.parametrize("num_bytes", [0, 10, 100])
def test_an_incomplete_devkit(num_bytes: int, fake: FakeImageNet, out: Path):
    os.truncate(fake.folder / DEVKIT, num_bytes)
    assert f"{fake.folder / DEVKIT} must have MD5 " in refusal(fake, out)
    text = refusal(fake, out, NO_VERIFY)
    assert text.startswith(f"{fake.folder / DEVKIT} ({num_bytes} bytes) must be a complete gzipped tar archive")


@pytest.mark.parametrize(
    ("ground_truth", "message"),
    [
        ("", "must be a number from 1 to 4, got no line"),
        ("1\n5\n", "must be a number from 1 to 4, got 5"),
        ("1\n2\n", "ILSVRC2012_val_00000001.JPEG to ILSVRC2012_val_00000002.JPEG, as many"),
    ],
)
def test_another_devkit(ground_truth: str, message: str, fake: FakeImageNet, out: Path):
    (fake.folder / DEVKIT).write_bytes(fake_imagenet.devkit(ground_truth))
    assert message in refusal(fake, out, NO_VERIFY)


def test_a_changed_number_in_the_devkit(fake: FakeImageNet, out: Path):
    path = fake.folder / DEVKIT
    content = bytearray(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=0))
    content[content.index(b"3\n1\n1\n")] = ord("2")
    path.write_bytes(content)
    text = refusal(fake, out, NO_VERIFY)
    assert text.startswith(f"{path} (") and "CRC check failed" in text


def test_a_changed_byte(fake: FakeImageNet, out: Path):
    """Only the MD5 shows it; the split does not get its name, and is not taken for that of the right archive later."""
    path = fake.folder / TRAIN
    content = bytearray(path.read_bytes())
    content[5000] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        text = refusal(fake, out, error=RunError)
        assert text.startswith(f"{path} must have MD5 {fake.edition.train.md5}, got ")
    assert not (out / "train").exists()
    fake_imagenet.make(fake.folder)
    run_prepare(fake, out)
    assert files_below(out) == fake.files


def test_an_archive_cannot_choose_where_files_are_written(fake: FakeImageNet, tmp_path: Path, out: Path):
    inner = tar({"../../../evil.JPEG": b"x", "/tmp/evil2.JPEG": b"y"})
    (fake.folder / TRAIN).write_bytes(tar({"n01440764.tar": inner}))
    run_prepare(fake, out, NO_VERIFY)
    assert {path.name for path in (out / "train" / "n01440764").iterdir()} == {"evil.JPEG", "evil2.JPEG"}
    assert not list(tmp_path.glob("*.JPEG"))


# ---- existing folders


def test_existing_folders(fake: FakeImageNet, out: Path, capsys: pytest.CaptureFixture[str]):
    (out / "val").mkdir(parents=True)
    (out / "val" / "ILSVRC2012_val_00000001.JPEG").touch()
    text = refusal(fake, out)
    assert "out/val must not exist yet, but does, without class folders in it. Hint: move " in text
    assert files_below(out) == {"val/ILSVRC2012_val_00000001.JPEG": b""}
    (out / "val").rename(out / "elsewhere")
    (out / "train" / "n01440764").mkdir(parents=True)
    (out / "train" / "n01440764" / "mine.JPEG").touch()
    run_prepare(fake, out)
    assert "train is left out: " in (printed := capsys.readouterr().out) and "prepare=check data=imagenet" in printed
    assert files_below(out / "train") == {"n01440764/mine.JPEG": b""}
    next((out / "val").rglob("*.JPEG")).unlink()
    assert "out/val must have 9 images, as many as were extracted, got 8" in refusal(fake, out)


# ---- interruptions


def start(fake: FakeImageNet, out: Path, pause_s: float) -> subprocess.Popen[str]:
    """Start the command for the small edition, with a pause after each image."""
    code = f"""
import os, sys, time
from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare import options
from imagenet_ddp.prepare.imagenet import prepare
from imagenet_ddp.prepare.imagenet.archives import Archive, Edition
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system.progress_bar import Progress
exit_on_signal()
add = Progress.add
Progress.add = lambda *args: (time.sleep({pause_s}), add(*args))
print("begun", flush=True)
typed = ["prepare=imagenet", "archive_dir={fake.folder}", "out={out}", "prepare.num_workers=2"]
sys.exit(prepare.run(options.read(typed, os.environ), {fake.edition!r}))
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env=clean_environ())  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "begun\n"
    return process


def test_killed_at_random_moments(fake: FakeImageNet, out: Path):
    """The last run gives the same bytes, and does not repeat finished classes."""
    generator = random.Random(0)
    finished: set[int] = set()
    for pause_s in (0.03, 0.03, 0.03, 0):
        process = start(fake, out, pause_s)
        if pause_s:
            time.sleep(0.4 + 0.5 * generator.random())
            process.kill()
        _, messages = process.communicate(timeout=60)
        now = {path.stat().st_ino for path in out.glob("*/n????????")}
        assert finished <= now, messages
        finished = now
    assert process.returncode == 0, messages
    assert files_below(out) == fake.files
    assert not list(out.rglob("*.unpacking"))


def test_stopped_by_a_signal(fake: FakeImageNet, out: Path):
    process = start(fake, out, 0.1)
    while not (out / "val.unpacking").exists():
        time.sleep(0.02)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, messages = process.communicate(timeout=30)
    assert process.returncode == 128 + signal.SIGTERM
    assert "Stopped. val: " in messages and "The same command resumes there." in messages
    assert "Traceback" not in messages


def test_two_at_once(fake: FakeImageNet, out: Path):
    first = start(fake, out, 0.4)
    while not (out / ".prepare.lock").exists():
        time.sleep(0.02)
    outputs = [process.communicate(timeout=60) for process in (first, start(fake, out, 0))]
    assert files_below(out) == fake.files
    assert sum("Waiting for another process that prepares" in messages for _, messages in outputs) == 1
    assert all("train: 19 images of 4 classes" in output for output, _ in outputs), outputs


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


def test_a_full_disk(fake: FakeImageNet, small_disk: Path, monkeypatch: pytest.MonkeyPatch):
    large = fake_imagenet.make(fake.folder.with_name("large"), num_bytes=50_000)
    assert re.match(r"out must have 1 MiB free, got 0 MiB in .*\. Hint: ", refusal(large, small_disk / "large"))
    # full because of another process
    monkeypatch.setattr(prepare, "_check_room", lambda *args: None)
    text = refusal(fake, small_disk / "out", error=RunError)
    assert "No space left on device" in text and "resumes there" in text
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    run_prepare(fake, small_disk / "out")
    assert files_below(small_disk / "out") == fake.files


def test_a_class_with_an_empty_file_is_extracted_again(fake: FakeImageNet, out: Path):
    """As after a power cut."""
    run_prepare(fake, out)
    (out / "train").rename(out / "train.unpacking")
    next((out / "train.unpacking" / "n01440764").iterdir()).write_bytes(b"")
    run_prepare(fake, out)
    assert files_below(out) == fake.files
