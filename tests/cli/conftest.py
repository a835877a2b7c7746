"""What the tests of command lines share."""

from pathlib import Path

import pytest

from imagenet_ddp.system import nvidia_gpus


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with images of two classes and a checkpoint, on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvidia_gpus, "GPU_PATHS", ())
    monkeypatch.setattr(nvidia_gpus.sys, "platform", "linux")
    for split, name in (("train", "cat"), ("train", "dog"), ("val", "cat"), ("val", "dog")):
        (tmp_path / "pets" / split / name).mkdir(parents=True)
        (tmp_path / "pets" / split / name / "1.jpg").touch()
    (tmp_path / "x.ckpt").touch()
    return tmp_path
