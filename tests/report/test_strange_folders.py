"""Run folders of strangers: whatever their files contain, the page and the leaderboard leave out what is wrong."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.fake_predictions import random_probabilities, write_evaluation
from helpers.fake_runs import make_run
from matplotlib.figure import Figure

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report import error_analysis, page, predictions
from imagenet_ddp.report.__main__ import _leaderboard
from imagenet_ddp.report.compared_runs import ComparedRuns
from imagenet_ddp.report.leaderboard import leaderboard
from imagenet_ddp.report.run_folders import find_runs, read_run
from imagenet_ddp.runs import folder as run_folder

SUMMARY = {
    "data": {"name": "a", "folder": "b"}, "versions": {"torch": "2"}, "hardware": "CPU", "command": "c",
    "finished_at": "2026-01-01T00:00:00", "num_train_images": 1, "num_val_images": 2, "data_wait_frac": 0.1,
    "num_parameters": 3, "git_commit": "x", "train_cpu_s": 1.0, "steps": 10, "ended_by": "trainer.max_epochs",
    "val/top5": 0.9, "val/loss": 0.5,
}  # fmt: skip
WRONG = [None, "\x1b[2J", -1, float("inf"), {"a": [1]}, "a" * 5000]
CELLS = ["", "x", "-5", "nan", "1e400", "9" * 20]
ABC = ["a", "b", "c"]


@pytest.fixture
def evaluated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An evaluation, whose page is made without its figures, which take most of the time."""
    monkeypatch.setattr(error_analysis, "calibration_figure", lambda *_: Figure())
    target = np.arange(12) % 3
    calibration = {"temperature": 1.1, "nll": 0.5, "nll_at_temperature": 0.4, "ece_at_temperature": 0.1}
    return write_evaluation(tmp_path / "e", random_probabilities(target, 3), target, ABC, calibration=calibration)


def damaged(file: Path) -> Iterator[str]:
    """Write the file with one wrong part after the other, and yield what is wrong."""
    whole = json.loads(file.read_text(encoding="utf-8"))
    for number, name in enumerate(whole):
        for value in WRONG[number % 2 :: 2]:  # each at half of the places
            file.write_text(json.dumps({**whole, name: value}), encoding="utf-8")
            yield f"{name}={value!r}"
    for text in ("", "[]", "{", "[" * 100_000, '{"a":' * 100_000, "\0"):
        file.write_text(text, encoding="utf-8")
        yield text[:9]


def test_a_summary_with_parts_of_any_type(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r", **SUMMARY)
    (folder / "metrics.csv").unlink()  # a figure takes most of the time
    for what in damaged(folder / "summary.json"):
        run = read_run(folder)
        assert run is not None, what
        assert page.build("r", run, None, maps=False).files, what
        run_folder.summary(folder)
        assert leaderboard(ComparedRuns.of([run, run])).rows, what
    (folder / "summary.json").write_text(json.dumps({"finished": True, "train_s": "long", "epochs": 2}))
    found = page.build("r", read_run(folder), None, maps=False)
    assert found.files
    assert "train_s in summary.json is not null or a number" in " ".join(found.summary)


def test_an_evaluation_with_parts_of_any_type(evaluated: Path) -> None:
    for what in damaged(evaluated / "evaluation.json"):
        assert_page_or_refusal(evaluated, what)


def test_predictions_with_cells_of_any_content(evaluated: Path) -> None:
    file = evaluated / "predictions.csv"
    head, first, *rows = file.read_text(encoding="utf-8-sig").splitlines()
    for number, name in enumerate(head.split(",")):
        for cell in CELLS[number % 2 :: 2]:  # each in half of the columns
            cells = first.split(",")
            cells[number] = cell
            file.write_text("\n".join([head, ",".join(cells), *rows]), encoding="utf-8")
            assert_page_or_refusal(evaluated, f"{name}={cell}")


def assert_page_or_refusal(folder: Path, what: str) -> None:
    with suppress(ConfigError):
        assert page.build("e", None, predictions.read(folder), maps=False).files, what


@pytest.mark.parametrize(
    "content",
    [
        "epoch,a\n1,2,3\n", "epoch\n" + "1\n" * 1_000_001, "a," * 2000 + "\n", "epoch,epoch\nx\n", "\0", "",
        'epoch,"a\n', b"\xff\xfe", "epoch,train/loss\n1e300,1e308\n-5,nan\n",
        "epoch,train/loss\n" + "9" * 200_000 + ",1\n",
    ],
)  # fmt: skip
def test_metrics_of_any_content(content: str | bytes, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "r")
    (folder / "metrics.csv").write_bytes(content if isinstance(content, bytes) else content.encode())
    run = read_run(folder)
    assert run is not None and page.build("r", run, None, maps=False).files


def test_the_leaderboard_over_ten_strange_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong: dict[str, Any] = {
        "trainer.max_epochs": "5", "data": "x", "optim.lr": [[{}]], "name": "\x1b[2J=A1", "seed": {"a": 1},
        "model.name": 3.5, "budget_min": [], "data.root": {"": None}, "resume": -1,
    }  # fmt: skip
    for number, (key, value) in enumerate(wrong.items()):
        run = make_run(tmp_path / f"{number}", **SUMMARY)
        config = page.read_config(run)
        group, _, last = key.partition(".")
        (config[group] if last else config)[last or group] = value
        (run / "config.yaml").write_text(json.dumps(config), encoding="utf-8")
    with (make_run(tmp_path / "9") / "metrics.csv").open("a") as file:
        file.truncate(65 * 2**20)
    assert len(find_runs(tmp_path)) == 10
    files = _leaderboard([tmp_path], "comma")
    assert "9 (metrics.csv is larger than 64 MiB)" in " ".join(capsys.readouterr().out.split())
    assert b"\x1b" not in files["report.md"] + files["report.csv"]
