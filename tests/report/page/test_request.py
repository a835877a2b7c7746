"""A real run: trained, evaluated by the report itself, and its page; the page of two folds."""

import csv
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import SMALL, clean_environ
from helpers import forked_commands
from helpers.fake_predictions import random_probabilities, write_evaluation
from helpers.fake_runs import make_run


def start(folder: Path, verb: str, *options: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environ()
    return forked_commands.run(f"imagenet_ddp.{verb}", *options, folder=folder, environment=environment, timeout_s=500)


@pytest.fixture(scope="module")
def reported(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The folder of a run named 'a run', and what report said."""
    folder = tmp_path_factory.mktemp("made")
    trained = start(folder, "train", *SMALL, f"data.root={tree}", "hydra.run.dir='a run'", "trainer.max_epochs=1")
    assert trained.returncode == 0, trained.stderr
    return folder / "a run", start(folder, "report", "a run")


@pytest.mark.slow
def test_a_page_of_a_run(reported: tuple[Path, subprocess.CompletedProcess[str]]):
    run, done = reported
    assert done.returncode == 0, done.stderr
    assert "Evaluating" in done.stderr, "by a command of its own, beside the report's own words"
    assert done.stderr.count("Written to a run/evaluation/evaluation.json\n") == 1
    assert ".evaluation" not in done.stderr and not (run / ".evaluation").exists()
    assert "\nWritten to a run: report.html, likely_wrong_labels.csv\n" in done.stdout
    html = (run / "report.html").read_text()
    sections = re.findall(r'<section id="(\w+)">', html)
    assert sections == [
        "curves", "classes", "confusion", "mistakes", "labels", "calibration", "conditions", "time", "maps"
    ]  # fmt: skip
    rows = list(csv.DictReader((run / "evaluation/predictions.csv").read_text().splitlines()))
    wrong = sum(row["prediction"] != row["label"] for row in rows)
    assert len(rows) == 11
    lists = re.findall(r'<ul class="gallery" id="([\w-]+)">(.*?)</ul>', html, re.DOTALL)
    gallery = {name: text.count('<img src="data:image/jpeg;base64,') for name, text in lists}
    assert gallery["doubtful-images"] == 11
    assert gallery.get("worst-images", 0) == gallery.get("map-images", 0) == wrong > 0
    listed = list(csv.DictReader((run / "likely_wrong_labels.csv").read_text().splitlines()))
    assert gallery.get("suspect-images", 0) == len(listed) <= wrong


@pytest.mark.slow
def test_it_is_evaluated_once_and_again_after_training(reported: tuple[Path, subprocess.CompletedProcess[str]]):
    run, _ = reported
    again = start(run.parent, "report", "a run", "maps=false")
    assert again.returncode == 0 and again.stderr == ""
    assert 'id="maps"' not in (run / "report.html").read_text()
    alone = start(run.parent, "report", "a run/evaluation", "out=alone", "maps=false")
    assert alone.returncode == 0, alone.stderr
    assert re.match(r"mobilenet_v2 on imagefolder \S+\ntop-1 ", alone.stdout)
    assert "images that best.ckpt was evaluated on" in (run.parent / "alone/report.html").read_text()
    table = start(run.parent, "report", ".", "format=csv")
    assert "evaluation" not in table.stdout, "which is no run of its own"
    best = run / "checkpoints/best.ckpt"
    later = (run / "evaluation/evaluation.json").stat().st_mtime + 5
    os.utime(best, (later, later))
    best.write_bytes(best.read_bytes()[:1000])  # what evaluate cannot read
    os.utime(best, (later, later))
    broken = start(run.parent, "report", "a run", "maps=false")
    assert "The best checkpoint could not be evaluated (evaluate ended with exit code 2)." in broken.stdout
    assert (run / "evaluation/predictions.csv").exists(), "what was there stays until there is something newer"


def folds(folder: Path, tree: Path) -> Path:
    """Two runs that held out a fold each, of the images of tree."""
    classes = ["cat", "dog", "owl"]
    for fold in range(2):
        root = folder / f"data{fold}"
        for name in classes:
            files = sorted((tree / "train" / name).iterdir())[fold::2]
            (root / "val" / name).mkdir(parents=True)
            for file in files:
                shutil.copy(file, root / "val" / name)
        paths = [str(path) for name in classes for path in sorted((root / "val" / name).iterdir())]
        target = [classes.index(Path(path).parent.name) for path in paths]
        run = make_run(folder / f"sweep/{fold}", {"data.val_fold": fold, "data.val_fraction": 0.5})
        config = yaml.safe_load((run / "config.yaml").read_text())
        data = {
            **config["data"], "name": "imagefolder", "_target_": None, "root": str(root), "train_dir": "train",
            "val_dir": "val", "val_fraction": None, "val_fold": 0, "decoder": "auto", "exif_orientation": False,
        }  # fmt: skip
        probabilities = random_probabilities(np.array(target), 3, seed=fold, strength=0.3)
        write_evaluation(run / "evaluation", probabilities, np.array(target), classes, paths=paths, data=data)
    return folder / "sweep"


def test_one_page_of_all_folds(tree: Path, tmp_path: Path):
    sweep = folds(tmp_path, tree)
    done = start(tmp_path, "report", "sweep", "by=fold", "maps=false")
    assert done.returncode == 0, done.stderr
    assert "· 29 images" in (html := (sweep / "report.html").read_text())
    assert "that 2 runs held out, each with the prediction of the run that did not train on it" in html
    assert html.count('src="data:image/jpeg') >= 29
    listed = list(csv.DictReader((sweep / "likely_wrong_labels.csv").read_text().splitlines()))
    assert {Path(row["path"]).parents[2].name for row in listed} == {"data0", "data1"}
    first = json.loads((sweep / "0/evaluation/evaluation.json").read_text())
    assert first["num_val_images"] + len(list((tmp_path / "data1").rglob("*.jpg"))) == 29
    assert "<dt>Images</dt><dd>29 validation images of 3 classes</dd>" in html
    assert "are missing" not in html
    twice = start(tmp_path, "report", "sweep", "by=fold", "sweep/0", "maps=false")
    assert twice.returncode == 0, "the same run, named twice"
    make_run(sweep / "2", {"data.val_fold": 1})
    assert "both have data.val_fold=1" in start(tmp_path, "report", "sweep", "by=fold").stderr.replace("\n    ", " ")
    none = start(tmp_path, "report", "sweep/0", "by=fold")
    assert none.returncode == 2 and "runs that differ in data.val_fold, got 1." in none.stderr.replace("\n    ", " ")


def test_folds_without_a_run_are_named(tmp_path: Path):
    runs = [make_run(tmp_path / str(fold), {"data.val_fold": fold, "data.val_fraction": 0.2}) for fold in (0, 3)]
    for run in runs:
        write_evaluation(run / "evaluation", np.array([[0.9, 0.1]]), np.array([0]), ["a", "b"], paths=[run.name])
    done = start(tmp_path, "report", ".", "by=fold", "maps=false")
    assert done.returncode == 0, done.stderr
    assert "No finished run held out these folds: 1, 2, 4 (data.val_fold). Their images are missing" in done.stdout
