"""What a run does about images that cannot be read, through loader processes and whole commands."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from conftest import SMALL, Run, write_images
from PIL import Image

from imagenet_ddp.callbacks.run_files import BadImagesList
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.data.unreadable_images import Bad, BadImages, LocalBoard
from imagenet_ddp.errors import RunError


def skipping(limit: float) -> DataConfig:
    return DataConfig.of(name="imagefolder", root="pets", on_bad_image="skip", bad_image_limit=limit)


def bad(*numbers: int) -> list[Bad]:
    return [(f"{number}.jpg", "it is not an image in a known format") for number in numbers]


@pytest.mark.parametrize(("limit", "most"), [(0.01, 3), (0.0, 0), (1, 1)])
def test_more_than_the_limit_end_the_run(limit: float, most: int):
    images = BadImages(skipping(limit), 250, say=lambda line: None)
    images.on_bad_images(bad(*range(most)))
    with pytest.raises(RunError, match=rf"at most {most} images?.* but {most + 1} are, most recently 99\.jpg"):
        images.on_bad_images(bad(99))


def test_the_limit_is_for_all_ranks_together():
    board = LocalBoard()
    ranks = [BadImages(skipping(3), 100, board, lambda line: None) for _ in range(2)]
    ranks[0].on_bad_images(bad(0, 1))
    ranks[1].on_bad_images(bad(1, 2))
    with pytest.raises(RunError):
        ranks[0].on_bad_images(bad(3))


def test_a_resumed_run_adds_its_images_to_those_that_are_listed(tmp_path: Path):
    found, path, trainer = [("=1.jpg", "-1 bytes")], tmp_path / "bad_images.csv", SimpleNamespace(is_global_zero=True)
    for name in ("2.jpg", "3.jpg"):
        found.append((name, "the file is empty"))
        BadImagesList(path, lambda: found).on_train_epoch_end(cast(Any, trainer), cast(Any, None))
    assert len(read_cells(path, {"path": "path"}).columns["path"]) == 3, "each once"


@pytest.mark.parametrize(
    "content", [b"", b"path\n1.jpg\n", b"path,path,reason\n1,2,3\n", b"\xff\xfe\0", b'path,"rea\n']
)
def test_a_file_that_is_no_list_is_replaced(content: bytes, tmp_path: Path):
    path, trainer = tmp_path / "bad_images.csv", SimpleNamespace(is_global_zero=True)
    path.write_bytes(content)
    with pytest.warns(UserWarning, match=r"bad_images\.csv is no list of unreadable images"):
        found = BadImagesList(path, lambda: bad(7))
    found.on_train_epoch_end(cast(Any, trainer), cast(Any, None))
    assert read_cells(path, {"path": "path"}).columns["path"] == ["7.jpg"]


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("broken")
    write_images(root / "train", {"cat": 10, "dog": 10, "owl": 9})
    write_images(root / "val", {"cat": 4, "dog": 4, "owl": 3}, seed=1)
    (root / "train" / "cat" / "003.jpg").write_bytes(b"no image")
    (root / "train" / "owl" / "001.jpg").write_bytes((root / "train" / "owl" / "001.jpg").read_bytes()[:300])
    (root / "val" / "dog" / "002.jpg").write_bytes(b"")
    pages = [Image.new("RGB", (20, 20), colour) for colour in ("red", "blue")]
    for name in ("000", "001"):
        pages[0].save(root / "train" / "dog" / f"{name}.jpg", "TIFF", save_all=True, append_images=pages[1:])
    Image.new("RGBA", (20, 20), (200, 0, 0, 0)).save(root / "val" / "cat" / "000.jpg", "PNG")
    return root


def test_an_unreadable_image_ends_a_run_in_one_sentence(broken: Path, run: Run):
    options = [*SMALL, f"data.root={broken}", "trainer.max_epochs=1", "hydra.run.dir=found"]
    done = run("train", *options, "data.on_bad_image=raise")
    assert done.returncode == 1
    said = done.stderr.strip().splitlines()[-1]
    assert "must be an image, but cannot be read" in said and "Hint: set data.on_bad_image=skip" in said
    assert "Traceback" not in done.stdout + done.stderr
    # nothing was trained, so the folder is free; photographs of one's own are skipped, up to one in twenty
    again = run("train", *options, "data.bad_image_limit=3", code=0)
    assert "Skipped" in again.stdout and "10 of 11 validation images, each once, 1 unreadable." in again.stdout
    assert "at most 2 images (0.05 of 29 images)" in run("train", *options[:-1], code=1).stderr


@pytest.mark.slow
def test_ranks_stay_in_step_and_all_unreadable_images_are_listed_once(broken: Path, run: Run, tmp_path: Path):
    skip = ("data.on_bad_image=skip", "data.bad_image_limit=3", f"data.root={broken}")
    done = run("train", *SMALL, *skip, "trainer.devices=2", "data.num_workers=1", "hydra.run.dir=found")
    assert done.returncode == 0, done.stderr
    assert "10 of 11 validation images, each once, 1 unreadable." in done.stdout
    with (tmp_path / "found" / "bad_images.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = {row["path"]: row["reason"] for row in csv.DictReader(file)}
    names = [f"{broken}/{name}" for name in ("train/cat/003.jpg", "train/owl/001.jpg", "val/dog/002.jpg")]
    assert list(rows) == names
    assert rows[names[0]] == "it is not an image in a known format"
    assert rows[names[2]] == "the file is empty"
    summary = json.loads((tmp_path / "found" / "summary.json").read_text())
    assert (summary["num_unreadable_images"], summary["num_val_images"]) == (3, 10)
    clear = "val: 1 image with fully transparent pixels, whose colours are used and whose transparency is not."
    pages = "with several frames or pages, of which the first is used."
    logs = [(tmp_path / "found" / "logs" / f"rank{rank}.log").read_text() for rank in (0, 1)]
    assert f"train: 2 images {pages}" in done.stdout and clear in done.stdout, "of both ranks, each once"
    assert 1 <= sum(log.count(f" is an image {pages}") for log in logs) <= 2, "a line about the first of each rank"

    last = tmp_path / "found" / "checkpoints" / "last.ckpt"
    done = run("evaluate", f"checkpoint={last}", "trainer.accelerator=cpu", "hydra.run.dir=evaluated")
    assert done.returncode == 0, done.stderr
    assert "10 of 11 validation images, each once, 1 unreadable." in done.stdout and clear in done.stdout
    assert json.loads((tmp_path / "evaluated" / "evaluation.json").read_text())["num_val_images_unreadable"] == 1

    done = run("train", *SMALL, *skip, "data.bad_image_limit=1", "trainer.devices=2", "hydra.run.dir=limited")
    assert done.returncode == 1
    assert "at most 1 image may be unreadable (data.bad_image_limit), but 2 are" in done.stderr
    assert "Traceback" not in done.stdout + done.stderr
