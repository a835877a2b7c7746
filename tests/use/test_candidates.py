"""The list of images to label next: its order, what is said of it, and the command that carries it out."""

import shlex
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.data.sources.layout import find_layout
from imagenet_ddp.mistakes import key_of
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.use.candidates import Candidates, Chosen, Place, about, next_step, tail_sentence
from imagenet_ddp.use.predictor import Predictor, Result

CLASSES = ["n1", "n2", "n3"]


def chosen(*is_known: bool | None, count: int | None = None) -> list[Chosen]:
    """Return what is chosen of images that are unlike each other, and less and less unlike the training images."""
    predictor: Any = Predictor(CLASSES, ["cat", "dog", "owl"], None, None, torch.device("cpu"))  # type: ignore[arg-type]
    candidates = Candidates(predictor)
    for number, each in enumerate(is_known):
        vector = torch.from_numpy(np.eye(len(is_known), dtype=np.float32)[number])
        candidates.add(f"new/{number}.jpg", Result([(1, 0.9), (0, 0.1)], "", number / 10, each, vector))
    return candidates.choose(count or len(is_known))


def config(**more: Any) -> PredictConfig:
    return PredictConfig(**{"images": "new", "label_next": 4, "out": "next.csv"} | more)


def test_strangers_get_the_places_that_are_left():
    """Those first that are the least unlike the training images."""
    found = chosen(False, True, False, True, count=3)
    assert [each.path for each in found[2:]] in (["new/0.jpg"], ["new/2.jpg"])
    found = chosen(False, True, False, True)
    assert [each.result.is_known for each in found] == [True, True, False, False]
    assert [each.path for each in found[2:]] == ["new/2.jpg", "new/0.jpg"]
    assert [each.why for each in found] == ["stands only for itself"] * 2 + ["unlike the training images"] * 2
    assert {(each.suggested, each.label) for each in found} == {("n2", "dog")}
    said = "2 images are unlike the training images, and probably of none of the classes: they get the places that the "
    said += "others leave (the last 2 of the list). To see all, leave label_next out."
    assert about(found, 4, 2, config()) == [said]
    assert about(found[:2], 4, 2, config(label_next=2)) == [said.replace("the last 2", "none")]
    assert about(chosen(None, None), 2, 0, config(label_next=2)) == []


def test_why_each_is_chosen_and_what_the_last_add():
    """An image of a group stands for the others of it, unless the net is not sure of it, or all are listed."""
    predictor: Any = Predictor(CLASSES, ["cat", "dog", "owl"], None, None, torch.device("cpu"))  # type: ignore[arg-type]
    candidates, noise = Candidates(predictor), np.random.default_rng(0).normal(size=(12, 8)).astype(np.float32)
    for number, group in enumerate([0] * 8 + [1] * 4):
        vector = torch.from_numpy(5 * np.eye(8, dtype=np.float32)[group] + noise[number])
        candidates.add(f"{group}.jpg", Result([(group, 0.5 if number == 8 else 0.8), (2, 0.3)], "", 1, True, vector))
    assert {each.path: each.why for each in candidates.choose(2)} == {
        "0.jpg": "stands for 7 others", "1.jpg": "stands for 3 others",
    }  # fmt: skip
    assert {each.why for each in candidates.choose(12)} == {"stands only for itself", "between dog and owl"}

    def listed(sure: list[float], likeness: list[float]) -> list[Chosen]:
        results = [Result([(0, share)]) for share in sure]
        return [Chosen("", "", "", "", *each) for each in zip(results, map(partial(Place, 0), likeness), strict=True)]

    rising, falling = [0.1 * number for number in range(10)], [0.1 * number for number in range(10, 0, -1)]
    assert tail_sentence(listed(rising, [float("nan"), *rising[1:]])) == (
        "The last 5 add less than the 5 before them: their likeliest class has 70 % on average (those before: 20 %), "
        "and they are like one that stands earlier by 0.70 of at most 1 (those before: 0.25)."
    )
    assert tail_sentence(listed(rising, falling)).startswith("The last 5 seem to add less than")
    assert tail_sentence(listed(falling, falling)).startswith("The last 5 add as much as")
    assert tail_sentence(listed(rising[:9], rising[:9])) == "" == tail_sentence([])


def test_fewer_than_asked_for_is_said():
    few = "There are fewer than label_next=50, because "
    assert about(chosen(True), 1, 0, config(label_next=50)) == [f"{few}no others can be read."]
    assert about(chosen(True), 3, 0, config(label_next=50)) == [f"{few}near-copies are left out (2 images)."]


LAYOUTS = {
    "classes": (["a/1.jpg", "b/1.jpg"], {"train_dir": ".", "val_fraction": 0.2}),
    "classes, another share": (["a/1.jpg", "b/1.jpg"], {"train_dir": ".", "val_fraction": 0.5}),
    "splits": (["train/a/1.jpg", "train/b/1.jpg", "val/a/2.jpg"], {}),
    "one split": (["train/a/1.jpg", "train/b/1.jpg"], {"val_fraction": 0.1}),
    "other names": (["x y/a/1.jpg", "x y/b/1.jpg", "test/a/2.jpg"], {"train_dir": "x y", "val_dir": "test"}),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("images", ["new", "new/*.jpg", "./new/1.jpg"])
def test_the_command_finds_the_class_folders(layout: str, images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """It is accepted as it is printed, and means the folder that the net was trained on."""
    monkeypatch.chdir(tmp_path)
    names, more = LAYOUTS[layout]
    for path in (*(Path("my $pets", name) for name in names), Path("new/1.jpg"), Path("next.csv")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    data = DataConfig.of(name="imagefolder", root="my $pets", **more)
    how, line = next_step(chosen(True), config(images=images, data=data))
    assert how.endswith("into the column decision.")
    words = shlex.split(line.rstrip("`").partition(" imagenet_ddp.prepare ")[2])
    found = prepare_options.read(words, {}).config
    assert find_layout(found.data) == find_layout(data)  # type: ignore[arg-type]
    assert (Path(str(found.unlabelled)), found.decisions) == (Path("new"), "next.csv")
    if layout in ("classes", "splits"):
        assert [key_of(word) for word in words if word.startswith("data.")] == ["data.root"]


def test_other_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    data = DataConfig.of(name="imagefolder", root=str(tmp_path))
    how, line = next_step(chosen(True), config(out="a/next.xlsx", data=data))
    assert "and save the list as a/next.csv." in how and line.endswith(" decisions=a/next.csv`")
    how, line = next_step(chosen(True), config(out="a/next.html", data=data))
    assert how.startswith("Open a/next.html,") and line.endswith(" decisions=a/decisions.csv`")
    assert next_step(chosen(True), config(out="next.jsonl", data=data)) == next_step([], config(data=data)) == []
    for other in (DataConfig.of(name="table", root="t.csv"), DataConfig.of(name="imagefolder", root="gone")):
        [line] = next_step(chosen(True), config(data=other))
        assert "add them to the training images" in line
