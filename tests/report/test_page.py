"""The page: escaped, without a network, small, readable."""

import json
import re
import shlex
from dataclasses import replace
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_predictions import random_probabilities, write_evaluation
from helpers.fake_runs import make_run
from helpers.made_photographs import photograph

from imagenet_ddp.curation.features import Features, write_features
from imagenet_ddp.curation.near_copies import COLUMNS
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.prepare import relabel
from imagenet_ddp.report import pictures as pictures_module
from imagenet_ddp.report.facts import further_facts
from imagenet_ddp.report.page import build
from imagenet_ddp.report.pictures import Pictures
from imagenet_ddp.report.predictions import Predictions, read
from imagenet_ddp.report.run_folders import Run, read_run
from imagenet_ddp.runs import plots
from imagenet_ddp.system.table_files import csv_line, table_bytes

EVIL = "<img src=x onerror=alert(1)>\"'</script><script>alert(2)</script>"
CLASSES = [EVIL, "größe 数 🦉", "a & b", "{{ 7 * 7 }}"]


@pytest.fixture(autouse=True)
def _figures_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes most of the time of a page: test_browser.py looks at drawn ones."""
    monkeypatch.setattr(plots, "png", lambda *_, **__: b"PNG")


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


@pytest.mark.parametrize("num_classes", [6, 19, 20, 1000])
def test_the_figures_at_the_head_say_something(num_classes: int, tmp_path: Path):
    run = read_run(make_run(tmp_path / "r", top1=1.0, num_classes=num_classes, num_val_images=57))
    page = build("r", run, None)
    head = page.files["report.html"].decode().partition("<nav")[0]
    assert ("top-5" in head) == any("top-5" in line for line in page.summary) == (num_classes >= 20)
    assert "<dd>57 of 57</dd>" in head and "best top-1 57 of 57 (" in " ".join(page.summary)


@pytest.mark.parametrize("best_epoch", [0, 1, 5])
def test_training_that_did_not_help_is_said_to_have_lost_nothing(best_epoch: int, tmp_path: Path):
    page = build("r", read_run(make_run(tmp_path / "r", best_epoch=best_epoch)), None)
    sentence = "More training did not help: no epoch made the net better than it was before."
    assert (sentence in page.files["report.html"].decode()) == (sentence in " ".join(page.summary)) == (not best_epoch)


@pytest.mark.parametrize("num_wrong", [0, 1])
def test_the_table_of_classes_has_no_empty_column(num_wrong: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures(reason="none"))
    target = np.arange(40) % 4
    probabilities = np.eye(4)[target] * 0.9 + 0.025
    probabilities[:num_wrong] = probabilities[num_wrong]
    found = read(write_evaluation(tmp_path / "e", probabilities, target, list("abcd")))
    page = build("e", None, found, maps=False)
    assert ("Most confused with" in page.files["report.html"].decode()) == bool(num_wrong)
    assert ("40 of 40" in " ".join(page.summary)) == (not num_wrong)


@pytest.mark.parametrize(("num_wrong", "said"), [(1, "lists the 1 of 40 images whose"), (2, "lists the 2 of 40")])
def test_of_one_image_nothing_is_said_in_the_plural(
    num_wrong: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.arange(40) % 4
    probabilities = np.eye(4)[target] * 0.9 + 0.025
    probabilities[:num_wrong] = probabilities[3]
    page = build("e", None, read(write_evaluation(tmp_path / "e", probabilities, target, list("abcd"))), maps=False)
    text = page.files["report.html"].decode()
    assert re.search(r'<span class="name">.+?</span>', text)  # below each picture, where a phone has no pointer
    for plural in ("it has learned their labels", "Some are mistakes", "lists all"):
        assert (plural in text) == (num_wrong > 1), plural
    assert said in page.summary[-1] and ("most doubtful first" in page.summary[-1]) == (num_wrong > 1)


def near_copies_csv(*rows: tuple[object, str, str, str]) -> bytes:
    """Return the list of a check. rows: group, path, label, the most similar image."""
    found = [(group, path, label, "train", "0.900", "0.80", other) for group, path, label, other in rows]
    return table_bytes(COLUMNS, found)


def write_pass(folder: Path, paths: list[str]) -> None:
    """Write the features of a pass, equal for every eighth image."""
    folder.mkdir(parents=True, exist_ok=True)
    number = len(paths)
    vectors, places = np.eye(8, dtype=np.float32)[np.arange(number) % 8], np.arange(number)
    features = Features(vectors, np.zeros(number, int), places < 0, places, places.astype(np.uint64), paths, ["a", "b"],
                        ["a", "b"], [], "a net", "digest")  # fmt: skip
    write_features(folder / "features.npz", features)


@pytest.fixture
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Predictions:
    """The predictions for v/0.jpg to v/7.jpg, of which the last two are wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    probabilities = np.tile([0.9, 0.1], (8, 1))
    probabilities[6:] = probabilities[6:, ::-1]
    paths = [f"v/{row}.jpg" for row in range(8)]
    return read(write_evaluation(tmp_path / "e", probabilities, np.zeros(8, int), ["a", "b"], paths=paths))


