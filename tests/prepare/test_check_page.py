"""check.html: one file in plain words, and nothing in it of a stranger's names is code."""

import csv
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.browser import CHROMIUM, Browser
from helpers.made_photographs import photograph
from PIL import Image, ImageFilter

from imagenet_ddp.cli.other_command import REASON, leave_reason
from imagenet_ddp.curation.features import Features, write_features
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.prepare import check, check_page, relabel
from imagenet_ddp.prepare import options as prepare_options
from imagenet_ddp.sections.section import Checked, Finding, Section, Urgency

EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of 25 images, one of 2 with a stranger's name."""
    generator = np.random.default_rng(0)
    for name, number in (("Äpfel", 25), ("zebra", 25), (EVIL, 2)):
        folder = tmp_path / "photos" / name
        folder.mkdir(parents=True)
        for index in range(number):
            small = Image.fromarray(generator.integers(0, 256, (16, 20, 3), np.uint8))
            small.resize((160, 128), Image.Resampling.NEAREST).save(folder / f"{index:02}.jpg")
    return tmp_path / "photos"


def page_of(photos: Path, monkeypatch: pytest.MonkeyPatch, *typed: str, code: int | None = None) -> str:
    monkeypatch.chdir(photos.parent)
    words = ["prepare=check", "data=imagefolder", "data.root=photos", "out=checked", "prepare.num_workers=1", *typed]
    ended = check.run(prepare_options.read(words, os.environ))
    assert ended == code or code is None
    html = (photos.parent / "checked" / "check.html").read_text(encoding="utf-8")
    assert "`" not in words_of(html), "what a message marks as code is code on the page"
    return html


def words_of(html: str) -> str:
    body = html.partition("<body>")[2].partition("<script>")[0]
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", re.sub(r"</?code>", "", body))).split())


