"""Checkpoints that would run code, and names that mean something to HTML, a shell, CSV or Hydra."""

import csv
import json
import os
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from conftest import SMALL, write_images
from faults.trainings import End, command, told

CLASSES = {"<b>x<b>&amp;": 8, 'it\'s "q", a=b,[c]': 8, "two\nlines 🐱 ${x}": 8}
FILE = "<script>alert(1)<&script>\n\"'🐶,{x}=1;$(touch y).jpg"


class Hostile:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.path}",)


def test_hostile_checkpoint(trained: Path, tree: Path, tmp_path: Path) -> None:
    """A checkpoint whose loading would run a command is given to train, evaluate, predict and export: all four refuse
    it, and the command is not run."""
    forged = tmp_path / "forged.ckpt"
    torch.save({**torch.load(trained, weights_only=True), "more": Hostile(tmp_path / "ran")}, forged)
    weights = [*SMALL, f"data.root={tree}"]
    for verb, *options in (
        ("train", *weights, f"resume={forged}"),
        ("train", *weights, f"model.weights={forged}"),
        ("evaluate", f"checkpoint={forged}"),
        ("predict", f"checkpoint={forged}", f"images={tree}/val"),
        ("export", f"checkpoint={forged}"),
    ):
        started = time.monotonic()
        done = command(verb, *options, folder=tmp_path)
        assert done.returncode == 2, (verb, done.stdout, done.stderr)
        ended = End(done.returncode, done.stdout, done.stderr, time.monotonic() - started)
        told(ended, "it contains posix.system, which could run code of its author, besides tensors and plain values")
        assert "weights_only" not in done.stderr, "no advice to load it unsafely"
    assert not (tmp_path / "ran").exists()


class Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.alerts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.add(tag)

    def handle_data(self, data: str) -> None:
        self.alerts += data.strip().startswith("alert(")  # a script's own text


@pytest.mark.slow
def test_names(tmp_path: Path) -> None:
    """Names with HTML, quotes, newlines, special characters of the shell and of Hydra, and emoji go through train,
    report, evaluate and predict: every output file contains them unchanged, and no page executes them."""
    folder = tmp_path / "tree"
    write_images(folder / "train", CLASSES)
    write_images(folder / "val", dict.fromkeys(CLASSES, 3), seed=1)
    for name in CLASSES:
        (folder / "val" / name / "000.jpg").rename(folder / "val" / name / FILE)
    small = [*SMALL, f"data.root={folder}", "trainer.max_epochs=1"]
    best = "checkpoint=r/checkpoints/best.ckpt"
    for verb, *options in (
        ("train", *small, "hydra.run.dir=r"),
        ("report", "r"),
        ("evaluate", best, "predictions=csv", "hydra.run.dir=e"),
        ("predict", best, f"images={folder}/val", "format=csv", "out=p.csv"),
        ("predict", best, f"images={folder}/val", "format=jsonl", "out=p.jsonl"),
    ):
        done = command(verb, *options, folder=tmp_path)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), (verb, done.stdout, done.stderr)
    names = set(CLASSES)
    assert set(torch.load(tmp_path / "r/checkpoints/best.ckpt", weights_only=True)["imagenet_ddp"]["classes"]) == names
    with (tmp_path / "e/predictions.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 9
    assert sum(any(cell.endswith(FILE) for cell in row.values()) for row in rows) == 3
    with (tmp_path / "p.csv").open(newline="", encoding="utf-8-sig") as file:
        predicted = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["path"] for row in predicted] == [line["path"] for line in lines]
    assert {row["class_1"] for row in predicted} <= names
    assert sum(row["path"].endswith(FILE) for row in predicted) == 3
    page = Tags()
    page.feed((tmp_path / "r/report.html").read_text(encoding="utf-8"))
    assert (page.alerts, "x<b" in "".join(page.found)) == (0, False)
    assert not (tmp_path / "y").exists()