def test_the_accuracy_without_near_copies_of_training_images(evaluated: Predictions, tmp_path: Path):
    """A copy counts only if another image of its group was not evaluated, whatever split the check had it in."""
    rows = [
        (1, "v/0.jpg", "a", "t/0.jpg"), (1, "t/0.jpg", "a", "v/0.jpg"), (2, "v/1.jpg", "a", "v/2.jpg"),
        (2, "v/2.jpg", "b", "v/1.jpg"), (3, f"{tmp_path}/v/3.jpg", "a", "t/1.jpg"), (3, "t/1.jpg", "a", "v/3.jpg"),
    ]  # fmt: skip
    Path("copies.csv").write_bytes(near_copies_csv(*rows))
    page = build("e", None, evaluated, maps=False, near_copies=Path("copies.csv"))
    html = page.files["report.html"].decode()
    sentence = "2 of 8 images are near-copies of training images: top-1 66.67 % without them (30 to 90 %), 75.00 % with"
    assert sentence in " ".join(page.summary) and sentence in html
    assert "3 photographs are there in more than one form: 2 are in training and in validation, so that" in html
    assert "; 1 is in two classes, so that one label is wrong." in html
    assert "lists 3 groups" in html and html.count('<ul class="gallery small">') == 3
    table = page.files["near_copies.csv"].decode().splitlines()
    assert [line.split(",")[3] for line in table[1:]] == ["val", "train", "val", "train", "val", "val"]
    Path("copies.csv").write_bytes(near_copies_csv((1, "x/0.jpg", "a", "x/1.jpg"), (1, "x/1.jpg", "a", "x/0.jpg")))
    with pytest.raises(ConfigError, match=r"copies\.csv must list some of the evaluated images"):
        build("e", None, evaluated, maps=False, near_copies=Path("copies.csv"))
    Path("copies.csv").write_text("group,path\n1,x/0.jpg\n", "utf-8")
    with pytest.raises(ConfigError, match=r"copies\.csv must be the list of a check, with the columns group, path"):
        build("e", None, evaluated, maps=False, near_copies=Path("copies.csv"))


