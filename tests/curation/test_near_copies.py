"""Near-copies: candidates by their features, confirmed by their pixels."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from helpers.made_features import blobs
from helpers.made_photographs import photograph
from PIL import Image

from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.near_copies import (
    COLUMNS,
    Group,
    NearCopies,
    Pair,
    candidates,
    find_near_copies,
    read_list,
)
from imagenet_ddp.data.sources.image_files import FileImages, list_images
from imagenet_ddp.system.table_files import table_bytes

CLASSES = ["cat", "dog"]


@pytest.fixture
def images(tmp_path: Path) -> dict[str, FileImages]:
    """24 photographs; of the first, three copies, one of them in val; of the second, one in the other class; of the
    third, one with the same bytes."""
    for number in range(24):
        save(
            photograph(number), tmp_path / f"{'val' if number >= 20 else 'train'}/{CLASSES[number % 2]}/{number:02}.jpg"
        )
    first, second = photograph(0), photograph(1)
    save(first.resize((120, 90)), tmp_path / "train/cat/small.jpg")
    save(first.transpose(Image.Transpose.FLIP_LEFT_RIGHT), tmp_path / "train/cat/turned.jpg")
    save(first.crop((20, 0, 240, 165)), tmp_path / "val/cat/crop.jpg")
    save(second.convert("L"), tmp_path / "train/cat/grey.jpg")
    (tmp_path / "train/cat/zz.jpg").write_bytes((tmp_path / "train/cat/02.jpg").read_bytes())
    return {split: list_images(tmp_path / split, CLASSES) for split in ("train", "val")}


def save(image: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, quality=85)


def features_of(images: dict[str, FileImages]) -> Features:
    """Return features as those of a net: alike for copies, and alike for the first 8 of the other photographs, too."""
    paths = [images[split].path(at) for split in images for at in range(len(images[split]))]
    copies = {"small": 0, "turned": 0, "crop": 0, "grey": 1, "zz": 2}
    numbers = [copies[stem] if (stem := Path(path).stem) in copies else int(stem) for path in paths]
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(24, 32))
    centres[3:11] = centres[3]
    vectors = (centres[numbers] + 0.05 * rng.normal(size=(len(paths), 32))).astype(np.float32)
    is_val = np.array([split == "val" for split in images for _ in range(len(images[split]))])
    index = np.concatenate([np.arange(len(each)) for each in images.values()])
    targets = np.concatenate([each.targets for each in images.values()])
    stamps = np.arange(len(paths), dtype=np.uint64)
    return Features(vectors, targets, is_val, index, stamps, paths, CLASSES, ["Cat", "Dog"], [], "a net", "digest")


def stems(found: NearCopies, features: Features) -> list[list[str]]:
    return [[Path(features.paths[at]).stem for at in group.members] for group in found.groups]


def test_groups_are_copies_and_what_is_alike_is_none(images: dict[str, FileImages], tmp_path: Path):
    features = features_of(images)
    found = find_near_copies(features, images)
    assert stems(found, features) == [["00", "small", "turned", "crop"], ["grey", "01"], ["02", "zz"]]
    assert [(group.is_across, group.is_two_classes) for group in found.groups] == [
        (True, False), (False, True), (False, False)
    ]  # fmt: skip
    assert [features.paths[at] for at in found.leaked(features)] == [str(tmp_path / "val/cat/crop.jpg")]
    assert found.num_compared > len(found.pairs) + 8  # those that are alike were compared, too
    number = found.group_of_each(len(features), np.array([[10, 11]]))
    assert len(np.unique(number)) == len(features) - 3 - 1 - 1 - 1
    rows = found.rows(features)
    assert all(len(row) == len(COLUMNS) for row in rows)
    assert [row[0] for row in rows] == [1] * 4 + [2] * 2 + [3] * 2
    assert [row[2:4] for row in rows[3:6]] == [("Cat", "val"), ("Cat", "train"), ("Dog", "train")]
    assert rows[6][6] == features.paths[found.groups[2].members[1]]
    exact = np.array([found.groups[2].members])  # listed as such already
    assert stems(find_near_copies(features, images, exact), features) == stems(found, features)[:2]


def test_an_image_that_is_gone_has_no_copies(images: dict[str, FileImages], tmp_path: Path):
    features = features_of(images)
    (tmp_path / "train/cat/small.jpg").unlink()
    (tmp_path / "train/cat/zz.jpg").write_bytes(b"no image")
    found = find_near_copies(features, images)
    assert stems(found, features) == [["00", "turned", "crop"], ["grey", "01"]] and found.num_unread == 2


def test_what_is_left_of_a_group_names_no_image_that_is_gone(tmp_path: Path):
    """Of 0-1, 1-2, 2-3, 2-4 and 5-6, 2 and 6 are gone: 3 and 4 stay copies of the others."""
    features, agreements = blobs(8), {(0, 1): 0.7, (1, 2): 0.6, (2, 3): 0.8, (2, 4): 0.9, (5, 6): 0.9}
    pairs = [Pair(*both, 0.9, agreement, False) for both, agreement in agreements.items()]
    groups = NearCopies([Group([0, 1, 2, 3, 4], pairs[:4], False, True), Group([5, 6], pairs[4:], False, True)])
    found = groups.among(features, ~np.isin(np.arange(8), [2, 6]))
    assert [group.members for group in found.groups] == [[0, 1, 3, 4]]
    assert min(pair.agreement for pair in found.pairs) == 0.7
    rows, paths = found.rows(features), features.paths
    assert [row[-2:] for row in rows] == [("0.70", paths[1]), ("0.70", paths[0]), ("0.80", ""), ("0.90", "")]
    (tmp_path / "list.csv").write_bytes(table_bytes(COLUMNS, rows))
    images, listed = read_list(tmp_path / "list.csv")
    assert [row[1:] for row in listed.rows(images)] == [row[1:] for row in rows]


def test_without_images_or_with_one_there_are_no_candidates():
    for number in (0, 1):
        assert [len(each) for each in candidates(np.ones((number, 4), np.float32))] == [0, 0, 0]


def test_the_candidates_are_the_nearest_of_either():
    """Each pair once; nothing that is unlike."""
    vectors = np.random.default_rng(0).normal(size=(200, 3))
    first, second, cosines = candidates(vectors)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    table = unit @ unit.T - 2 * np.eye(200)
    wanted = {
        (min(a, b), max(a, b)) for a in range(200) for b in np.argsort(-table[a])[:3].tolist() if table[a, b] >= 0.5
    }
    assert set(zip(first.tolist(), second.tolist(), strict=True)) == wanted and len(first) == len(wanted)
    np.testing.assert_allclose(cosines, table[first, second], atol=1e-5)


def test_the_rows_of_a_large_group_take_one_pass_over_its_pairs():
    class Counted(list[Pair]):
        num_passes = 0

        def __iter__(self) -> Iterator[Pair]:
            Counted.num_passes += 1
            return super().__iter__()

    features = blobs(30)
    pairs = Counted(Pair(at, at + 1, 0.9, 0.7 + at / 100, False) for at in range(29))
    rows = NearCopies([Group(list(range(30)), pairs, True, True)]).rows(features)
    assert [row[5] for row in rows[:3]] == ["0.70", "0.71", "0.72"] and Counted.num_passes == 1
    assert [row[6] for row in rows[-2:]] == [features.paths[29], features.paths[28]]
