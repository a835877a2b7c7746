"""Predictions as evaluate writes them."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_predictions import random_probabilities, write_evaluation
from helpers.forked_commands import start_code

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.predictions import of_run, read
from imagenet_ddp.report.run_folders import Run

CLASSES = ["a,b", 'c"d', "é", "x\ny", "e", "f"]
TARGET = np.arange(12) % 6


def test_reading(tmp_path: Path):
    probabilities = random_probabilities(TARGET, 6)
    found = read(write_evaluation(tmp_path / "e", probabilities, TARGET, CLASSES, unreadable=["bad.jpg"]))
    assert found.classes == CLASSES
    assert found.target.tolist() == TARGET.tolist()
    assert found.prediction.tolist() == probabilities.argmax(axis=1).tolist()
    np.testing.assert_allclose(found.confidence, probabilities.max(axis=1), rtol=1e-5)
    assert found.top.shape == found.top_probability.shape == (12, 5)
    assert found.index.tolist() == list(range(12))


def test_any_name_of_a_folder_is_the_same_class_after_reading(tmp_path: Path):
    classes, target = [" a", "a", "Stra\udcdfe", "=1", "'=1", "new\nline"], np.arange(6)
    folder = write_evaluation(tmp_path / "e", random_probabilities(target, 6, strength=99), target, classes)
    found = read(folder)
    assert found.target.tolist() == found.prediction.tolist() == target.tolist()


def test_the_folder_of_the_run_was_moved(tmp_path: Path):
    found = read(write_evaluation(tmp_path / "x", np.array([[0.9, 0.1]]), np.array([0]), ["a", "b"]))
    assert found.checkpoint == tmp_path / "x/best.ckpt"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/best.ckpt").touch()
    assert found.checkpoint == tmp_path / "checkpoints/best.ckpt"


def test_older_predictions_where_evaluate_fails(tmp_path: Path):
    run = tmp_path / "run"
    write_evaluation(run / "evaluation", np.array([[0.9, 0.1]]), np.array([0]), ["a", "b"])
    (run / "checkpoints").mkdir()
    (run / "checkpoints/best.ckpt").write_bytes(b"newer, and no checkpoint")
    os.utime(run / "evaluation/evaluation.json", (0, 0))
    code = """
from pathlib import Path
from imagenet_ddp.report.predictions import of_run
from imagenet_ddp.report.run_folders import Run
found, reason, failed = of_run(Run(Path(args[0]), "finished", {}, {}))
print(json.dumps([len(found), reason, failed]))
"""
    done = start_code(code, str(run))
    assert done.wait(120) == 0, done.err
    number, reason, failed = json.loads(done.out)
    assert number == 1
    assert failed and re.match(
        r"The best checkpoint could not be evaluated: \S*best\.ckpt .*\. With the option", reason
    )
    assert reason.endswith("The page shows older predictions.")
    assert "best.ckpt" in done.err
    # the line that the refusal printed, typed with the option that was missing, evaluates into this folder
    write_evaluation(run / ".evaluation", np.array([[0.9, 0.1]] * 2), np.array([0, 0]), ["a", "b"])
    found, reason, failed = of_run(Run(run, "finished", {}, {}))
    assert found is not None and len(found) == 2 and not reason and not failed


def test_what_is_not_as_written_is_refused(tmp_path: Path):
    folder = write_evaluation(tmp_path / "e", np.array([[0.9, 0.1]] * 2), np.array([0, 0]), ["a", "b"])
    table, text = folder / "predictions.csv", (folder / "predictions.csv").read_text()
    for content, said in (
        ("\n".join(text.splitlines()[:2]), r"2 images were evaluated, but 1 have a row\)\. Hint: run `rm -r .*e`"),
        (text.replace(",a,", ",other,"), "other"),
    ):
        table.write_text(content)
        with pytest.raises(ConfigError, match=f"as evaluate writes them, but does not .*{said}"):
            read(folder)