def test_what_is_good_and_what_to_mend_first(photos: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.copyfile(photos / "zebra" / "00.jpg", photos / "Äpfel" / "wrong.jpg")
    (photos / EVIL / "broken.jpg").write_bytes(b"<html>404</html>")
    with Image.open(photos / "zebra" / "01.jpg") as image:
        image.filter(ImageFilter.GaussianBlur(6)).save(photos / "zebra" / "soft.jpg")
    html = page_of(photos, monkeypatch)
    text = words_of(html)
    to_mend, _, good = text.partition("What to mend first")[2].partition("What is good")
    assert to_mend.index("in two classes, so that one label is wrong") < to_mend.index("1 of 55 images cannot be read")
    assert f"1 class has fewer than 20 images, too few to learn from and to judge by: {EVIL} (2)" in to_mend
    assert "1 image that cannot be read is not counted." in text
    assert "1 image is hard to recognise: blurry." in to_mend
    assert "No file is an exact copy" not in good
    with (photos.parent / "checked" / "quality.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = [*csv.DictReader(file)]
    poor = {Path(row["path"]).name: row["issues"] for row in rows if row["issues"]}
    assert poor == {"soft.jpg": "blurry"} and rows[0]["issues"], "first, because a person decides on it"
    assert not any("nan" in row.values() for row in rows)
    named = dict.fromkeys(re.findall(r'<li><a href="#(\w+)">', html.partition("What is good")[0]))
    assert [*named] == re.findall(r'<section id="(\w+)">', html)[: len(named)]
    assert set(re.findall(r'<li><a href="#(\w+)">', html)) <= set(re.findall(r'<section id="(\w+)">', html))
    assert re.findall(r"<tr><td>([^<]*)</td><td class=\"number\"", html)[1:] == ["Äpfel", "zebra"]  # Ä beside A
    assert (html.count("<script"), EVIL in html) == (1, False)
    assert not re.search(r"url\((?!data:)|@import|https?://", html), "one file, without a network"


def test_what_to_mend_first_is_shown_first(monkeypatch: pytest.MonkeyPatch):
    """The sections are in the order of the sentences that name them, whatever was found."""
    for urgencies in itertools.product([(), (0,), (1,), (3, 1), (2, 3)], repeat=3):
        made = [
            Section(name, name, findings=[Finding("", Urgency(each), name) for each in found])
            for name, found in zip("abc", urgencies, strict=True)
        ]
        monkeypatch.setattr(check_page, "SECTIONS", [lambda _, section=section: section for section in made])
        checked = Checked("", [], {})
        sections = check_page.make_sections(checked)
        faults = check_page.find_faults(checked, sections)
        assert [each.urgency for each in faults] == sorted((each.urgency for each in faults), reverse=True)
        named = [*dict.fromkeys(each.section for each in faults)]
        assert [each.name for each in sections][: len(named)] == named


@pytest.mark.parametrize("is_split", [False, True])
def test_an_image_outside_the_classes_is_named_and_can_get_one(
    is_split: bool, photos: Path, monkeypatch: pytest.MonkeyPatch
):
    """It lies beside the class folders of its split, into one of which it is moved."""
    shutil.rmtree(photos / EVIL)
    folder = photos
    if is_split:
        shutil.copytree(photos, photos / "train")
        folder = photos / "val"
        folder.mkdir()
        for name in ("Äpfel", "zebra"):
            (photos / name).rename(folder / name)
    Image.open(folder / "zebra" / "01.jpg").rotate(90).save(folder / "new 1.jpg")
    html = page_of(photos, monkeypatch)
    said = (
        "1 image lies outside the class folders and is not used: new 1.jpg; to use it, move it into the folder of its"
    )
    assert said in words_of(html)
    (part,) = re.findall(r'<section id="outside">.*?</section>', html, re.DOTALL)
    assert re.findall('<option value="([^"]*)"', part) == ["", "Äpfel", "zebra", "remove"]
    assert "Decisions: the name of a class or <b>remove</b>." in part
    lists = photos.parent / "checked"
    (row,) = rows_of(lists, "outside_classes.csv")
    assert row == {"path": str((folder / "new 1.jpg").relative_to(photos.parent)), "decision": ""}
    (lists / "outside_classes.csv").write_text(f"path,decision\n{row['path']},zebra\n", encoding="utf-8")
    options = ["prepare=relabel", "data=imagefolder", "data.root=photos", "decisions=checked/outside_classes.csv"]
    relabel.run(prepare_options.read(options, os.environ))
    assert (folder / "zebra" / "new 1.jpg").is_file() and not (folder / "new 1.jpg").exists()
    assert "outside the class folders" not in words_of(page_of(photos, monkeypatch))
    assert rows_of(lists, "outside_classes.csv") == []
    relabel.run(prepare_options.read([*options, "undo=true"], os.environ))
    assert (folder / "new 1.jpg").is_file() and not (folder / "zebra" / "new 1.jpg").exists()


def test_a_copy_outside_the_classes_is_to_be_removed(photos: Path, monkeypatch: pytest.MonkeyPatch):
    """It would be moved into a class that has it."""
    shutil.copyfile(photos / "zebra" / "01.jpg", photos / "again.jpg")
    Image.open(photos / "zebra" / "02.jpg").rotate(90).save(photos / "new.jpg")
    html = page_of(photos, monkeypatch)
    said = "2 images lie outside the class folders and are not used: new.jpg; to use it, move it into the folder of its"
    assert said + " class; 1 has the content of an image in a class folder, so remove it." in words_of(html)
    (part,) = re.findall(r'<section id="outside">.*?</section>', html, re.DOTALL)
    assert re.findall('<option value="([^"]*)" selected', part) == ["remove"] and "data-proposed" in part
    assert "the same file as photos/zebra/01.jpg" in re.sub("<[^>]*>", "", part)
    rows = rows_of(photos.parent / "checked", "outside_classes.csv")
    assert {row["path"]: row["decision"] for row in rows} == {"photos/again.jpg": "remove", "photos/new.jpg": ""}
    again = page_of(photos, monkeypatch)
    assert again.count("data-proposed") == html.count("data-proposed"), "nobody has decided it yet"


def test_the_page_and_the_list_keep_the_same_copy(photos: Path, monkeypatch: pytest.MonkeyPatch):
    """The one whose name does not say that it is a copy, then the shortest."""
    names = [("IMG_1114.jpg", "copy_2.jpg", "IMG_1114 (1).jpg"), ("DSC1 - a.jpg", "DSC1 - Copy.jpg", "DSC1_KOPIE2.jpg"),
             ("copyright.jpg", "Copy of it.jpg"), ("08.jpg", "08_1.jpg"), ("p1.jpg", "p2.jpg", "p11.jpg")]  # fmt: skip
    shutil.rmtree(photos / EVIL)
    for number, group in enumerate(names):
        for name in group:
            shutil.copyfile(photos / "zebra" / f"{number:02}.jpg", photos / "zebra" / name)
        (photos / "zebra" / f"{number:02}.jpg").unlink()
    html = page_of(photos, monkeypatch)
    rows = rows_of(photos.parent / "checked", "duplicates.csv")
    kept, removed = ([Path(row["path"]).name for row in rows if row["decision"] == word] for word in ("keep", "remove"))
    assert {*kept} == {group[0] for group in names} and len(kept) + len(removed) == len(rows)
    (part,) = re.findall(r'<section id="exact_copies">.*?</section>', html, re.DOTALL)
    shown = re.findall(r'<li title="([^"]*)">.*?" selected>(keep|remove)</option>', part, re.DOTALL)
    group_of = {row["path"]: row["group"] for row in rows}
    assert {(path, word) for path, word in shown} == {(row["path"], row["decision"]) for row in rows}
    pairs = [*zip(shown[::2], shown[1::2], strict=True)]
    assert [(one[1], other[1]) for one, other in pairs] == [("keep", "remove")] * len(removed)
    assert all(group_of[one[0]] == group_of[other[0]] for one, other in pairs)


def test_good_images(photos: Path, monkeypatch: pytest.MonkeyPatch):
    shutil.rmtree(photos / EVIL)
    text = words_of(page_of(photos, monkeypatch, code=0))
    to_mend, _, good = text.partition("What to mend first")[2].partition("What is good")
    assert to_mend.startswith(" Wrong labels, near-copies and the expected accuracy were not checked: no net has seen")
    assert to_mend.rstrip().endswith("experiment=own_photos.")
    assert "All 50 images can be read." in good and "Each of the 2 classes has 25 images." in good
    assert "No file is an exact copy of another." in good
    shutil.copyfile(photos / "zebra" / "01.jpg", photos / "again.jpg")
    assert "No file in a class folder is an exact copy of another." in words_of(page_of(photos, monkeypatch))


def pass_over_images(commands: list[list[str]], vectors_of: Callable[[list[str], np.ndarray], np.ndarray]) -> Any:
    """Return a stand-in for subprocess.run that writes features. vectors_of: (paths, targets) -> float (N, D)."""

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        plan = prepare_options.read(["prepare=check", *command[3:-1]], os.environ)
        source = open_source(plan.config.data, plan.config.seed, purpose=plan.config.purpose, found=plan.scan)
        assert source.train is not None and source.val is not None
        splits = (source.train, source.val)
        targets = np.concatenate([each.targets for each in splits])
        index = np.concatenate([np.arange(len(each)) for each in splits])
        paths = [each.path(number) for each in splits for number in range(len(each))]
        is_val = np.arange(len(targets)) >= len(source.train)
        vectors = np.random.default_rng(0).normal(size=(len(targets), 8)) + vectors_of(paths, targets)
        found = Features(vectors.astype(np.float32), targets, is_val, index, index.astype(np.uint64), paths,
                         source.classes, source.labels, [], "a net", "digest")  # fmt: skip
        write_features(Path(command[-1].removeprefix("out=")), found)
        return subprocess.CompletedProcess(command, 0)

    return run


def test_what_a_net_sees_of_the_images(photos: Path, monkeypatch: pytest.MonkeyPatch):
    """The pass gets the options of the data and the model; its features become the accuracy to expect and the map."""
    commands = list[list[str]]()
    run = pass_over_images(commands, lambda _, targets: 6 * np.eye(8)[targets])
    monkeypatch.setattr(subprocess, "run", run)
    html = page_of(photos, monkeypatch, "model.weights=DEFAULT")
    assert commands[0][2:-1] == [
        "imagenet_ddp.features",
        "data=imagefolder",
        "data.root=photos",
        "model.weights=DEFAULT",
    ]
    text = words_of(html)
    assert re.search(r"(About \d+ of \d+|Nearly all) new images like these will be recognised", text)
    assert "a logistic regression, learns the classes from them" in text
    options = "experiment=own_photos data=imagefolder data.root=photos model.weights=DEFAULT"
    line = rf"To train on these images: .*python -m imagenet_ddp\.train {options} hydra\.run\.dir=runs/mine "
    assert re.search(line, text)
    points = json.loads(unescape(re.search(r'data-points="([^"]*)"', html)[1]))  # type: ignore[index]
    assert len(points) == 52 and all(0 <= x <= 1000 and 0 <= y <= 1000 for x, y, _, _ in points)
    assert (html.count("<script"), EVIL in html) == (1, False)
    (photos / "empty").mkdir()
    html = page_of(photos, monkeypatch, "model.weights=DEFAULT")
    assert "First deal with number 1 of what to mend, above. Then, to train on these images: " in words_of(html)


def test_groups_that_are_typed_are_kept_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Where the images show the patient and not the class, a net is right about a patient it knows, and about no other.
    The line to train keeps the groups."""
    monkeypatch.chdir(tmp_path)
    rows = ["path,group\n"]
    for patient in range(8):
        for number in range(6):
            path = tmp_path / "photos" / ("ill" if patient % 2 else "healthy") / f"{patient}_{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            noise = np.random.default_rng([patient, number]).integers(0, 255, (64, 64, 3), np.uint8)
            Image.fromarray(noise).save(path)
            rows.append(f"{path.parent.name}/{path.name},{patient}\n")
    Path("patients.csv").write_text("".join(rows), encoding="utf-8")
    run = pass_over_images([], lambda paths, _: 9 * np.eye(8)[[int(Path(path).name[0]) for path in paths]])
    monkeypatch.setattr(subprocess, "run", run)
    shares = list[float]()
    for more in ([], ["data.groups=patients.csv"]):
        text = words_of(page_of(tmp_path / "photos", monkeypatch, "model.weights=DEFAULT", *more))
        said = re.search(
            r"Expected accuracy on new images like these: ([\d.]+) % \(.*\)\.(.*)", capsys.readouterr().out
        )
        assert said is not None and ("these are of 8 groups" in said[2]) == bool(more)
        shares.append(float(said[1]))
        assert ("data.groups=patients.csv hydra.run.dir=" in text) == bool(more)
    assert shares[0] > 95 > 60 > shares[1]


def rows_of(folder: Path, name: str) -> list[dict[str, str]]:
    with (folder / name).open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
def test_each_number_on_the_page_is_the_length_of_its_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """And no decision is lost that a person has written into the list of an earlier check."""
    root = tmp_path / "photos"
    for number in range(80):
        path = root / ("Élan", "wolf")[number % 2] / f"{number:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(number).save(path)
    for name, number, other in (("Élan", 0, "Élan"), ("Élan", 2, "wolf"), ("wolf", 1, "Élan"), ("wolf", 3, "wolf")):
        shutil.copyfile(root / name / f"{number:02}.jpg", root / other / f"{number:02}_again.jpg")
    for number in range(20, 32):
        image = photograph(number).transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        image.resize((200, 150)).save(root / ("Élan", "wolf")[(number + number // 28) % 2] / f"{number:02}_copy.jpg")
    for number in (40, 41, 42):
        photograph(number).filter(ImageFilter.GaussianBlur(8)).save(root / "wolf" / f"{number}_soft.jpg")
    (root / "wolf" / "broken.jpg").write_bytes(b"<html>404</html>")

    def run(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        plan = prepare_options.read(["prepare=check", *command[3:-1]], os.environ)
        source = open_source(plan.config.data, plan.config.seed, purpose=plan.config.purpose, found=plan.scan)
        assert source.train is not None and source.val is not None
        places = [(name, each, index) for name, each in (("train", source.train), ("val", source.val))
                  for index in range(len(each)) if not each.path(index).endswith("broken.jpg")]  # fmt: skip
        paths = [each.path(index) for _, each, index in places]
        shown = np.array([int(Path(path).name[:2]) for path in paths])
        vectors = np.concatenate([np.eye(2)[shown % 2], 0.5 * np.eye(80)[shown]], 1).astype(np.float32)
        found = Features(vectors, np.array([each.targets[index] for _, each, index in places]),
                         np.array([name == "val" for name, _, _ in places]),
                         np.array([index for _, _, index in places]), np.arange(len(paths)).astype(np.uint64), paths,
                         source.classes, source.labels, [], "a net", "digest")  # fmt: skip
        write_features(Path(command[-1].removeprefix("out=")), found)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(subprocess, "run", run)
    html = page_of(root, monkeypatch, "model.weights=DEFAULT")
    text, checked = words_of(html), tmp_path / "checked"

    def said(pattern: str) -> list[int]:
        found = re.findall(pattern, text)
        assert len(found) == 1, (pattern, found)
        return [int(each or 0) for each in ([found[0]] if isinstance(found[0], str) else found[0])]

    def pictures(section: str, kind: str) -> int:
        (part,) = re.findall(rf'<section id="{section}">.*?</section>', html, re.DOTALL)
        return len(re.findall(kind, part))

    bad, exact, near, wrong, poor = (
        rows_of(checked, name)
        for name in ("bad_images.csv", "duplicates.csv", "near_copies.csv", "wrong_labels.csv", "quality.csv")
    )
    total = len(bad) + len(poor)
    assert said(r"(\d+) of (\d+) images cannot be read") == [len(bad), total] and len(bad) == 1
    assert said(r"bad_images.csv lists (\d+) image") == [len(bad)]

    pairs = [*zip(exact[::2], exact[1::2], strict=True)]
    assert all(one["group"] == other["group"] for one, other in pairs)
    assert said(r"duplicates.csv lists (\d+) files") == [len(exact)] == [2 * len(pairs)]
    assert pictures("exact_copies", 'class="gallery small"') == len(pairs)
    in_two = [pair for pair in pairs if pair[0]["label"] != pair[1]["label"]]
    assert said(r"(\d+) images are in two classes, so that") == [len(in_two)]

    groups = [[row for row in near if row["group"] == number] for number in dict.fromkeys(row["group"] for row in near)]
    assert said(r"near_copies.csv lists (\d+) groups") == [len(groups)]
    assert pictures("near_copies", 'class="gallery small"') == len(groups) and len(groups) >= 10
    leaked = [row for group in groups if len({each["split"] for each in group}) == 2 for row in group]
    num_across = len({row["group"] for row in leaked})
    assert said(r"(\d+) (?:is|are) in training and in validation, so that") == [num_across]
    two = [group for group in groups if len({row["label"] for row in group}) == 2]
    assert said(r"; (\d+) (?:is|are) in two classes, so that one label is wrong") == [len(two)]
    rest = [group for group in groups if group not in two and len({row["split"] for row in group}) == 1]
    assert said(r"(\d+) photographs? (?:is|are) there in more than one form") == [len(groups)]

    assert said(r"Of (\d+) images, (\d+) looks? more like another class") == [len(poor), len(wrong)] and len(wrong) > 3
    assert said(r"wrong_labels.csv lists (\d+) photograph") == [len(wrong)] == [pictures("wrong_labels", "<li title")]

    issues = [{*filter(None, row["issues"].split(", "))} for row in poor]
    kinds = Counter(kind for each in issues for kind in each)
    headings = re.findall(r"<h3>(\d+) images?: ([^<]+)</h3>", html)
    assert {kind: int(number) for number, kind in headings} == kinds and kinds["blurry"] == 3
    blamed = sum(bool(each - {"without colours"}) for each in issues)
    assert said(r"(\d+) images? (?:is|are) hard to recognise") == [blamed]
    several = any(len(each - {"without colours"}) > 1 for each in issues)
    assert ("; some are more than one of these." in text) == several
    assert said(r"(\d+) images whose label may be wrong count as mistakes here") == [len(wrong)]
    of_classes = re.findall(r"<tr><td>(?:Élan|wolf)</td>.*?</tr>", html, re.DOTALL)
    numbers = [
        int(re.findall(r'data-value="(\d+)"', row)[at]) for row, at in zip(of_classes, (0, 0, 2, 2), strict=True)
    ]
    assert sum(numbers[:2]) == sum(numbers[2:]) == len(poor), "both tables count the images that can be read"
    assert text.count("into its column decision") == 1 and len(re.findall("Decisions: ", text)) == 5
    assert said(r"what was measured of all (\d+) images") == [len(poor)]
    *splits, whole = said(r"images · (\d+) for training, (\d+) for validation (\d+)")
    assert sum(splits) == whole == total

    # what was decided to keep is no longer to mend
    alone = next(pair for pair in pairs if {row["split"] for row in pair} == {"train"})
    like = next(group for group in rest if len(group) == 2)
    kept = {
        "wrong_labels.csv": wrong[:1],
        "duplicates.csv": [*alone],
        "near_copies.csv": like,
        "quality.csv": [next(row for row in poor if row["issues"] == "blurry")],
    }
    for name, rows in kept.items():
        listed = rows_of(checked, name)
        for row in listed:
            row["decision"] = "Keep" if any(row["path"] == each["path"] for each in rows) else ""
        with (checked / name).open("w", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, [*listed[0]])
            writer.writeheader()
            writer.writerows(listed)
    html = page_of(root, monkeypatch, "model.weights=DEFAULT")
    text = words_of(html)
    for name, rows in kept.items():
        decided = {row["path"] for row in rows_of(checked, name) if row["decision"] == "Keep"}
        assert decided == {row["path"] for row in rows}, name
    assert said(r"Of \d+ images, (\d+) looks? more like another class") == [len(wrong) - 1]
    assert pictures("wrong_labels", "<li title") == len(wrong) - 1
    assert "1 of them with a label that you have decided" in text
    assert pictures("exact_copies", 'class="gallery small"') == len(pairs) - 1
    assert pictures("near_copies", 'class="gallery small"') == len(groups) - 1
    assert said(r"(\d+) images? (?:is|are) hard to recognise") == [blamed - 1] and "2 images: blurry" in text


def test_without_a_net_the_page_says_what_to_type(photos: Path, monkeypatch: pytest.MonkeyPatch):
    line = "python -m imagenet_ddp.prepare prepare=check data=imagefolder data.root=photos out=checked"
    assert f"{line} prepare.num_workers=1 experiment=own_photos" in words_of(page_of(photos, monkeypatch))


@pytest.mark.parametrize("reason", ["no net. Hint: set `model.weights=FILE`.", ""])
def test_what_a_pass_that_fails_has_not_checked_is_no_fault_of_the_images(
    reason: str, photos: Path, monkeypatch: pytest.MonkeyPatch
):
    def run(command: list[str], *, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv(REASON, env[REASON])
        leave_reason(reason)
        return subprocess.CompletedProcess(command, 2)

    monkeypatch.setattr(subprocess, "run", run)
    text = words_of(page_of(photos, monkeypatch, "model.weights=DEFAULT", code=1))
    said = reason.replace("`", "") or "features ended with exit code 2; its message is above."
    missing = f"Wrong labels, near-copies and the expected accuracy were not checked: {said}"
    faults, _, rest = text.partition("What is good")
    assert missing in rest and "were not checked" not in faults and "Quality of the images" in text
    shutil.rmtree(photos / EVIL)
    of_good_ones = words_of(page_of(photos, monkeypatch, "model.weights=DEFAULT", code=1))
    assert "Nothing was found that has to be mended, but not everything was checked." in of_good_ones


def test_the_terminal_ends_with_the_list_of_the_page(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    shutil.copyfile(photos / "zebra" / "00.jpg", photos / "Äpfel" / "wrong.jpg")
    (photos / EVIL / "broken.jpg").write_bytes(b"<html>404</html>")
    html = page_of(photos, monkeypatch, code=1)
    box = html.partition("What to mend first")[2].partition("</ol>")[0]
    of_page = [words_of(f"<body>{each}") for each in re.findall(r"<li>(.*?)</li>", box)]
    *_, printed = capsys.readouterr().out.partition("What to mend first:\n")
    *lines, decide, last = printed.replace("`", "").splitlines()
    assert [line.partition(". ")[2] for line in lines] == of_page and len(of_page) > 3
    assert last.startswith("Open checked/check.html")
    assert decide.startswith("When you have decided on the page and put decisions.csv beside it: ")
    line = decide.rpartition(": ")[2]
    assert line.endswith("decisions=checked/decisions.csv") and f"takes it back. {line}" in words_of(html)


def test_the_check_again_has_the_net_of_the_check(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The line after the decisions are carried out repeats what the check of these images was typed with."""
    monkeypatch.setattr(check, "with_features", lambda checked, *_: checked)
    again, own = "or the check again, which ends with", "experiment=own_photos data=imagefolder data.root="
    net = ["model=timm", "model.name=tf_efficientnet_lite0", "model.weights=my nets/lite0.pth"]
    (photos.parent / "my nets").mkdir()
    (photos.parent / "my nets/lite0.pth").touch()

    def line(root: str) -> str:
        decisions = f"decisions={photos.parent}/checked/list.csv"
        words = ["prepare=relabel", "data=imagefolder", f"data.root={root}", decisions]
        relabel.run(prepare_options.read(words, os.environ))
        return capsys.readouterr().out.partition(again)[2].partition("`")[2].partition("`")[0]

    page_of(photos, monkeypatch)
    (photos.parent / "checked/list.csv").write_text("path,decision\nphotos/zebra/00.jpg,keep\n", encoding="utf-8")
    assert line("photos").endswith(f" prepare=check {own}photos out=checked"), "that check had no net"
    page_of(photos, monkeypatch, *net)
    typed = ["prepare=check", "data=imagefolder", "data.root=photos", "out=checked", "prepare.num_workers=1", *net]
    assert shlex.split(line("photos"))[-len(typed) :] == typed
    assert line("./photos").endswith(f" prepare=check {own}./photos out=checked"), "of other images, perhaps"
    with (photos.parent / "checked/check_options.txt").open("a", encoding="utf-8") as file:
        file.write(" model._target_=os.system")
    assert line("photos").endswith(f" prepare=check {own}photos out=checked"), "the folder may be from anyone"


def test_a_root_above_the_classes_is_mended_first(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    (photos.parent / "other").mkdir()
    shutil.copyfile(photos / "zebra" / "00.jpg", photos.parent / "other" / "1.jpg")
    (photos / EVIL / "broken.jpg").write_bytes(b"<html>404</html>")  # as urgent
    monkeypatch.chdir(photos.parent)
    words = ["prepare=check", "data=imagefolder", "data.root=.", "out=../checked", "prepare.num_workers=1"]
    assert check.run(prepare_options.read(words, os.environ)) == 1
    first = capsys.readouterr().out.partition("What to mend first:\n 1. ")[2].partition("\n")[0]
    assert first.startswith("The images of the class photos are in its 3 sub-folders. Hint: set data.root=photos if")
    *_, line = first.replace("`", "").removesuffix(".").partition("To check those: python -m imagenet_ddp.prepare ")
    assert line.split() == [*words[:2], "data.root=photos", *words[3:]]
    assert prepare_options.read(line.split(), os.environ).config.data.root == "photos"
    html = words_of((photos.parent / "../checked/check.html").read_text(encoding="utf-8"))
    assert html.index("The images of the class photos") < html.index("cannot be read")
    assert html.count("The images of the class photos") == 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_what_is_chosen_beside_the_pictures_is_done_and_remembered(photos: Path, monkeypatch: pytest.MonkeyPatch):
    """An image has one decision wherever it is shown, and what was kept is not listed by the next check."""
    odd, root = photos / "zebra" / '=1,"x".jpg', photos.parent
    Image.new("RGB", (50, 50), "red").save(odd)
    for name in ("Äpfel/twice.jpg", "zebra/twice.jpg"):
        shutil.copyfile(photos / "zebra/00.jpg", photos / name)
    (photos / EVIL / "broken.jpg").write_bytes(b"<html>404</html>")
    assert "1 image is hard to recognise: too small" in words_of(page_of(photos, monkeypatch))
    wanted = {
        str(odd.relative_to(root)): "keep",
        f"photos/{EVIL}/broken.jpg": "remove",
        "photos/Äpfel/twice.jpg": "remove",
    }
    with Browser(root / "profile") as browser:
        browser.open((root / "checked/check.html").as_uri())
        chosen = browser.evaluate(
            """(async () => {
            const wanted = %s, files = [];
            URL.createObjectURL = (file) => { files.push(file); return "#"; };
            for (const [path, value] of Object.entries(wanted)) {
                const choice = choices.find((each) => each.dataset.path === path);
                choice.value = value;
                choice.dispatchEvent(new Event("change", { bubbles: true }));
            }
            const same = choices.every(({ value, dataset: { path } }) => !(path in wanted) || value === wanted[path]);
            decisions.querySelector("button").click();
            return [same, decisions.textContent, await files[0].text()];
        })()""".replace("choices", "Array.from(document.querySelectorAll('select'))")
            % json.dumps(wanted)
        )
    is_same, bar, text = chosen
    assert is_same and bar.startswith("3 decided")
    (root / "checked/decisions.csv").write_text(text, encoding="utf-8")
    assert {
        row["path"]: row["decision"] for row in rows_of(root / "checked", "decisions.csv") if row["decision"]
    } == wanted
    relabel.run(prepare_options.read(["prepare=relabel", "data=imagefolder", "data.root=photos",
                                      "decisions=checked/decisions.csv"], os.environ))  # fmt: skip
    assert not any((root / path).exists() for path, word in wanted.items() if word == "remove")
    text = words_of(page_of(photos, monkeypatch))
    assert "All 54 images can be read." in text and "hard to recognise" not in text
    kept = {row["path"]: row["decision"] for row in rows_of(root / "checked", "quality.csv") if row["decision"]}
    assert kept == {str(odd.relative_to(root)): "keep"}


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_what_is_chosen_is_there_when_the_page_is_opened_again(photos: Path, monkeypatch: pytest.MonkeyPatch):
    """Each value of each choice, until a person clears them or the page is one of other images. A browser that keeps
    nothing warns before the page is closed."""
    for name in ("Äpfel/twice.jpg", "zebra/twice.jpg"):
        shutil.copyfile(photos / "zebra/00.jpg", photos / name)
    for name in ("odd.jpg", "grey.jpg"):
        Image.new("RGB", (50, 50), "grey").save(photos / "zebra" / name)
    page_of(photos, monkeypatch)
    page = photos.parent / "checked/check.html"
    values = "Array.from(document.querySelectorAll('select'), (each) => each.value)"
    marked = "Array.from(document.querySelectorAll('.proposed'), (each) => each.checkVisibility())"
    bar = "Array.from(decisions.children, (each) => each.hidden ? '' : each.textContent)"
    warns = "!dispatchEvent(new Event('beforeunload', { cancelable: true }))"
    choose = """for (const each of document.querySelectorAll("select")) {
        for (const value of ["remove", "keep"].slice(each.dataset.path.includes("twice"))) {
            each.value = value;
            each.dispatchEvent(new Event("change", { bubbles: true }));
        }
    }"""
    with Browser(photos.parent / "profile") as browser:
        browser.open(page.as_uri())
        proposed = browser.evaluate(values)
        assert browser.evaluate(marked) == [True] * 2 and browser.evaluate(bar)[0] == "2 proposed"
        browser.evaluate("""(() => {
            const other = Array.from(document.querySelectorAll("select")).find((each) => !each.value);
            other.value = "keep";
            other.dispatchEvent(new Event("change", { bubbles: true }));
        })()""")
        assert browser.evaluate(bar)[0] == "1 decided by you, 2 proposed; kept in this browser"
        browser.evaluate(choose)
        chosen, words = browser.evaluate(values), browser.evaluate(bar)
        assert chosen != proposed and words[0].endswith(" decided by you; kept in this browser") and words[2] == "Clear"
        assert not any(browser.evaluate(marked))
        browser.open(page.as_uri())
        assert (browser.evaluate(values), browser.evaluate(bar), browser.evaluate(warns)) == (chosen, words, False)
        page.with_name("other.html").write_text(page.read_text().replace("odd.jpg", "old.jpg"))
        browser.open(page.with_name("other.html").as_uri())
        assert browser.evaluate(values) == proposed
        browser.open(page.as_uri())
        browser.evaluate("confirm = () => true; decisions.children[2].click()")
        assert (browser.evaluate(values), browser.evaluate(bar)[2]) == (proposed, "") and all(browser.evaluate(marked))
        deny = "Object.defineProperty(window, 'localStorage', { get() { throw new Error(); } })"
        for storage in ("", deny):
            browser.call("Page.addScriptToEvaluateOnNewDocument", source=storage)
            browser.open(page.as_uri())
            found = browser.evaluate(values), browser.evaluate(bar)[2], browser.evaluate(warns)
            assert found == (proposed, "", False)
        browser.evaluate(choose)
        assert browser.evaluate(warns) and browser.evaluate(bar)[0].endswith("; lost when this page is closed")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_the_button_that_copies_a_line_is_in_its_box(photos: Path, monkeypatch: pytest.MonkeyPatch):
    (photos / EVIL / "broken.jpg").write_bytes(b"<html>404</html>")
    page_of(photos, monkeypatch)
    with Browser(photos.parent / "profile") as browser:
        browser.open((photos.parent / "checked/check.html").as_uri())
        below = """Array.from({ length: 60 }, (_, number) => {
            const line = document.querySelector("code.line");
            line.style.width = `${300 + 5 * number}px`;
            return line.getBoundingClientRect().bottom - line.querySelector("button").getBoundingClientRect().bottom;
        })"""
        assert min(browser.evaluate(below)) > 0


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")
def test_a_picture_is_shown_larger_by_its_file(photos: Path, monkeypatch: pytest.MonkeyPatch):
    """From a click on, with the arrows to the next; the small one and a reason where the file is gone."""
    first, second = photos / "zebra/=#?1 %41.jpg", photos / "zebra/zz.jpg"
    for number, path in enumerate((first, second), 1):
        Image.new("RGB", (1000 * number, 30), (90 * number, 0, 0)).save(path)
    page_of(photos, monkeypatch)
    seen = """(async (does, is_there) => {
        does();
        const large = document.querySelector("dialog"), [view, below] = large.children;
        while (!/×|not larger/.test(below.textContent) || !view.complete) {
            await new Promise((done) => setTimeout(done, 10));
        }
        const small = Array.from(document.querySelectorAll("button.frame img")).at(-1).src;
        return [large.open, is_there ? view.naturalWidth === is_there : view.src === small, below.textContent];
    })"""
    click = "() => document.querySelector('button.frame').click()"
    arrow = "() => document.querySelector('dialog').dispatchEvent(new KeyboardEvent('keydown', { key: 'Arrow%s' }))"
    left, right = arrow % "Left", arrow % "Right"
    with Browser(photos.parent / "profile") as browser:
        browser.open((photos.parent / "checked/check.html").as_uri())
        order = browser.evaluate("Array.from(document.querySelectorAll('li:has(> .frame)'), (each) => each.title)")
        sizes = {str(first.relative_to(photos.parent)): 1000, str(second.relative_to(photos.parent)): 2000}
        assert sorted(order) == sorted(sizes)
        (photos.parent / order[1]).unlink()
        words = f"{order[0]} · {sizes[order[0]]} × 30"
        assert browser.evaluate(f"{seen}({click}, {sizes[order[0]]})") == [True, True, words]
        is_open, is_small, why = browser.evaluate(f"{seen}({left}, 0)")  # the last one
        assert is_open and is_small and why.startswith(f"{order[1]}: not larger, because the file is not where it was")
        assert browser.evaluate(f"{seen}({right}, {sizes[order[0]]})") == [True, True, words]
        browser.evaluate("document.querySelector('dialog').click()")
        assert browser.evaluate("document.querySelector('dialog').open") is False
