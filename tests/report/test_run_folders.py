"""Describe a run from its folder."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.fake_runs import make_run, write_metrics

from imagenet_ddp.report.run_folders import Run, find_runs, read_run


def run_in(folder: Path) -> Run:
    run = read_run(folder)
    assert run is not None
    return run


def test_a_finished_run(tmp_path: Path):
    run = run_in(make_run(tmp_path / "r", {"optim.lr": 0.3}, top1=0.8))
    assert (run.state, run.epochs, run.best_epoch, run.train_s) == ("finished", 5, 5, 37.5)
    assert (run.best, run.at_best["top5"], run.at_best["loss"]) == pytest.approx((0.8, 0.95, 0.8))
    assert run.images_per_s == 100, "the first epoch, half as fast, does not count"
    assert run.options["optim.lr"] == 0.3
    assert run.options["data.mean"] == [0.5, 0.5, 0.5]
    timed = run_in(make_run(tmp_path / "timed", {"budget_min": 3, "trainer.max_epochs": 30}))
    assert (run.max_epochs, timed.max_epochs) == (5, None), "a run for some minutes chooses its epochs itself"


def test_the_best_epoch_brings_its_own_top5_and_loss(tmp_path: Path):
    folder = make_run(tmp_path / "r", finished=False)
    columns = ("epoch", "val/top1", "val/top5", "val/loss", "best/val/top1")
    rows = [[1, 0.2, 0.5, 2.0, 0.2], [2, 0.9, 0.6, 1.0, 0.9], [3, "", "", "", 0.9], [4, 0.3, 0.99, 0.1, 0.9]]
    write_metrics(folder, rows, columns)
    run = run_in(folder)
    assert (run.best, run.best_epoch, run.at_best) == (0.9, 2, {"top1": 0.9, "top5": 0.6, "loss": 1.0})
    write_metrics(folder, [*rows, [5, 0.9, 0.7, 0.9, 0.9]], columns)
    assert run_in(folder).best_epoch == 5, "of equal scores, that with the lowest loss"
    (folder / "summary.json").write_text(json.dumps({"best/val/top1": 0.95, "best_epoch": 2, "epochs": 4}))
    run = run_in(folder)  # the best validation was within the epoch, and has no row
    assert (run.best, run.best_epoch, run.at_best) == (0.95, 2, {})


@pytest.mark.parametrize(
    ("rows", "is_chosen"),
    [
        ([[1, None], [2, None], [3, 0.8]], False),  # trainer.check_val_every_n_epoch=3
        ([[0.5, 0.7], [1, 0.8]], True),  # trainer.val_check_interval=0.5
    ],
)
def test_only_several_validations_choose_the_best_weights(
    rows: list[list[float | None]], is_chosen: bool, tmp_path: Path
):
    folder = make_run(tmp_path / "run", top1=0.8)
    write_metrics(folder, rows, ("epoch", "val/top1"))
    run = read_run(folder)
    assert run is not None and run.is_chosen is is_chosen


def test_states(tmp_path: Path):
    folder = make_run(tmp_path / "r", finished=False, epochs=3)
    assert (run_in(folder).state, run_in(folder).epochs) == ("interrupted", 3)
    hold = "import sys; from pathlib import Path; from imagenet_ddp.runs.folder import lock;"
    hold += "held = lock(Path(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", hold, str(folder)], stdin=-1, stdout=-1) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"held\n"
            assert run_in(folder).state == "running"
        finally:
            process.communicate()
    assert run_in(folder).state == "interrupted", "a lock ends with its process"


def test_all_runs_below_a_folder(tmp_path: Path):
    made = [make_run(tmp_path / "sweep" / str(number)) for number in range(4)]
    for name in ("other", "sweep/0/evaluation", "sweep/0/.hydra"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").write_text("data: {}\nmodel: {}\n")
    (tmp_path / "latest").symlink_to(made[3])
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [run.folder for run in find_runs(tmp_path)] == made
    assert [run.folder for run in find_runs(tmp_path / "latest")] == [made[3]], "a link that is named is followed"
