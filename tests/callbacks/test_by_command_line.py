"""Lightning's own callbacks and loggers in real runs: each works as its documentation says, or is refused by a
sentence."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import PROBES, SMALL, SMALL_DRAWN, Run
from helpers import logged
from helpers.train_runs import probe

from imagenet_ddp.config.schema.schedules import Cosine
from imagenet_ddp.models.lr_schedules import make_schedule
from imagenet_ddp.report.compared_runs import ComparedRuns
from imagenet_ddp.report.run_folders import find_runs
from imagenet_ddp.system.packages import is_installed

FIGURES = ("train/loss", "train/top1", "train/top5", "lr", "images_per_s", "data_wait_frac")


def callback(key: str, name: str, **arguments: Any) -> list[str]:
    options = [f"+callbacks.{key}._target_=lightning.pytorch.callbacks.{name}"]
    return options + [f"+callbacks.{key}.{argument}={value}" for argument, value in arguments.items()]


def rows(path: Path) -> list[dict[str, float]]:
    """Without what a row leaves empty."""
    with path.open(encoding="utf-8", newline="") as file:
        return [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]


@pytest.mark.slow
def test_the_time_of_a_callback_is_not_a_wait_for_data(run: Run, tree: Path, tmp_path: Path) -> None:
    """It belongs to the step, of 4 images."""
    options = [*SMALL, f"data.root={tree}", "hydra.run.dir=r", *probe(tmp_path / "seen", slow_s=0.2)]
    run("train", *options, PYTHONPATH=PROBES, code=0)
    for row in rows(tmp_path / "r/metrics.csv"):
        assert row["data_wait_frac"] < 0.5 and row["images_per_s"] < 4 / 0.2


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("tensorboard"), reason="needs the extra tensorboard")
def test_all_at_once(run: Run, tree: Path, tmp_path: Path) -> None:
    """29 images, 4 a step: 8 steps an epoch. test_logger_runs.py has the other loggers."""
    result = run(
        "train", *SMALL, f"data.root={tree}", "hydra.run.dir=r", "logger=[csv,tensorboard]",
        "trainer.log_every_n_steps=4", "schedule.name=cosine", "schedule.warmup_epochs=1", "val_log_every_n_steps=2",
        "trainer.profiler=simple", "trainer.enable_model_summary=true",
        *callback("best", "ModelCheckpoint", monitor="val/top1", mode="max", save_top_k=3),
        *callback("stop", "EarlyStopping", monitor="train/loss", patience=5),
        *callback("rates", "LearningRateMonitor"),
        *callback("bar", "TQDMProgressBar"),
        *callback("stats", "DeviceStatsMonitor", cpu_stats="false"),  # true needs a package more
        "+callbacks.speed={_target_: probe.throughput_monitor, window_size: 4}",
        PYTHONPATH=PROBES, code=0,
    )  # fmt: skip
    run_dir = tmp_path / "r"
    curves = logged.of_csv(run_dir)

    # every fourth step, and in none between
    steps = [3, 7, 11, 15]
    for name in FIGURES:
        assert [step for step, _ in curves[name]] == steps, name
    others = logged.of_tensorboard(run_dir)
    for name in (*FIGURES, "val/top1", "val/loss"):  # the same curve in each logger
        assert dict(others[name]) == pytest.approx(dict(curves[name]), rel=1e-5), name
    factor = make_schedule(Cosine(), 2, 1.0)
    lr = dict(curves["lr"])
    assert lr == pytest.approx({step: 0.01 * factor(step / 8) for step in steps})
    monitored = dict(curves["lr-SGD"])
    assert {step: monitored[step] for step in steps} == pytest.approx(lr)
    assert {step: monitored[step] for step in (0, 8)} == pytest.approx({0: 0.0, 8: 0.01})  # an epoch's first step
    epochs = rows(run_dir / "metrics.csv")
    for name in FIGURES[:3]:
        values = dict(curves[name])
        whole = [(16 * values[first] + 13 * values[first + 4]) / 29 for first in (3, 11)]
        assert whole == pytest.approx([epoch[name] for epoch in epochs]), (
            "means over the images since the last such step"
        )
        assert dict(curves[f"{name}_epoch"]) == pytest.approx({7: whole[0], 15: whole[1]})
    assert list(dict(curves["val/top1"]).values()) == pytest.approx([epoch["val/top1"] for epoch in epochs])
    assert all(0 <= share <= 1 for share in dict(curves["data_wait_frac"]).values())
    assert "train/device/samples_per_sec" in curves

    files = {str(path.relative_to(run_dir / "checkpoints")) for path in (run_dir / "checkpoints").rglob("*.ckpt")}
    own = {"best/epoch=0-step=8.ckpt", "best/epoch=1-step=16.ckpt"}
    assert files == {"best.ckpt", "last.ckpt", "previous.ckpt", *own}

    # the bar is Lightning's, our lines are whole beside it; what was asked for is there
    assert "Epoch 1: 100%" in result.stdout
    lines = result.stdout.splitlines()
    assert len([line for line in lines if line.startswith(("epoch 1/2:", "epoch 2/2:"))]) == 2
    log = (run_dir / "logs/rank0.log").read_text()
    assert log.count("| (mean so far)") == 2
    for text in (result.stdout, log):
        assert "FIT Profiler Report\n" in text
        assert "| Name     | Type " in text
    assert result.stdout.count("Warning: ") == result.stdout.count("`flops_per_batch`") == 1  # ThroughputMonitor's


@pytest.mark.slow
def test_two_processes_decide_alike(run: Run, tree: Path, tmp_path: Path) -> None:
    """A loss that falls is never a higher one: the second epoch is the last. Saved by what all ranks' images give."""
    run(
        "train", *SMALL, f"data.root={tree}", "hydra.run.dir=r", "logger=csv", "trainer.log_every_n_steps=2",
        "trainer.devices=2", "trainer.max_epochs=4",
        *callback("stop", "EarlyStopping", monitor="train/loss", mode="max", patience=1, min_delta=10),
        *callback("best", "ModelCheckpoint", monitor="train/top1", mode="max", save_top_k=-1),
        "+callbacks.best.filename='{train/top1:.6f}'", "+callbacks.best.auto_insert_metric_name=false",
        *callback("rates", "LearningRateMonitor", logging_interval="step"), code=0,
    )  # fmt: skip
    run_dir = tmp_path / "r"
    curves = logged.of_csv(run_dir)
    assert json.loads((run_dir / "summary.json").read_text())["epochs"] == 2
    steps = [1, 3, 5, 7]
    for name in FIGURES:
        assert [step for step, _ in curves[name]] == steps, name
    assert dict(curves["lr-SGD"]) == dict(curves["lr"])
    saved = {path.stem for path in (run_dir / "checkpoints/best").glob("0.*.ckpt")}
    assert saved == {f"{epoch['train/top1']:.6f}" for epoch in rows(run_dir / "metrics.csv")}


