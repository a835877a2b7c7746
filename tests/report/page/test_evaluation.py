"""Predictions as evaluate writes them."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from helpers.fake_predictions import random_probabilities, write_evaluation

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.page.evaluation import join, of_run, read

CLASSES = ["a,b", 'c"d', "é", "x\ny", "e", "f"]
TARGET = np.arange(12) % 6


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_reading(form: str, tmp_path: Path):
    probabilities = random_probabilities(TARGET, 6)
    found = read(write_evaluation(tmp_path / "e", probabilities, TARGET, CLASSES, unreadable=["bad.jpg"], form=form))
    assert found.classes == CLASSES
    assert found.target.tolist() == TARGET.tolist()
    assert found.prediction.tolist() == probabilities.argmax(axis=1).tolist()
    np.testing.assert_allclose(found.confidence, probabilities.max(axis=1), rtol=1e-5)
    assert found.top.shape == found.top_probability.shape == (12, 5)
    assert found.index.tolist() == list(range(12))


def test_wordnet_ids_get_names(tmp_path: Path):
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8]])
    found = read(write_evaluation(tmp_path / "e", probabilities, np.array([0, 1]), ["n01443537", "mine"]))
    assert found.labels == ["goldfish", "mine"]


def test_several_are_joined(tmp_path: Path):
    target = np.array([0, 1])
    probabilities = np.array([[0.9, 0.1], [0.2, 0.8]])
    parts = [
        read(write_evaluation(tmp_path / name, probabilities, target, ["a", "b"], paths=[f"{name}1", f"{name}2"]))
        for name in "xy"
    ]
    both = join(parts)
    assert (len(both), both.part.tolist(), both.index.tolist()) == (4, [0, 0, 1, 1], [0, 1, 0, 1])
    assert both.folders == [tmp_path / "x", tmp_path / "y"]
    assert both.checkpoint(1) == tmp_path / "y/best.ckpt"
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints/best.ckpt").touch()
    assert both.checkpoint(1) == tmp_path / "checkpoints/best.ckpt", "the folder of the run was moved"
    other = read(write_evaluation(tmp_path / "z", probabilities, target, ["a", "c"]))
    with pytest.raises(ConfigError, match=r"must have the same classes, but those of .*z differ from those of .*x"):
        join([*parts, other])
    with pytest.raises(ConfigError, match="but 2 of them held out x1"):
        join([*parts, parts[0]])


def test_older_predictions_where_evaluate_fails(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    write_evaluation(run / "evaluation", np.array([[0.9, 0.1]]), np.array([0]), ["a", "b"])
    (run / "checkpoints").mkdir()
    (run / "checkpoints/best.ckpt").write_bytes(b"newer, and no checkpoint")
    os.utime(run / "evaluation/evaluation.json", (0, 0))
    found, reason = of_run(run, is_running=False)
    assert found is not None and len(found) == 1
    assert reason == (
        "The best checkpoint could not be evaluated (evaluate ended with exit code 2). "
        "The page shows older predictions."
    )
    assert "best.ckpt" in capfd.readouterr().err
    (run / "evaluation/evaluation.json").unlink()
    found, reason = of_run(run, is_running=False)
    assert found is None and reason.startswith("The evaluation needs the folder ")
    assert (run / "evaluation/predictions.csv").exists(), "nothing that may be somebody's own is deleted"


def test_what_is_not_as_written_is_refused(tmp_path: Path):
    folder = write_evaluation(tmp_path / "e", np.array([[0.9, 0.1]] * 2), np.array([0, 0]), ["a", "b"])
    text = (folder / "predictions.csv").read_text()
    (folder / "predictions.csv").write_text("\n".join(text.splitlines()[:2]))
    with pytest.raises(
        ConfigError, match=r"predictions\.csv must hold 2 images, got 1\. Hint: run `rm -r .*e`, then run `python -m "
    ):
        read(folder)
    with pytest.raises(ConfigError, match=r"then run this command again\.$"):
        read(folder, "run this command again")
    (folder / "predictions.csv").write_text(text.replace(",a,", ",other,"))
    with pytest.raises(ConfigError, match=r"as evaluate writes them, but does not .*other"):
        read(folder)
    (folder / "predictions.csv").unlink()
    with pytest.raises(ConfigError, match=r"predictions\.csv must be readable, but is not: No such file"):
        read(folder)
    (folder / "evaluation.json").write_text(json.dumps({"val/top1": 1, "predictions": None}))
    with pytest.raises(ConfigError, match=r"written with predictions=none\. Hint: run `rm -r "):
        read(folder)
    (folder / "evaluation.json").write_text("[]")
    with pytest.raises(
        ConfigError, match=r"then run `python -m imagenet_ddp\.evaluate checkpoint=FILE hydra\.run\.dir=.*e`\."
    ):
        read(folder)
