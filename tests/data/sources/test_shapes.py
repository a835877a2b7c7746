from pathlib import Path

import pytest

from imagenet_ddp.data.sources import shapes
from imagenet_ddp.errors import ConfigError


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shapes, "NUM_PER_CLASS", {"train": 3, "val": 2})


def made(cache: Path, seed: int) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return shapes.ensure(seed)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.usefixtures("few")
def test_same_seed_same_bytes_and_another_seed_other_images(tmp_path: Path):
    folder = made(tmp_path / "a", 0)
    assert folder == tmp_path / "a" / "imagenet_ddp" / "shapes-v2-seed0"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # no draft is left
    first, again, other = (tree(made(tmp_path / name, seed)) for name, seed in (("a", 0), ("b", 0), ("c", 1)))
    assert first == again
    images = {name: data for name, data in first.items() if name.endswith(".jpg")}
    assert len(set(images.values())) == len(images) == 50  # no image twice, neither within nor across train and val
    assert not set(images.values()) & set(other.values())


def test_a_cache_that_cannot_be_written_is_said_with_a_hint(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"can be written.*Hint: put XDG_CACHE_HOME=FOLDER"):
        made(tmp_path / "file", 0)