def test_near_copies_are_found_by_the_last_pass_over_the_images(evaluated: Predictions, tmp_path: Path):
    """Its features tell them, unless a check has left its list there. An image that is gone is no copy."""
    paths = [f"v/{row}.jpg" for row in range(8)] + ["t/0.jpg", "t/1.jpg"]
    for row, path in enumerate(paths):
        Path(path).parent.mkdir(exist_ok=True)
        photograph(row % 8).resize((200, 150)).save(path)
    assert "near_copies.csv" not in build("e", None, evaluated, maps=False).files
    folder = Path("runs/features/photos_0")
    write_pass(folder, paths)
    found = build("e", None, evaluated, maps=False)
    assert "2 of 8 images are near-copies of training images" in " ".join(found.summary)
    pictures = re.findall(r'<li title="([^"]*)"><button class="frame"><img', found.files["report.html"].decode())
    assert pictures == [str(tmp_path / path) for path in ("v/0.jpg", "t/0.jpg", "v/1.jpg", "t/1.jpg")]
    pairs = [("v/0.jpg", "t/0.jpg"), ("t/0.jpg", "v/0.jpg"), ("v/1.jpg", "t/1.jpg"), ("t/1.jpg", "v/1.jpg")]
    rows = [(number // 2, path, "a", other) for number, (path, other) in enumerate(pairs)]
    for listed, gone in ((rows[:2], ()), (rows, ("t/0.jpg",))):
        (folder / "near_copies.csv").write_bytes(near_copies_csv(*listed))
        for path in gone:
            Path(path).unlink()
        said = build("e", None, evaluated, maps=False).summary
        assert "1 of 8 images is a near-copy of training images" in " ".join(said)
    Path("t/1.jpg").unlink()
    page = build("e", None, evaluated, maps=False)
    assert "No evaluated image is a near-copy of a training image." in page.summary
    assert 'id="near_copies"' not in page.files["report.html"].decode()
    (folder / "near_copies.csv").unlink()
    for path in paths:  # as those of a pack, which are no files
        Path(path).unlink(missing_ok=True)
    assert "near-cop" not in " ".join(build("e", None, evaluated, maps=False).summary)


NET = {"model.library": "torchvision", "model.name": "resnet18", "model.weights": "DEFAULT", "data.image_size": 96}
CHECKED = "70.0 % (65 to 74 %): a check, on all 400 images, each predicted by a regression that had not learned it"
OWN = "66.7 % (49 to 81 %): this net, on 30 validation images"
BEFORE = ", on what the net gave before its training"


@pytest.mark.parametrize(
    ("summary", "check", "said"),
    [({}, {}, [f"{OWN}, by which its best epoch was chosen: on new ones, it may be a little lower.",
               f"{CHECKED}{BEFORE}."]),
     ({"best_epoch": 0, "start": "regression"}, {}, [f"{CHECKED}.", f"{OWN}."]),
     ({"best_epoch": 0, "start": "regression", "expected": {"top1": 0.75, "num_images": 500}}, {},
      ["75.0 % (71 to 79 %): this training, on its 500 training images, each predicted by a regression that had not",
       f"{CHECKED}.", f"{OWN}."]),
     ({"best_epoch": 0, "start": "regression"}, {"net": {**NET, "data.image_size": 64}},
      [f"{OWN}.", f"{CHECKED}, at 64 pixels, whereas this net was evaluated at 96."]),
     ({"best_epoch": 0, "start": "regression"}, {"net": None}, [f"{OWN}.", f"{CHECKED}, of another net."]),
     ({}, {"top1": 0.95}, ["66.7 %", "95.0 %", "This net is right less often than before its training: train it lo"]),
     ({}, {"top1": 0.3}, ["66.7 %", "30.0 %", "This net is right more often than before its training."]),
     ({"best_epoch": 0, "start": "regression"}, {"top1": 0.95}, ["95.0 %", "66.7 %", "The validation images are har"]),
     ({}, {"top1": 0.95, "net": {**NET, "data.image_size": 64}}, ["66.7 %", "95.0 %"]),
     ({"best_epoch": 0, "start": "regression"}, {"top1": 1.0, "num_images": 5},
      [f"{OWN}.", "5 of 5 (57 to 100 %): a check, on all 5 images, each"]),
     ({"best_epoch": 0, "start": "regression"}, {"data.groups": "patients.csv"},
      [f"{OWN}.", f"{CHECKED}, with images of one group (data.groups) on both sides."]),
     ({"best_epoch": 0, "start": "regression"}, {"data.groups": "checked/g.csv"}, [f"{CHECKED}.", f"{OWN}."]),
     ({}, {"top1": "0.9"}, [])],
)  # fmt: skip
def test_the_accuracies_to_expect_are_in_one_order(
    summary: dict[str, Any], check: dict[str, Any], said: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """On the page and the terminal: that of a regression is that of the net if nothing else was trained. What differs
    in the net or the size of the images is said, and then no difference is explained."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.repeat([0, 1], 15)
    is_first = (target == 0) == (np.arange(30) % 3 > 0)  # 20 of 30 are right
    probabilities = np.where(is_first[:, None], [0.9, 0.1], [0.1, 0.9])
    paths = [f"v/{row}.jpg" for row in range(30)]
    found = read(write_evaluation(tmp_path / "e", probabilities, target, ["a", "b"], paths=paths))
    options = {"data.name": "imagefolder", "data.root": "photos", **NET, "data.groups": check.get("data.groups")}
    epochs = {"trainer.max_epochs": 0} if summary else {}
    run = read_run(make_run(tmp_path / "run", options | epochs, **summary))
    assert run is not None

    def built() -> tuple[list[str], str]:
        page = build("run", run, found, maps=False)
        return page.summary, unescape(page.files["report.html"].decode())

    judges = "A check judges the labels of the training images, too, and by all"
    assert judges in built()[0][-1]
    listed, other = (Path("runs/features") / name for name in ("check_0", "another_1"))
    for folder in (listed, other):  # a later pass by another net changes nothing
        write_pass(folder, paths)
        if folder == listed:
            known = {"top1": 0.7, "num_images": 400, "net": NET, "folder": str(tmp_path / "checked"),
                     "groups": [str(tmp_path / "checked/g.csv")], **check}  # fmt: skip
            (folder / "check.json").write_text(json.dumps(known))
    lines, html = built()
    if not said:
        assert not [line for line in lines if line.startswith("What accuracy to expect")]
        return
    assert judges not in " ".join(lines)
    assert "So few say little about a class: take more photographs; a check judges" in html
    place = next(number for number, line in enumerate(lines) if line.startswith("What accuracy to expect"))
    for number, (line, words) in enumerate(zip(lines[place + 1 :], said, strict=False), 1):
        text = line.removeprefix(f"{number}. ")
        assert text.startswith(words) and f">{text}</" in html
    assert not lines[place + 1 + len(said)].startswith(("The two", "This net", "4. "))
    write_pass(listed, paths)
    assert "a check, on" not in " ".join(built()[0]), "the images were passed again"


def test_a_group_that_is_to_stay_is_not_counted_again(evaluated: Predictions, tmp_path: Path):
    """Whether a person has decided it on the page of the check or in its list, and wherever the check was written."""
    for name in ("v/0.jpg", "v/1.jpg", "v/2.jpg", "v/3.jpg"):
        Path(name).parent.mkdir(exist_ok=True)
        photograph(0).save(name)
    rows = [(1 + number // 2, f"v/{number}.jpg", "a", f"v/{number ^ 1}.jpg") for number in range(4)]
    folder, checked = Path("runs/features/photos_0"), tmp_path / "elsewhere/checked"
    write_pass(folder, [f"v/{row}.jpg" for row in range(8)])
    (folder / "near_copies.csv").write_bytes(near_copies_csv(*rows))
    (folder / "check.json").write_text(json.dumps({"folder": str(checked)}))
    checked.mkdir(parents=True)
    (checked / "near_copies.csv").write_bytes(near_copies_csv(*rows))
    assert "2 photographs are there in more than one form" in " ".join(build("e", None, evaluated, maps=False).summary)
    kept = [csv_line([path, "a", "near_copies.csv 1", "near_copies.csv", "keep"]) for _, path, *_ in rows[:2]]
    text = "\n".join(["path,label,group,list,decision", *kept])
    (checked / "decisions.csv").write_text(f"{text}\n", "utf-8")
    for file in (None, checked / "near_copies.csv"):
        page = build("e", None, evaluated, maps=False, near_copies=file)
        assert "1 photograph is there in more than one form" in " ".join(page.summary)
        assert "lists 2 groups, 1 of which you have decided to keep" in page.files["report.html"].decode()


@pytest.mark.parametrize("epochs", [0, 5])
def test_the_optimizer_is_a_fact_of_a_run_that_trains_by_steps(epochs: int):
    options = {"trainer.max_epochs": epochs, "optim.name": "adamw", "optim.lr": 0.1, "optim.reference_batch": 16}
    shown = dict(further_facts(Run(Path(), "finished", options, {}), None)).get("Optimizer")
    assert shown == ("adamw, lr 0.1 per 16 images" if epochs else None)


def test_images_unlike_the_training_images_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.arange(10) % 2
    paths = [f"v/{row}.jpg" for row in range(10)]
    found = read(write_evaluation(tmp_path / "e", np.eye(2)[target] * 0.8 + 0.1, target, ["a", "b"], paths=paths))
    html = build("e", None, replace(found, is_known=np.arange(10) != 3), maps=False).files["report.html"].decode()
    assert re.search(r'<a href="#unlike">1 of 10 images is unlike the training images', html)
    part = html.partition('id="unlike"')[2].partition("</section>")[0]
    assert re.findall(r'<li title="([^"]*)"', part) == ["v/3.jpg"]
    assert 'id="unlike"' not in build("e", None, found, maps=False).files["report.html"].decode()


@pytest.mark.parametrize(("num_images", "is_told"), [(30, False), (3000, True)])
def test_a_calibration_error_that_chance_would_make_is_no_figure(
    num_images: int, is_told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Of 90 %, 95 of 100 are right; what a temperature leaves as printed is not said."""
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.zeros(num_images, int)
    probabilities = np.where(np.arange(num_images)[:, None] % 20 > 0, [0.9, 0.1], [0.1, 0.9])
    fitted = {"temperature": 0.9, "ece_at_temperature": 0.01, "nll": 0.13271, "nll_at_temperature": 0.13269}
    folder = write_evaluation(tmp_path / "e", probabilities, target, ["a", "b"], calibration=fitted)
    html = build("e", None, read(folder), maps=False).files["report.html"].decode()
    section = html.partition('<section id="calibration">')[2].partition("</section>")[0]
    assert ("chance alone would make as large a difference" in section) == (not is_told)
    assert ("<dd>5.0 %</dd>" in section) == ("<dd>0.90</dd>" in section) == ("<dd>1.0 %</dd>" in section) == is_told
    assert "mean loss changes" not in section


def test_what_a_message_marks_is_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And nothing else of it: a name in it stays text."""
    pictures = Pictures(reason="no <b>: run `rm <i>`, then report", reason_maps="set `maps=false`")
    html = page_of(tmp_path, monkeypatch, pictures, 8, CLASSES).files["report.html"].decode()
    assert "No images are shown: no &lt;b&gt;: run <code>rm &lt;i&gt;</code>, then report" in html
    assert "There are no maps: set <code>maps=false</code>" in html
    assert "`" not in html.partition("<body>")[2].partition("<script>")[0]


def test_the_matrix_is_in_alphabetical_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """With the numbers of its classes, whose own order is that of text."""
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.array([0] * 5 + [1] * 7 + [2] * 9)
    folder = write_evaluation(tmp_path / "e", np.eye(3)[target] * 0.8 + 0.1, target, ["Wolf", "eel", "Élan"])
    html = build("e", None, read(folder)).files["report.html"].decode()
    cells = re.findall(r'class="(?:right|wrong)".*?<title>(.*?)</title>', html)
    assert cells == ["eel → eel: 7 (100.0 %)", "Élan → Élan: 9 (100.0 %)", "Wolf → Wolf: 5 (100.0 %)"]
    assert "The net predicts the label of each of 21 images." in html
    assert "the least probable" not in html and "#maps" not in html, "of no mistakes"


@pytest.mark.parametrize(
    ("num_wolves", "worst", "pair"),
    [(8, "wolf is recognised worst: 50 % of 8 images (22 to 78 %).", "wolf is most often taken for bee: 4 images."),
     (4, "ant and 2 others are recognised worst: 50 % of 4 images each (15 to 85 %).",
      "ant is most often taken for wolf: 2 images, as often as 2 other pairs.")],
)  # fmt: skip
def test_what_is_as_bad_as_the_worst_is_said(
    num_wolves: int, worst: str, pair: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """The worst class of the first sentences is that of the first row: of equal accuracies, that of most images."""
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    numbers = (4, num_wolves, 4, 4)
    target = np.repeat(np.arange(4), numbers)
    is_wrong = np.concatenate([np.arange(number) < number / 2 for number in numbers]) & (target < 3)
    taken = np.where(is_wrong, np.array([1, 3, 1, 3])[target], target)
    probabilities = np.where(np.eye(4)[taken] == 1, 0.7, 0.1)
    folder = write_evaluation(tmp_path / "e", probabilities, target, ["eel", "wolf", "ant", "bee"])
    html = build("e", None, read(folder), maps=False).files["report.html"].decode()
    rows = re.findall(r"<tr><td>(\w+)</td><td class", html)
    assert worst in html and pair in html and rows[0] == worst.partition(" ")[0] and rows[3] == "bee"


def test_every_section_is_there_and_linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    page = page_of(tmp_path, monkeypatch, Pictures(reason_maps="no such layer"), 80, CLASSES)
    html = page.files["report.html"].decode()
    sections = re.findall(r'<section id="(\w+)">', html)
    assert sections == ["classes", "confusion", "mistakes", "calibration", "maps", "curves", "facts"]
    assert re.findall(r'<li><a href="#(\w+)">', html.partition("<nav")[2]) == sections
    assert "There are no maps: no such layer" in html
    assert "1 image could not be read." in html
    assert page.summary[1] == "best top-1 80.00 % (epoch 5)"


@pytest.mark.parametrize(
    ("probability", "num_right", "said"), [(0.6, 10, "less sure"), (0.99, 6, "more sure"), (0.9, 9, "")]
)
def test_a_net_that_is_much_less_or_more_sure_than_right_is_named(
    probability: float, num_right: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.arange(10) % 2
    predicted = np.where(np.arange(10) < num_right, target, 1 - target)
    probabilities = np.where(np.eye(2)[predicted] > 0, probability, 1 - probability)
    page = build("e", None, read(write_evaluation(tmp_path / "e", probabilities, target, ["a", "b"])))
    sentence = f"The net is {said} than it should be: the mean probability of its predictions is {probability:.0%}"
    html = page.files["report.html"].decode()
    assert (sentence.replace("%", " %") in html) == bool(said) and ("than it should be" in html) == bool(said)


def test_predictions_of_a_diverged_net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.arange(6) % 2
    folder = write_evaluation(tmp_path / "e", np.full((6, 2), np.nan), target, ["a", "b"], calibration={"ece": None})
    page = build("e", None, read(folder))
    assert page.summary == [
        "resnet18 on nowhere",
        "top-1 50.00 % (19 to 81 %, 6 images)",
        "The net is too inaccurate (top-1 50.00 %) to judge labels.",
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
    assert right.summary[-1] == "The net predicts the label of each of 10 images."
    assert "too inaccurate" not in page.files["report.html"].decode()


def test_a_list_is_decided_in_as_that_of_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The line that the report names carries it out, and another report keeps what was decided."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.arange(10) % 2
    paths = [f"my pets/{'ab'[label]}/{row}.jpg" for row, label in enumerate(target)]
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    probabilities = np.where(np.eye(2)[target] == 1, 0.9, 0.1)
    probabilities[:2] = probabilities[:2, ::-1]
    folder = write_evaluation(tmp_path / "e", probabilities, target, ["a", "b"], paths=paths)
    data = {"name": "imagefolder", "root": "my pets", "train_dir": ".", "val_fraction": 0.2}
    (folder / "config.yaml").write_text(json.dumps({"data": data}), encoding="utf-8")
    file = Path("e/likely_wrong_labels.csv")
    for decided in ("", "move"):
        page = build("e", None, read(folder), out=Path("e"), maps=False)
        content = page.files[file.name].decode("utf-8-sig")
        header, *rows = content.splitlines()
        assert header == "path,label,suggested,score,confident,decision"
        assert sorted(rows) == [f"{paths[0]},a,b,0.100000,yes,{decided}", f"{paths[1]},b,a,0.100000,yes,"]
        if not decided:
            file.write_text(content.replace(f"{rows[0]}\n", f"{rows[0]}move\n"), encoding="utf-8")
        (line,) = [text for text in page.summary if "prepare=relabel" in text]
        html = unescape(page.files["report.html"].decode())
        assert line.partition("`")[2].rstrip("`") in html and "decisions=e/decisions.csv" in html
        choices = html.partition(f'data-row="{csv_line([paths[0], "a", "", file.name])}"')[2].partition("</select>")[0]
        assert re.findall(r'value="(\w*)"( selected)?', choices) == [
            ("", ""), ("keep", ""), ("b", " selected" if decided else ""), ("remove", "")
        ]  # fmt: skip
    _, words = line.rstrip("`").split(" -m imagenet_ddp.prepare ")
    assert relabel.run(prepare_options.read(shlex.split(words), {})) == 0
    assert Path("my pets/b/0.jpg").exists() and not Path(paths[0]).exists()


def test_a_label_that_a_person_has_decided_is_not_doubted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Kept in the list or on the page of a check, kept in the report of another run, or given by prepare=relabel; not
    one that was kept as another class, or for its quality."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.arange(14) % 2
    paths = [f"pets/{'ab'[label]}/{row}.jpg" for row, label in enumerate(target)]
    for path in [*paths, "pets/b/6.jpg"]:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).touch()
    Path(paths[6]).unlink()
    texts = {
        "checked/wrong_labels.csv": f"path,label,suggested,decision\n{paths[0]},a,b,keep\n{paths[4]},b,a,keep\n",
        "checked/quality.csv": f"path,label,decision\n{paths[1]},b,keep\n",
        "runs/x/now/decisions.csv": "path,label,list,decision\n"
        f"{paths[3]},b,likely_wrong_labels.csv,keep\n{tmp_path / paths[2]},a,wrong_labels.csv,a\n",
        "given/list.csv": "path,label,decision\npets/b/6.jpg,b,a\n",
    }
    for name, text in texts.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    data = ["data=imagefolder", "data.root=pets"]
    relabel.run(prepare_options.read(["prepare=relabel", *data, "decisions=given/list.csv"], {}))
    probabilities = np.where(np.eye(2)[target] == 1, 0.9, 0.1)
    wrong = [0, 1, 2, 3, 6]
    probabilities[wrong] = probabilities[wrong, ::-1]
    folder = write_evaluation(tmp_path / "e", probabilities, target, ["a", "b"], paths=paths)
    (folder / "config.yaml").write_text(json.dumps({"data": {"name": "imagefolder", "root": "pets"}}))
    page = build("e", None, read(folder), out=Path("e"), maps=False)
    rows = [line.split(",") for line in page.files["likely_wrong_labels.csv"].decode("utf-8-sig").splitlines()[1:]]
    assert [(path, word) for path, *_, word in rows] == [
        (paths[1], ""),
        *((paths[row], "keep") for row in (0, 2, 3, 6)),
    ]
    html = Reader(page.files["report.html"].decode())
    said = "5 images are predicted as another class than the label says. Of 4, you have decided that the label is "
    assert said + "right: look for wrong labels among the others." in html.text
    assert "Of 4, which come last, you have decided that the label is right." in " ".join(page.summary)
    Path("e/decisions.csv").write_text(
        f"path,label,list,decision\n{paths[1]},b,likely_wrong_labels.csv,keep\n", "utf-8"
    )
    every = build("e", None, read(folder), out=Path("e"), maps=False)
    assert any("You have decided that their labels are right: they are mistakes" in text for text in every.summary)


def test_a_training_that_was_interrupted_is_told_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target = np.arange(10) % 2
    found = read(write_evaluation(tmp_path / "e", np.eye(2)[target] * 0.8 + 0.1, target, ["a", "b"]))
    run = read_run(make_run(tmp_path / "run", epochs=2, finished=False))
    first = build("run", run, found).files["report.html"].decode().partition("<li>")[2].partition("</li>")[0]
    assert "The training has not ended: this page shows what it had reached after 2 of 5 epochs." in first
    assert f"resume={tmp_path / 'run'}</code>" in first


def test_what_the_validation_images_do_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The labels of the training images, the accuracy after an epoch was chosen by them, and a best temperature."""
    monkeypatch.setattr(pictures_module, "read_pictures", lambda *_: Pictures())
    target, fitted = np.arange(10) % 2, {"temperature": None, "ece_at_temperature": None, "nll": 0.1}
    folder = write_evaluation(tmp_path / "e", np.abs(np.eye(2)[target] - 0.1), target, ["a", "b"], calibration=fitted)
    options = {"data.name": "imagefolder", "data.root": "photos", "model.name": "vgg11", "model.weights": "w.pth"}
    run = read_run(make_run(tmp_path / "run", options))
    page = build("run", run, read(folder))
    html = unescape(re.sub("</?code>", "", page.files["report.html"].decode()))
    line = "experiment=own_photos data.root=photos model.name=vgg11 model.weights=w.pth out=checked"
    assert "The net predicts the label of each of 10 validation images. A check judges the labels of" in html
    assert line in html and line in page.summary[-1]
    assert "The best epoch was chosen by these images" in html
    assert "chance alone would make" in html and "best temperature" not in html
