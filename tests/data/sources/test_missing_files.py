import os
import random
import time
from pathlib import Path

import pytest

from imagenet_ddp.data.sources.image_table import find_missing


def make(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def test_the_missing_ones_of_any_mixture(tmp_path: Path):
    chance = random.Random(0)
    paths = [f"{folder}{number}.jpg" for folder, many in (("", 30), ("a/", 5), ("a/b/", 40)) for number in range(many)]
    paths += [str(tmp_path / "c" / f"{number}.png") for number in range(12)]
    chance.shuffle(paths)
    there = set(chance.sample(paths, 50))
    make(tmp_path, *there)
    assert find_missing(tmp_path, paths) == [place for place, path in enumerate(paths) if path not in there]
    assert len(find_missing(tmp_path, paths)) == 37


@pytest.mark.parametrize("many", [1, 50])
def test_folders_that_are_none(many: int, tmp_path: Path):
    make(tmp_path, "file")
    for below in ("gone", "file", "a\0b"):
        assert find_missing(tmp_path, [f"{below}/{number}" for number in range(many)]) == list(range(many))


@pytest.mark.parametrize("many", [1, 50])
def test_only_regular_files_and_links_to_them_count(many: int, tmp_path: Path):
    make(tmp_path, *(f"{number}.jpg" for number in range(many)))
    os.mkfifo(tmp_path / "pipe.jpg")
    (tmp_path / "folder.jpg").mkdir()
    targets = ("pipe.jpg", "folder.jpg", "/dev/null", "gone.jpg", "link5.jpg", "0.jpg")
    for number, target in enumerate(targets, 1):
        (tmp_path / f"link{number}.jpg").symlink_to(target)
    wrong = ["pipe.jpg", "folder.jpg", "/dev/null", *(f"link{number}.jpg" for number in range(1, 6))]
    good = ["link6.jpg", *(f"{number}.jpg" for number in range(many))]
    assert [[*wrong, *good][place] for place in find_missing(tmp_path, [*wrong, *good])] == wrong


def test_a_disk_that_is_too_slow_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    isfile = os.path.isfile
    monkeypatch.setattr(os.path, "isfile", lambda path: time.sleep(0.05) or isfile(path))
    paths = [f"{number}/gone.jpg" for number in range(2000)]  # 100 s by one thread
    assert len(find_missing(tmp_path, paths, budget_s=0.2)) < 2000
