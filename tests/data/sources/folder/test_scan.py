import os
import subprocess
import sys
from pathlib import Path

import pytest

from imagenet_ddp.data.sources.folder.scan import LinkFilter, class_folders, has_image, image_names, is_image


@pytest.mark.parametrize("name", ["a.jpg", "a.JPEG", "a b (1).Png", "a.tiff", "näme_图.webp", "a.b.jp2"])
def test_images_are_known_by_their_extension(name: str):
    assert is_image(name)


@pytest.mark.parametrize("name", ["a", "a.txt", "jpg", ".jpg", "._a.jpg", ".a.jpg", "a.jpg.part", "a.npy"])
def test_all_else_is_no_image(name: str):
    assert not is_image(name)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("b/2.jpg", "b/1.jpg", "b/deep/er/3.png", "b/.hidden/4.jpg", "b/._1.jpg", "a/note.txt", ".git/x.jpg"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "loose.jpg").touch()
    return tmp_path


def test_classes_are_the_visible_folders_sorted(folder: Path):
    assert class_folders(folder) == ["a", "b"]


def test_images_are_found_to_any_depth_without_hidden_ones(folder: Path):
    assert image_names(folder / "b") == ["1.jpg", "2.jpg", "deep/er/3.png"]
    assert has_image(folder / "b")
    assert image_names(folder / "a") == []
    assert not has_image(folder / "a")


def test_links_to_folders_are_followed(folder: Path):
    (folder / "c").symlink_to(folder / "b")
    assert class_folders(folder) == ["a", "b", "c"]
    assert image_names(folder / "c") == image_names(folder / "b")


def test_classes_that_link_to_each_other_keep_to_their_own(folder: Path):
    names = ("a", "b", "c")
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / f"{name}.jpg").touch()
        for other in names:
            (folder / name / f"to {other}").symlink_to(folder / other)
        (folder / name / "up").symlink_to("..")
    (folder / "all").symlink_to(".")
    assert class_folders(folder) == ["a", "b", "c"]
    assert image_names(folder / "a", LinkFilter(folder)) == ["a.jpg"]
    assert image_names(folder / "a") != ["a.jpg"]  # taken by itself, it links to places elsewhere, which end too


def test_a_folder_elsewhere_is_gone_into_once(tmp_path: Path):
    places = [tmp_path / "elsewhere" / str(number) for number in range(9)]
    for place in places:
        place.mkdir(parents=True)
        (place / "x.jpg").touch()
        for other in places:
            (place / other.name).symlink_to(other)
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "link").symlink_to(places[0])
    found = image_names(tmp_path / "train" / "a", LinkFilter(tmp_path / "train"))
    assert found == [*(f"link/{number}/x.jpg" for number in range(1, 9)), "link/x.jpg"]


def test_links_to_no_file(folder: Path):
    os.mkfifo(folder / "pipe")
    (folder / "a" / "pipe.jpg").symlink_to(folder / "pipe")
    (folder / "a" / "zero.jpg").symlink_to("/dev/zero")
    (folder / "a" / "self.jpg").symlink_to("self.jpg")
    (folder / "a" / "broken.jpg").symlink_to("nowhere")
    (folder / "self").symlink_to("self")
    assert class_folders(folder) == ["a", "b"]
    assert image_names(folder / "a") == ["broken.jpg", "self.jpg"]  # said when they are read


def test_needs_no_torch():
    code = "import sys, imagenet_ddp.data.sources.folder.scan; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"
