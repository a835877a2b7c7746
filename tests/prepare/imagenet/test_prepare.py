"""prepare=imagenet: the folders made from the archives, after any interruption, and messages about bad archives."""

import hashlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
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


@pytest.fixture
def fake(tmp_path: Path) -> FakeImageNet:
    return fake_imagenet.make(tmp_path / "archives")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def make_plan(fake: FakeImageNet, out: Path | str, *typed: str) -> Plan:
    return prepare_options.read(["prepare=imagenet", f"archive_dir={fake.folder}", f"out={out}", *typed], os.environ)


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
    assert f"train: 19 images of 4 classes: {out}/train" in printed
    assert f"val: 9 images of 4 classes: {out}/val" in printed
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


@pytest.mark.parametrize(
    ("missing", "message", "splits"),
    [
        ([TRAIN], f"train is left out: .* has no {TRAIN}", {"val"}),
        ([VAL], f"val is left out: .* has no {VAL}", {"train"}),
        ([DEVKIT], f"val is left out: .* has no {DEVKIT}, which lists the classes of its images", {"train"}),
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


@pytest.mark.parametrize("fraction", [0.0, 0.7])
@pytest.mark.parametrize("name", [TRAIN, VAL])
def test_an_incomplete_archive(name: str, fraction: float, fake: FakeImageNet, out: Path):
    path = fake.folder / name
    whole = path.stat().st_size
    os.truncate(path, int(whole * fraction))
    size = path.stat().st_size
    text = refusal(fake, out)
    assert text.startswith(f"{path} must be {whole:,} bytes, got {size:,}: the download or copy is incomplete")
    assert not out.exists()


@pytest.mark.parametrize("name", [TRAIN, VAL, DEVKIT])
def test_a_changed_byte(name: str, fake: FakeImageNet, out: Path):
    """Only the MD5 shows it; nothing is extracted, and the other split is not touched."""
    path = fake.folder / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    text = refusal(fake, out)
    assert text.startswith(f"{path} must have MD5 ")
    assert text.endswith(f"Hint: delete {path}, then run this command again.")
    assert {file.partition("/")[0] for file in files_below(out)} == ({"val"} if name == TRAIN else set())
    fake_imagenet.make(fake.folder)
    run_prepare(fake, out)
    assert files_below(out) == fake.files


def edition_of(fake: FakeImageNet, train: bytes, num_train: int) -> FakeImageNet:
    """Publish another training archive."""
    (fake.folder / TRAIN).write_bytes(train)
    md5 = hashlib.md5(train, usedforsecurity=False).hexdigest()
    archive = replace(fake.edition.train, num_bytes=len(train), md5=md5)
    num_images = {**fake.edition.num_images, "train": num_train}
    return replace(fake, edition=replace(fake.edition, train=archive, num_images=num_images))


def test_the_images_are_counted(fake: FakeImageNet, out: Path):
    other = edition_of(fake, (fake.folder / TRAIN).read_bytes(), 20)
    text = refusal(other, out, error=RunError)
    assert text.startswith(f"{out}/train.unpacking must have 20 images, got 19. Hint: delete that folder")
    assert not (out / "train").exists()


def with_link(content: bytes) -> bytes:
    stream = fake_imagenet.io.BytesIO(content)
    with tarfile.open(fileobj=stream, mode="a") as archive:
        link = tarfile.TarInfo("link.JPEG")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    return stream.getvalue()


def test_links_are_refused(fake: FakeImageNet, out: Path):
    inner = untar((fake.folder / TRAIN).read_bytes())
    other = edition_of(fake, tar({**inner, "n01440764.tar": with_link(inner["n01440764.tar"])}), 20)
    assert "links or special files" in refusal(other, out, error=RunError)
    assert not (out / "train").exists()


def test_an_archive_cannot_choose_where_files_are_written(fake: FakeImageNet, tmp_path: Path, out: Path):
    inner = tar({"../../../evil.JPEG": b"x", "/tmp/evil2.JPEG": b"y"})
    run_prepare(edition_of(fake, tar({"n01440764.tar": inner}), 2), out)
    assert {path.name for path in (out / "train" / "n01440764").iterdir()} == {"evil.JPEG", "evil2.JPEG"}
    assert not list(tmp_path.glob("*.JPEG"))


# ---- existing folders


def test_existing_folders(fake: FakeImageNet, out: Path):
    (out / "val").mkdir(parents=True)
    (out / "val" / "ILSVRC2012_val_00000001.JPEG").touch()
    text = refusal(fake, out)
    assert "out/val exists, so it must have 9 images in class folders, got 0. Hint: move " in text
    assert files_below(out) == {"val/ILSVRC2012_val_00000001.JPEG": b""}
    (out / "val").rename(out / "elsewhere")
    run_prepare(fake, out)
    next((out / "val").rglob("*.JPEG")).unlink()
    assert "out/val exists, so it must have 9 images in class folders, got 8" in refusal(fake, out)


# ---- interruptions


def start(fake: FakeImageNet, out: Path, pause_s: float) -> subprocess.Popen[str]:
    """Start the command for the small edition, with a pause after each image."""
    code = f"""
import os, sys, time
from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare import options
from imagenet_ddp.prepare.imagenet import prepare
from pathlib import Path
from imagenet_ddp.data.sources.download import Archive
from imagenet_ddp.prepare.imagenet.archives import Edition
from imagenet_ddp.runs.signals import exit_on_signal
exit_on_signal()
write = Path.write_bytes
Path.write_bytes = lambda *args: (time.sleep({pause_s}), write(*args))
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
    assert "Stopped. val: " in messages and "Run the same command again to resume." in messages
    assert "Traceback" not in messages


@pytest.mark.slow
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
    assert re.match(r"out must have [12] MiB free, got 0 MiB in .*\. Hint: ", refusal(large, small_disk / "large"))
    # full because of another process
    monkeypatch.setattr(prepare, "_check_room", lambda *args: None)
    text = refusal(fake, small_disk / "out", error=RunError)
    assert "No space left on device" in text and "to resume." in text
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
