import os
import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import FileImages, list_images
from imagenet_ddp.data.sources.validation_split import content_keys, split_validation


def test_a_split_depends_on_the_names_alone():
    """Sorted anew, nothing changes sides; with a tenth more images none that was trained on is validated with, but for
    the places by which the share grows."""
    names = [f"{i % 3}/{i}.jpg" for i in range(660)]

    def val(order: np.ndarray, seed: int = 0) -> set[str]:
        images = FileImages(Path("/data"), Names.of(names[i] for i in order), order % 3)
        part = split_validation(images, 0.1, seed)[1]
        return {part.path(index).removeprefix("/data/") for index in range(len(part))}

    before = val(np.arange(600))
    assert len(before) == 60
    assert val(np.arange(600)[::-1]) == before
    assert len(val(np.arange(600), seed=1) & before) < 20
    grown = val(np.arange(660))
    assert len(grown) == 66
    assert len(grown - before - set(names[600:])) <= 6


def names_of(images: FileImages) -> list[str]:
    return [os.path.relpath(images.path(index), images.folder) for index in range(len(images))]


@pytest.fixture
def uneven(tmp_path: Path) -> FileImages:
    """40, 7, 2 and 1 images; nothing is read, so the files are empty."""
    for name, count in {"a": 40, "b": 7, "c": 2, "d": 1}.items():
        (tmp_path / name).mkdir()
        for number in range(count):
            (tmp_path / name / f"{number:02}.jpg").touch()
    return list_images(tmp_path, ["a", "b", "c", "d"])


def test_a_share_of_each_class_is_split_off(uneven: FileImages):
    train, val, _ = split_validation(uneven, 0.2, seed=0)
    assert Counter(val.targets.tolist()) == {0: 8, 1: 1, 2: 1}
    assert Counter(train.targets.tolist()) == {0: 32, 1: 6, 2: 1, 3: 1}
    assert not set(names_of(train)) & set(names_of(val))
    assert sorted(names_of(train) + names_of(val)) == sorted(names_of(uneven))
    for images in (train, val):
        assert [name[0] for name in names_of(images)] == ["abcd"[target] for target in images.targets]


@pytest.mark.parametrize(("fraction", "num_folds"), [(0.2, 5), (0.3, 3), (0.5, 2), (0.45, 2)])
def test_the_folds_hold_out_each_image_once(uneven: FileImages, fraction: float, num_folds: int):
    splits = [split_validation(uneven, fraction, 0, fold) for fold in range(num_folds)]
    assert sorted(name for _, val, _ in splits for name in names_of(val)) == sorted(names_of(uneven))
    for train, val, _ in splits:
        assert sorted(names_of(train) + names_of(val)) == sorted(names_of(uneven))
    assert names_of(splits[0][1]) == names_of(split_validation(uneven, fraction, 0)[1])
    if fraction == 0.2:  # of 40, 7, 2 and 1 images
        counts = [Counter(val.targets.tolist()) for _, val, _ in splits]
        assert counts[0] == {0: 8, 1: 1, 2: 1}
        assert [count[0] for count in counts] == [8] * 5
        assert sorted(count[1] for count in counts[1:]) == [1, 1, 2, 2]
        assert sorted(count[2] for count in counts[1:]) == [0, 0, 0, 1]


def files(folder: Path, contents: dict[str, bytes]) -> FileImages:
    for name, content in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return list_images(folder, sorted({name.partition("/")[0] for name in contents}))


