from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.data import check_data
from imagenet_ddp.data.decoding.heic import HEIC_EXTENSIONS
from imagenet_ddp.data.sources import walk

Tree = Callable[..., Path]


def config(name: str = "imagefolder", **typed: Any) -> DataConfig:
    return DataConfig.of(name=name, **typed)


def validate(data: DataConfig, purpose: Purpose | None = Purpose.TRAIN) -> list[str]:
    return list(map(str, check_data.inspect(data, 0, purpose=purpose)[0]))


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    """Make empty files; the checks look at names only."""

    def make(*files: str) -> Path:
        root = tmp_path / "photos"  # beside which nothing lies, as the folders of other tests do beside tmp_path
        for file in files:
            path = root / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir() if file.endswith("/") else path.touch()
        return root

    return make


AB = ("train/a/1.jpg", "train/b/1.jpg")


@pytest.mark.parametrize(
    ("files", "typed", "said"),
    [
        ((*AB, "val/a/"), {}, "must contain images, but its class folders are empty. Hint: add images."),
        (
            ("train/a/1.jpg", "train/b/notes.txt", "val/a/1.jpg", "val/b/.hidden.jpg"),
            {},
            "1 of 2 contains none, but 1 file of another type (.txt): b. Hint: save these as PNG, TIFF or JPEG, add "
            "images, or remove the folder (and its images in val).",
        ),
        (("a/1.jpg", "b/notes.txt"), {"train_dir": ".", "val_fraction": 0.2}, "or remove the folder."),
        (
            ("a/1.dcm", "a/2.dcm", "b/IM0001", "b/IM0002", "b/IM0003"),
            {"train_dir": ".", "val_fraction": 0.2},
            "contain none, but 5 files of other types (none, .dcm): a, b. Hint: save these as PNG, TIFF or JPEG, add",
        ),
        ((*AB, "val/a/1.nii"), {}, "but its class folders have none, but 1 file of another type (.nii). Hint: save"),
        ((*AB, "val/1.jpg"), {}, "must contain a folder per class, but has 1 image and no class folders"),
        (("1.jpg", "2.png"), {}, "must contain a folder per class, but has 2 images and no class folders. Hint: sort"),
        (
            ("1.heic", "2.HEIC"),
            {},
            "has no images (but 2 HEIC files, a format that is not read) and no class folders. Hint: run `",
        ),
        (
            ("1.heic", "2.HEIC"),
            {},
            " 'pillow-heif>=1.8'` to read HEIC files, or convert them to JPEG (such as by `"
            "find FOLDER -iname '*.hei[cf]' -exec magick mogrify -format jpg {} +`), then sort",
        ),
        (
            ("train/a/1.jpg", "train/a/2.heic", "train/b/1.txt", "val/a/1.jpg"),
            {},
            "1 of 2 contains none, but 1 file of another type (.txt): b.",
        ),
        (
            ("train/a/1.jpg", "train/b/1.heic", "val/a/1.jpg"),
            {},
            "none (but 1 HEIC file, a format that is not read): b",
        ),
        (
            (*AB, "val/a/1.heif"),
            {},
            "class folders have none (but 1 HEIC file, a format that is not read). Hint: run",
        ),
        (AB, {}, "Hint: set data.val_fraction=0.1."),
        ((*AB, "val/c/1.jpg"), {}, "also be a class of train, but 1 of 1 is not: c."),
        ((*AB, "val/a/1.jpg"), {"val_fraction": 0.1}, "Hint: set data.val_fraction=null to use"),
        (("photos/a/1.jpg", "val/a/1.jpg"), {}, "Hint: set data.train_dir=NAME to another folder."),
    ],
)
def test_one_thing_wrong_with_the_folder(
    tree: Tree, files: tuple[str, ...], typed: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(walk, "IMAGE_EXTENSIONS", walk.IMAGE_EXTENSIONS - {*HEIC_EXTENSIONS})  # without pillow-heif
    found = validate(config(root=str(tree(*files)), **typed))
    assert any(said in text for text in found)
    assert all("Hint: " in text for text in found)
    assert len(found) <= 2


def test_classes_without_train(tree: Tree):
    root = str(tree("cat/1.jpg", "dog/1.jpg"))
    assert validate(config(root=root, train_dir=".", val_fraction=0.2)) == []
    (text,) = validate(config("imagenet", root=root))
    assert text == f"data.train_dir must be a folder, but {root}/train does not exist. Hint: set data=imagefolder."


def test_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    assert "got null. Hint: set data.root to the path of a folder" in validate(config())[0]
    assert f"gone ({tmp_path}/gone) does not exist" in validate(config(root="gone"))[0]
    assert "is a file." in validate(config(root="file"))[0]


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"val_resize": 100}, "at least data.image_size (224)"),
        ({"mean": [123.675, 116.28, 103.53]}, "for pixels in 0..255 by 255, as in 'data.mean=[0.485,0.456,0.406]'."),
        ({"mean": [-0.1, 0.5, 0.5]}, "data.mean must be three numbers"),
        ({"std": [58.395, 57.12, 57.375]}, "data.std must be three numbers"),
        ({"std": [0.2, 0, 0.2]}, "data.std must be three numbers"),
        ({"sampling": "balanced", "repeats": 3}, "got 3. Hint: set data.repeats=1, or data.sampling="),
        (
            {"name": "packed", "sampling": "balanced", "shuffle_window_shards": 16},
            "Hint: set data.shuffle_window_shards=0, or data.",
        ),
        ({"name": "table", "val_fold": 5, "val_fraction": 0.2}, "data.val_fold must be an integer from 0 to 4, got 5"),
        ({"name": "imagfolder"}, "Hint: set data=imagefolder data.root=FOLDER."),
    ],
)
def test_one_value(typed: dict[str, Any], said: str):
    found = [text for text in validate(config(**({"name": "shapes"} | typed))) if said in text]
    assert len(found) == 1
    assert "Hint: " in found[0]


def test_a_table(tmp_path: Path):
    (tmp_path / "t.csv").write_text("path,label,split\na.jpg,cat,train\n")
    for purpose, count in ((Purpose.TRAIN, 1), (Purpose.EVALUATE, 1), (None, 0)):
        assert len(validate(config("table", root=str(tmp_path / "t.csv")), purpose)) == count
    assert check_data.look(config("table", root=str(tmp_path / "t.csv")), 0, elsewhere=True) is None
    found = check_data.look(config("table"), 0, elsewhere=True)
    assert found and len(found.mistakes) == 1
    (text,) = validate(config("imagefolder", root=str(tmp_path / "t.csv")))
    assert text.endswith(f"is a file. Hint: set data=table data.root={tmp_path}/t.csv.")
    (text,) = validate(config("tabel"))
    assert text.endswith("Hint: set data=table data.root=FILE.csv.")


def test_a_folder_of_another_source_is_named(tree: Tree):
    root = str(tree("pack/packed.json", "stl/stl10_binary/train_X.bin"))
    for name, folder in (("packed", "pack"), ("stl10", "stl")):
        found = validate(config(root=f"{root}/{folder}"))
        assert found and all(f"data={name}." in text for text in found)
