import os
from pathlib import Path

import pytest

from imagenet_ddp.data.sources.listing import (
    class_folders,
    find_images,
    has_image,
    is_image,
    list_folder,
    validate_images,
)
from imagenet_ddp.errors import ConfigError


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
    assert list_folder(folder / "b")[0] == ["1.jpg", "2.jpg", "deep/er/3.png"]
    assert has_image(folder / "b")
    assert list_folder(folder / "a")[0] == []
    assert not has_image(folder / "a")


def test_a_class_may_be_a_link_but_not_to_where_it_lies(folder: Path):
    (folder / "c").symlink_to(folder / "b")
    (folder / "all").symlink_to(".")
    (folder / "up").symlink_to("..")
    assert class_folders(folder) == ["a", "b", "c"]
    assert list_folder(folder / "c") == list_folder(folder / "b")


def test_links_to_files_are_images_and_links_to_folders_below_a_class_are_left_out(folder: Path):
    (folder / "a" / "linked.jpg").symlink_to(folder / "b" / "1.jpg")
    (folder / "a" / "deep").symlink_to(folder / "b")
    (folder / "a" / "up").symlink_to("..")
    (folder / "a" / "like an image.jpg").symlink_to(folder / "b")
    assert list_folder(folder / "a") == (["linked.jpg"], {".txt": 1, "linked": 3})


def test_links_to_no_file(folder: Path):
    os.mkfifo(folder / "pipe")
    (folder / "a" / "pipe.jpg").symlink_to(folder / "pipe")
    (folder / "a" / "zero.jpg").symlink_to("/dev/zero")
    (folder / "a" / "self.jpg").symlink_to("self.jpg")
    (folder / "a" / "broken.jpg").symlink_to("nowhere")
    (folder / "self").symlink_to("self")
    assert class_folders(folder) == ["a", "b"]
    assert list_folder(folder / "a")[0] == ["broken.jpg", "self.jpg"]  # said when they are read


def test_images_to_predict_are_a_folder_a_file_or_a_pattern(tmp_path: Path):
    (tmp_path / "deep").mkdir()
    for name in ("a.jpg", "deep/b.jpg", "c.txt"):
        (tmp_path / name).touch()
    assert find_images(str(tmp_path)) == [f"{tmp_path}/a.jpg", f"{tmp_path}/deep/b.jpg"]
    assert find_images(f"{tmp_path}/c.txt") == [f"{tmp_path}/c.txt"]
    assert find_images(f"{tmp_path}/**/*.jpg") == [f"{tmp_path}/a.jpg", f"{tmp_path}/deep/b.jpg"]
    for pattern in (tmp_path, f"{tmp_path}/c.txt", f"{tmp_path}/**/*.jpg"):
        assert validate_images(str(pattern)) == []
    for pattern in ("", f"{tmp_path}/*.png"):
        assert len(validate_images(pattern)) == 1
        with pytest.raises(ConfigError, match=r"must match image files, got none\. Hint: set 'images=FOLDER/\*\.jpg'"):
            find_images(pattern)


def test_why_there_are_no_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (text,) = validate_images("nowhere")
    assert text.startswith(f"images=nowhere must match image files, but nowhere ({tmp_path}/nowhere) does not exist.")
    with pytest.raises(ConfigError, match=rf", but the folder empty \({tmp_path}/empty\) contains none\. Hint: "):
        find_images("empty")
    assert "must match image files, got none." in validate_images("nowhere/*.jpg")[0]