@pytest.mark.parametrize("how", ["copy", "link", "hard link", "other class", "other folder", "three"])
def test_copies_of_an_image_stay_on_one_side(how: str, tmp_path: Path):
    """Of equal size and differing in few bytes, so that size and middle do not tell."""
    rng = np.random.default_rng(0)
    contents = {f"{'ab'[n % 2]}/{n:02}.jpg": bytes(500) + rng.bytes(8) for n in range(40)}
    files(tmp_path, contents)
    for name in contents:
        path, (folder, _, base) = tmp_path / name, name.partition("/")
        if how == "other class":
            shutil.copy(path, tmp_path / {"a": "b", "b": "a"}[folder] / f"copy{base}")
        elif how == "other folder":
            (path.parent / "more").mkdir(exist_ok=True)
            shutil.copy(path, path.parent / "more" / base)
        elif how == "link":
            (path.parent / f"copy{base}").symlink_to(path)
        elif how == "hard link":
            os.link(path, path.parent / f"copy{base}")
        else:
            for number in range(2 if how == "three" else 1):
                shutil.copy(path, path.parent / f"copy{number}{base}")
    images = list_images(tmp_path, ["a", "b"])
    held_out: list[str] = []
    for fold in range(3):
        sides = [
            {Path(part.path(n)).read_bytes() for n in range(len(part))}
            for part in split_validation(images, 0.3, 0, fold)[:2]
        ]
        assert sides[1] and not sides[0] & sides[1]
        val = split_validation(images, 0.3, 0, fold)[1]
        held_out += [val.path(n) for n in range(len(val))]
        if fold == 0:
            assert len(val) == pytest.approx(0.3 * len(images), abs=3)
            assert set(val.targets.tolist()) == {0, 1}
    assert Counter(held_out) == Counter(images.path(n) for n in range(len(images)))


def test_the_images_held_out_stay_those_of_earlier_versions(tmp_path: Path):
    """A checkpoint is evaluated on the share that its run held out, which an older version may have chosen. Copies
    count for the share of their class."""
    contents = {f"{'ab'[n % 2]}/{n:02}.jpg": b"%d" % (n if n < 12 else n % 5) for n in range(30)}
    val = split_validation(files(tmp_path, contents), 0.3, 0)[1]
    assert [val.names[n] for n in range(len(val))] == [f"a/{n:02}.jpg" for n in range(0, 15, 2)]


def test_an_image_is_recognised_by_its_content(tmp_path: Path):
    """By its size, middle and end, not by its name. An empty or missing file, a folder or a pipe has no key."""
    long = bytes(range(256)) * 400
    contents = {"a/1.jpg": b"short", "a/2.jpg": b"shors", "a/3.jpg": long, "a/4.jpg": long + b"x", "a/5.jpg": b"",
                "a/6.jpg": long[: len(long) // 2] + b"?" + long[len(long) // 2 + 1 :]}  # fmt: skip
    files(tmp_path, contents)
    os.mkfifo(tmp_path / "a/7.jpg")
    names = [*contents, "a/7.jpg", "a/none.jpg", "a"]
    keys = content_keys(str(tmp_path), Names.of(names)).tolist()
    assert len(set(keys)) == 6 and [keys[n] for n in (4, 6, 7, 8)] == [0] * 4
    for name in contents:
        (tmp_path / name).rename(tmp_path / f"{name}.jpg")
    assert content_keys(str(tmp_path), Names.of(f"{name}.jpg" for name in contents)).tolist() == keys[:6]


def test_a_class_of_copies_alone_is_trained_on(tmp_path: Path):
    images = files(tmp_path, {f"a/{n}.jpg": b"same" for n in range(9)} | {f"b/{n}.jpg": b"b%d" % n for n in range(9)})
    train, val, _ = split_validation(images, 0.3, 0)
    assert Counter(val.targets.tolist()) == {1: 3}
    assert Counter(train.targets.tolist()) == {0: 9, 1: 6}


def test_the_digest_tells_other_copies(tmp_path: Path):
    """On a machine whose files differ, the ranks would hold out different images."""
    contents = {f"a/{n}.jpg": b"%d" % n for n in range(9)}
    before = split_validation(files(tmp_path, contents), 0.3, 0)[2]
    assert split_validation(files(tmp_path, contents | {"a/8.jpg": b"9"}), 0.3, 0)[2] == before
    assert split_validation(files(tmp_path, contents | {"a/8.jpg": b"0"}), 0.3, 0)[2] != before
