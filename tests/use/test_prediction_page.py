"""The page of predict: what may be chosen on it is carried out by the line that it names."""

import os
import re
import shlex
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import relabel
from imagenet_ddp.sections.section import MOST_CLASSES
from imagenet_ddp.use.prediction_page import predictions_page
from imagenet_ddp.use.predictor import FileReader, Outputs, Predictor, Result


def lines_of(html: str) -> list[list[str]]:
    """Return the command and the words of each line to type."""
    found = re.findall(r'<code class="line">(.*?)</code>', html)
    return [shlex.split(unescape(line).partition("imagenet_ddp.")[2]) for line in found]


def page(
    classes: list[str],
    config: PredictConfig,
    reasons: list[str] | None = None,
    tail: str = "",
    *,
    is_exported: bool = False,
) -> str:
    """Return the page of new/0.jpg (surely of the first class), new/1.jpg (not sure) and new/bad.jpg."""
    reader = FileReader(Reading(), lambda image: image)
    explain: Any = None if is_exported else lambda *_: torch.zeros(1)
    predictor = Predictor(classes, classes, reader, lambda _: Outputs(torch.zeros(1)), torch.device("cpu"), explain)
    found = {"new/0.jpg": Result([(0, 0.9), (1, 0.1)]), "new/1.jpg": Result([(1, 0.4), (0, 0.3)]),
             "new/bad.jpg": Result([], "no image")}  # fmt: skip
    return predictions_page(predictor, config, found, reasons, tail, has_several=False).decode()


def test_what_is_chosen_is_carried_out_by_the_line_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    classes = ["=a", "b c"]
    trained, new = ["my photos/=a/8.jpg", "my photos/=a/9.jpg", "my photos/b c/9.jpg"], ["new/0.jpg", "new/1.jpg"]
    for number, path in enumerate([*trained, *new, "new/bad.jpg"]):
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 30), (40 * number, 0, 0)).save(path)
    data = DataConfig.of(name="imagefolder", root="my photos")
    config = PredictConfig(data=data, images="new", out="out/p.html", checkpoint="runs/mine/checkpoints/best.ckpt")
    html = page(classes, config)
    rows = dict(re.findall(r'<select data-path="(.*?)" data-row="(.*?)"', html))
    offered = {path: re.findall(r'<option value="([^"]*)"', part) for path, part in
               re.findall(r'<select data-path="(.*?)"(.*?)</select>', html)}  # fmt: skip
    assert offered == {"new/0.jpg": ["", "&#39;=a", "b c", "remove"], "new/1.jpg": ["", "b c", "&#39;=a", "remove"],
                       "new/bad.jpg": ["", "remove"]}  # fmt: skip
    chosen = {"new/0.jpg": "", "new/1.jpg": "'=a", "new/bad.jpg": "remove"}
    text = "".join(f'{unescape(rows[path])},"{word}"\n' for path, word in chosen.items())
    Path("out").mkdir()
    Path("out/decisions.csv").write_text(f"\ufeffpath,label,group,list,decision\n{text}", "utf-8")
    (kind, *typed), (_, *train), (_, *predict) = lines_of(html)
    assert kind == "prepare" and relabel.run(prepare_options.read(typed, os.environ)) == 0
    there = [*trained, "my photos/=a/1.jpg", "new/0.jpg", "out/removed/bad.jpg"]
    assert {*map(str, Path().rglob("*.jpg"))} == {*there}
    assert train[0] == "experiment=own_photos" and "model.weights=runs/mine" in train
    assert predict[0] == "checkpoint=runs/mine" and "label_next=50" in predict


def test_what_to_label_next_keeps_its_order_and_can_be_chosen(tmp_path: Path):
    """The useful first, whatever the net says; the lines are those of any page, without the one that made it."""
    data = DataConfig.of(name="imagefolder", root=str(tmp_path))
    config = PredictConfig(data=data, images="new", out="next.html", checkpoint="runs/mine", label_next=3)
    html = page(["a", "b"], config, ["stands for 2 others", "between b and a", "strange"], "The end.")
    assert re.findall(r'<select data-path="(.*?)"', html) == ["new/0.jpg", "new/1.jpg", "new/bad.jpg"]
    assert re.findall(r'<section id="(.*?)"', html) == ["part-1"]
    assert html.index('id="next"') < html.index('id="part-1"'), "what to do stands above the pictures"
    assert (
        "a 90 %<br>stands for 2 others<br>" in html and "The end.</p>" in html and "between b and a" not in html
    )  # the words say: b or a
    assert [kind for kind, *_ in lines_of(html)] == ["prepare", "train"]
    assert "decisions=decisions.csv" in lines_of(html)[0]


@pytest.mark.parametrize("other", ["exported", "table", "gone"])
def test_nothing_can_be_chosen_that_could_not_be_carried_out(other: str, tmp_path: Path):
    (tmp_path / "a").mkdir()
    data = DataConfig.of(name="imagefolder", root=str(tmp_path / "gone" if other == "gone" else tmp_path))
    if other == "table":
        data = DataConfig.of(name="table", root="t.csv")
    html = page(["a", "b"], PredictConfig(data=data, images="new"), is_exported=other == "exported")
    assert "<select" not in html and not lines_of(html) and 'href="#next"' not in html


def test_of_many_classes_the_likeliest_may_be_chosen(tmp_path: Path):
    config = PredictConfig(data=DataConfig.of(name="imagefolder", root=str(tmp_path)), images="new")
    html = page([f"class {number}" for number in range(MOST_CLASSES + 1)], config)
    assert html.count("<option") == 4 + 4 + 2  # decide, the likeliest two, remove
