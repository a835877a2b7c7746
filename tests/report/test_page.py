"""The page: escaped, without a network, small, readable."""

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_predictions import random_probabilities, write_evaluation
from helpers.fake_runs import make_run

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report import pictures as pictures_module
from imagenet_ddp.report.page import build
from imagenet_ddp.report.pictures import Pictures
from imagenet_ddp.report.predictions import read
from imagenet_ddp.report.run_folders import read_run

EVIL = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>"
CLASSES = [EVIL, "größe 数 🦉", "a & b", "{{ 7 * 7 }}"]


class Reader(HTMLParser):
    """Counts tags, collects text, attributes that lead elsewhere and event handlers."""

    def __init__(self, text: str):
        super().__init__()
        self.tags: dict[str, int] = {}
        self.links: set[str] = set()
        self.handlers: list[str] = []
        self.text: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.links |= {value or "" for name, value in attrs if name in ("src", "href", "srcset", "action")}
        self.handlers += [name for name, _ in attrs if name.startswith("on")]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def page_of(folder: Path, monkeypatch: pytest.MonkeyPatch, pictures: Pictures, num_images: int, classes: list[str]):
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: pictures)
    target = np.arange(num_images) % len(classes)
    paths = [f"{EVIL}/{row}\udcff.jpg" for row in range(num_images)]
    probabilities = random_probabilities(target, len(classes))
    found = read(write_evaluation(folder / "e", probabilities, target, classes, paths=paths, unreadable=["bad.jpg"]))
    run = read_run(make_run(folder / "run", {"model.name": EVIL}, command=EVIL))
    return build(str(folder), run, found)


def test_whatever_stands_in_names_is_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = page_of(tmp_path, monkeypatch, Pictures(reason=EVIL), 80, CLASSES)
    html = page.files["report.html"].decode()
    found = Reader(html)
    assert (found.tags["script"], found.tags["img"], found.handlers) == (1, 2, [])  # two figures
    text = "".join(found.text)
    for name in [*CLASSES, f"{EVIL} on"]:
        assert name in text
    assert "49" not in {part.strip() for part in found.text}
    assert "\\udcff" in html, "bytes of a name that are no text"
    assert all(link.startswith(("#", "data:")) for link in found.links), "no network"
    assert not re.search(r"url\(|@import|https?://", html)
    assert len(page.files["likely_wrong_labels.csv"].splitlines()) > 1


def test_the_accuracy_without_near_copies_of_training_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A copy counts only if another image of its group was not evaluated, whatever split the check had it in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.zeros(8, int)
    probabilities = np.tile([0.9, 0.1], (8, 1))
    probabilities[6:] = probabilities[6:, ::-1]  # two wrong predictions
    paths = [f"v/{row}.jpg" for row in range(8)]
    found = read(write_evaluation(tmp_path / "e", probabilities, target, ["a", "b"], paths=paths))
    rows = [(1, "v/0.jpg"), (1, "t/0.jpg"), (2, "v/1.jpg"), (2, "v/2.jpg"), (3, tmp_path / "v/3.jpg"), (3, "t/1.jpg")]
    Path("near_copies.csv").write_text("group,path\n" + "".join(f"{group},{path}\n" for group, path in rows), "utf-8")
    page = build("e", None, found, maps=False, near_copies=Path("near_copies.csv"))
    sentence = "2 of 8 images are near-copies of training images: top-1 66.67 % without them (30 to 90 %), 75.00 % with"
    assert sentence in " ".join(page.summary) and sentence in page.files["report.html"].decode()
    Path("near_copies.csv").write_text("group,path\n1,x/0.jpg\n1,x/1.jpg\n", "utf-8")
    with pytest.raises(ConfigError, match=r"near_copies\.csv must list some of the evaluated images"):
        build("e", None, found, maps=False, near_copies=Path("near_copies.csv"))


def test_every_section_is_there_and_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = page_of(tmp_path, monkeypatch, Pictures(reason_maps="no such layer"), 80, CLASSES)
    html = page.files["report.html"].decode()
    sections = re.findall(r'<section id="(\w+)">', html)
    assert sections == ["classes", "confusion", "mistakes", "labels", "calibration", "maps", "curves", "facts"]
    assert re.findall(r'<li><a href="#(\w+)">', html.partition("<nav")[2]) == sections
    assert "There are no maps: no such layer" in html
    assert "1 image could not be read." in html
    assert page.summary[1] == "best top-1 80.00 % (epoch 5)"


def test_predictions_of_a_diverged_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.arange(6) % 2
    folder = write_evaluation(tmp_path / "e", np.full((6, 2), np.nan), target, ["a", "b"], calibration={"ece": None})
    page = build("e", None, read(folder))
    assert page.summary == [
        "resnet18 on imagefolder nowhere",
        "top-1 50.00 % (19 to 81 %, 6 images)",
        "the net is too inaccurate (top-1 50.00 %) to judge labels",
    ]
    assert "The net is too inaccurate (top-1 50.00 %) to judge labels" in page.files["report.html"].decode()


def test_labels_are_judged_by_an_accurate_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.arange(10) % 2
    probabilities = np.where(np.eye(2)[target] == 1, 0.9, 0.1)
    probabilities[:4] = probabilities[:4, ::-1]  # 6 of 10 predictions are right
    page = build("e", None, read(write_evaluation(tmp_path / "e", probabilities, target, ["a", "b"])))
    assert page.summary[-1].startswith(
        "likely_wrong_labels.csv lists the 4 of 10 images whose prediction differs from the label, most"
    )
    right = build(
        "e", None, read(write_evaluation(tmp_path / "r", np.abs(np.eye(2)[target] - 0.1), target, ["a", "b"]))
    )
    assert right.summary[-1] == "the net predicts the given label of each of 10 images"
    assert "too inaccurate" not in page.files["report.html"].decode()
