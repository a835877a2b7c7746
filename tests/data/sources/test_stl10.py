"""STL-10: the layout on real records and small sets, and the archive's way from a server into the folder."""

import hashlib
import shutil
import socket
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.forked_commands import start_code
from torchvision.datasets import STL10

from imagenet_ddp.data.sources import stl10
from imagenet_ddp.data.sources.stl10 import Archive, Stl10Images
from imagenet_ddp.errors import ConfigError

NAMES = ["airplane", "bird", "car", "cat", "deer", "dog", "horse", "monkey", "ship", "truck"]


def generated(num_images: int, seed: int) -> np.ndarray:
    """(N, 3, 96, 96) uint8 noise: no image is like another, like its mirror image, or compressible."""
    return np.random.default_rng(seed).integers(0, 256, (num_images, 3, 96, 96), dtype=np.uint8)


def write_set(folder: Path, num_train: int = 20, num_test: int = 10) -> Path:
    folder.mkdir(parents=True)
    for split, num_images in (("train", num_train), ("test", num_test)):
        generated(num_images, seed=num_images).transpose(0, 1, 3, 2).tofile(folder / f"{split}_X.bin")
        (np.arange(num_images) % 10 + 1).astype(np.uint8).tofile(folder / f"{split}_y.bin")
    (folder / "class_names.txt").write_text("\n".join(NAMES) + "\n")
    lines = [f"{k} {num_train - 1 - k} " for k in range(10)]  # the official lines end in a blank, too
    (folder / "fold_indices.txt").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_set(tmp_path / "stl10_binary")


# ---- layout --------------------------------------------------------------------------------------------------------


def test_images_labels_and_names(folder: Path) -> None:
    train, test = Stl10Images(folder, "train", None), Stl10Images(folder, "test", None)
    assert (len(train), len(test)) == (20, 10)
    assert train.targets.dtype == np.int64
    assert train.targets.tolist() == [i % 10 for i in range(20)]
    assert stl10.class_names(folder) == NAMES
    for images, expected in ((train, generated(20, 20)), (test, generated(10, 10))):
        for i in range(len(images)):
            np.testing.assert_array_equal(images.read(i), expected[i])
    image = train.read(17)
    assert (image.dtype, image.shape) == (torch.uint8, (3, 96, 96))
    assert train.path(17) == "train_X.bin[17]"


def test_a_fold_takes_its_images_of_train_only(folder: Path) -> None:
    train = Stl10Images(folder, "train", 3)
    assert train.targets.tolist() == [3, 6]
    assert [train.path(i) for i in range(2)] == ["train_X.bin[3]", "train_X.bin[16]"]
    np.testing.assert_array_equal(train.read(1), generated(20, 20)[16])


def test_records_are_read_as_torchvision_reads_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STL10, "_check_integrity", lambda self: True)  # compares the MD5 of the official files
    for split in ("train", "test"):
        images, other = Stl10Images(folder, split, None), STL10(str(folder.parent), split)
        assert images.targets.tolist() == list(
            other.labels if other.labels is not None else ()
        ) and other.classes == stl10.class_names(folder)
        for i, expected in enumerate(other.data):
            np.testing.assert_array_equal(images.read(i), expected)


# ---- mistakes ------------------------------------------------------------------------------------------------------


def test_all_wrong_files_are_named_at_once(tmp_path: Path, folder: Path) -> None:
    with (folder / "train_X.bin").open("r+b") as file:
        file.truncate(20 * 27648 - 1000)
    (folder / "test_y.bin").unlink()
    (sentence,) = stl10.validate(tmp_path, download=True)
    assert "wrong size: test_y.bin, train_X.bin, train_y.bin, test_X.bin. Hint: delete " in sentence
    with pytest.raises(ConfigError) as caught:
        stl10.prepare(tmp_path, download=True)
    assert list(map(str, caught.value.mistakes)) == [sentence]


# ---- archive and download ------------------------------------------------------------------------------------------


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[Archive]:
    """A small set on a server, which also holds the unlabelled images."""
    source = write_set(tmp_path / "served" / "stl10_binary")
    (source / "unlabeled_X.bin").write_bytes(b"x" * 100_000)
    packed = tmp_path / "served" / "stl10_binary.tar.gz"
    with tarfile.open(packed, "w:gz", compresslevel=1) as tar:
        tar.add(source, "stl10_binary")
    handler = partial(SimpleHTTPRequestHandler, directory=packed.parent)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        md5 = hashlib.md5(packed.read_bytes(), usedforsecurity=False).hexdigest()
        yield Archive(packed.name, f"http://127.0.0.1:{server.server_port}/{packed.name}", md5)
        server.shutdown()
        thread.join()


def assert_complete(root: Path) -> None:
    folder = root / "stl10_binary"
    assert sorted(path.name for path in folder.iterdir()) == sorted(stl10.NEEDED)
    np.testing.assert_array_equal(Stl10Images(folder, "test", None).read(9), generated(10, 10)[9])
    left = {"stl10_binary", "stl10_binary.lock", "stl10_binary.tar.gz"}
    assert {path.name for path in root.iterdir()} == left


def test_download(archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "deep" / "root"
    assert stl10.prepare(root, True, archive) == root / "stl10_binary"
    assert_complete(root)
    assert f"Preparing STL-10 in {root}/stl10_binary" in capsys.readouterr().err
    stl10.prepare(root, True, archive)
    assert capsys.readouterr().err == ""


def test_an_archive_that_is_there_is_unpacked(archive: Archive, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "stl10_binary.unpacking").mkdir(parents=True)  # left by a run that was killed
    (root / "stl10_binary.unpacking" / "train_X.bin").write_bytes(b"half")
    shutil.copy(tmp_path / "served" / archive.name, root)
    stl10.prepare(root, False, replace(archive, url="http://127.0.0.1:1/none"))
    assert_complete(root)


def test_silence_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stl10, "READ_S", 0.3)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()  # the system accepts, but no answer ever comes
        archive = Archive("stl10_binary.tar.gz", f"http://127.0.0.1:{silent.getsockname()[1]}/x", "0" * 32)
        with pytest.raises(ConfigError, match="timed out"):
            stl10.prepare(tmp_path, True, archive)


def test_a_damaged_archive_is_not_downloaded_again_unasked(archive: Archive, tmp_path: Path) -> None:
    (tmp_path / archive.name).write_bytes(b"damaged")
    with pytest.raises(ConfigError, match=r"does not have MD5 .* and data\.download is false"):
        stl10.prepare(tmp_path, False, archive)
    assert (tmp_path / archive.name).read_bytes() == b"damaged"


@pytest.mark.slow
def test_one_downloads_and_the_others_wait(archive: Archive, tmp_path: Path) -> None:
    root = tmp_path / "root"
    code = """
from pathlib import Path
from imagenet_ddp.data.sources import stl10
stl10.prepare(Path(args[0]), True, stl10.Archive(*args[1]))
"""
    commands = [start_code(code, str(root), [archive.name, archive.url, archive.md5]) for _ in range(2)]
    assert [(command.wait(60), command.err.count("Traceback")) for command in commands] == [(0, 0)] * 2
    assert sum(command.err.count("Preparing STL-10") for command in commands) == 1
    assert_complete(root)
