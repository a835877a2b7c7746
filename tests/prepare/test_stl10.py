"""prepare=stl10: from an archive elsewhere to the folder that data=stl10 reads."""

import hashlib
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
from conftest import Run

from imagenet_ddp.data.sources.download import Archive
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare import options, stl10
from imagenet_ddp.prepare.options import Plan


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    """20 training and 10 test images in the official layout, packed."""
    source = tmp_path / "source" / "stl10_binary"
    source.mkdir(parents=True)
    for split, number in (("train", 20), ("test", 10)):
        np.random.default_rng(number).bytes(27648 * number)
        (source / f"{split}_X.bin").write_bytes(np.random.default_rng(number).bytes(27648 * number))
        (source / f"{split}_y.bin").write_bytes(bytes(k % 10 + 1 for k in range(number)))
    (source / "class_names.txt").write_text("\n".join(f"class{k}" for k in range(10)))
    (source / "fold_indices.txt").write_text("\n".join(f"{k}" for k in range(10)))
    folder = tmp_path / "archives"
    folder.mkdir()
    with tarfile.open(folder / "stl10_binary.tar.gz", "w:gz") as tar:
        tar.add(source, "stl10_binary")
    content = (folder / "stl10_binary.tar.gz").read_bytes()
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    return Archive("stl10_binary.tar.gz", "http://localhost/", len(content), md5)


def plan(*typed: str) -> Plan:
    found = options.read(["prepare=stl10", *typed], os.environ)
    assert found is not None
    return found


def test_from_an_archive_elsewhere(archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out, typed = tmp_path / "out", (f"archive_dir={tmp_path}/archives", f"out={tmp_path}/out")
    for _ in range(2):
        assert stl10.run(plan(*typed), archive) == 0
        printed = capsys.readouterr().out
        assert f"train: 20 images of 10 classes: {out}/stl10_binary/train_X.bin" in printed
        assert printed.endswith(f"python -m imagenet_ddp.train data=stl10 data.root={out}\n")
    for name in ("train_X.bin", "test_y.bin"):
        source = tmp_path / "source" / "stl10_binary" / name
        assert (out / "stl10_binary" / name).read_bytes() == source.read_bytes()
    assert (tmp_path / "archives" / "stl10_binary.tar.gz").exists()


def test_without_out_it_is_said_beforehand_where_it_goes(
    archive: Archive, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    assert stl10.run(plan(f"archive_dir={tmp_path}/archives"), archive) == 0
    first, second, third, *_ = capsys.readouterr().err.splitlines()
    assert first == f"out is not set: writing to {tmp_path}/data. out=FOLDER chooses another folder."
    assert second == f"STL-10 goes to {tmp_path}/data/stl10_binary: 0.36 GB unpacked."
    assert third.startswith("Checking the MD5 of ")
    assert stl10.run(plan(), archive) == 0
    assert capsys.readouterr().err == ""


def test_a_damaged_archive(archive: Archive, tmp_path: Path):
    path = tmp_path / "archives" / "stl10_binary.tar.gz"
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"must have MD5 {archive.md5}"):
        stl10.run(plan(f"archive_dir={path.parent}", f"out={tmp_path}/out"), archive)
    path.write_bytes(content[:-1000])
    with pytest.raises(ConfigError, match=rf"{archive.num_bytes:,} bytes, got {archive.num_bytes - 1000:,}"):
        stl10.run(plan(f"archive_dir={path.parent}", f"out={tmp_path}/out"), archive)


def test_a_folder_without_the_archive(run: Run, tmp_path: Path):
    done = run("prepare", "prepare=stl10", f"archive_dir={tmp_path}", "out=out")
    assert done.returncode == 2
    assert f"archive_dir must hold stl10_binary.tar.gz, but {tmp_path} does not." in " ".join(done.stderr.split())
    assert list(tmp_path.iterdir()) == []