@pytest.mark.slow
def test_a_picture_that_cannot_be_drawn_ends_no_training(run: Run, tree: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    options = [*SMALL_DRAWN, "callbacks=default", f"data.root={tree}", "+callbacks.batch_sheet.run_dir=file"]
    done = run("train", *options, "hydra.run.dir=r", "trainer.max_epochs=1", code=0)
    assert "train_batch.png cannot be drawn: " in done.stdout and (tmp_path / "r/curves.png").is_file()


@pytest.mark.slow
def test_each_validation_within_an_epoch_has_a_row_and_a_line(run: Run, tree: Path, tmp_path: Path) -> None:
    """Also where a run is continued; what is said of the best one is of its row."""
    options = [*SMALL, f"data.root={tree}", "trainer.val_check_interval=3", "hydra.run.dir=r"]
    first = run("train", *options, "trainer.max_steps=12", "logger=csv", code=0).stdout
    rest = run("train", "resume=r", "trainer.max_steps=-1", code=0).stdout
    epochs = rows(tmp_path / "r/metrics.csv")
    assert [(row["epoch"], row["step"]) for row in epochs] == [
        (0.375, 3), (0.75, 6), (1, 8), (1.375, 11), (1.75, 14), (2, 16),
    ]  # fmt: skip
    assert ["val/loss" in row for row in epochs] == [True, True, False, True, True, True], "the last state, too"
    assert ["train/loss" in row for row in epochs] == [False, False, True, False, False, True]
    scores = {step + 1: value for step, value in logged.of_csv(tmp_path / "r")["val/loss"]}
    assert {row["step"]: row["val/loss"] for row in epochs if "val/loss" in row}.items() <= scores.items()
    for line, said in {"epoch 1/2 step 3/8 | val loss ": first, "epoch 2/2 step 6/8 | val loss ": rest}.items():
        assert said.count(line) == 1, said
    assert (
        "epoch 1/2: train loss" in first and " | val" not in first.partition("epoch 1/2: train loss")[2].split("\n")[0]
    )
    summary = json.loads((tmp_path / "r/summary.json").read_text())
    best = next(row for row in epochs if row["step"] == summary["best_step"])
    assert best["val/top1"] == summary["best/val/top1"] == max(row.get("val/top1", 0) for row in epochs)
    compared = ComparedRuns.of(find_runs(tmp_path)).runs[0]
    assert compared.at_best["loss"] == best["val/loss"]
