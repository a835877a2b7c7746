"""The start of a run's log: what a person must know first fits on a screen, and the log file has every reason."""

import json
from pathlib import Path

from conftest import SMALL, Run

from imagenet_ddp.system.console import wrap_text

LINES, COLUMNS = 24, 80  # of a terminal


def test_the_start_report_fits_on_a_screen(tree: Path, tmp_path: Path, seven_class_weights: Path, run: Run):
    """With each option that adds a line to it."""
    options = (
        "trainer.devices=2", f"model.weights={seven_class_weights.name}", "model.freeze=backbone",
        "model.batch_norm=frozen",
        "loss.class_weights={cat:1,dog:2,owl:3}", "averaging=ema", "schedule.warmup_epochs=auto",
        "optim.scaling=linear", "data.sampling=balanced", "trainer.max_epochs=1",
    )  # fmt: skip
    done = run("train", *SMALL, *options, f"data.root={tree}", "hydra.run.dir=r", code=0)
    report, found, _ = done.stdout.partition("Run folder: r (all choices and their reasons: logs/rank0.log)\n")
    assert found and "\nNet: mobilenet_v2, 19,859 parameters (3,843 of them trained)" in report
    shown = [part for line in [*report.splitlines(), found] for part in wrap_text(line, COLUMNS)]
    assert 8 < len(shown) <= LINES, "\n".join(shown)
    log = (tmp_path / "r/logs/rank0.log").read_text()
    for words in ("Average of the weights: exponential", " in step 1, ", "Batch norm uses and keeps"):
        assert words in log and words not in done.stdout, "of interest to those who look for it"
    assert "whole run" not in report
    plan = json.loads((tmp_path / "r/summary.json").read_text())["plan"]
    choices = ("precision", "num_threads", "num_workers", "fused", "decoder", "learning_rate", "warmup_epochs")
    assert not [name for name in choices if plan[name]["reason"].rstrip(".") not in log]


def test_a_batch_larger_than_the_data_is_announced(tree: Path, run: Run):
    """29 images, and 2 processes."""
    options = "trainer.devices=2", "data.batch_size=100", "trainer.max_epochs=1"
    done = run("train", *SMALL, *options, f"data.root={tree}", code=0)
    said = " ".join(done.stdout.split())
    assert "= 200 images per update." in said
    assert (
        "An epoch has 29 images, and so one update, of all of them; the learning rate is that for 200. "
        "Hint: set data.batch_size=1, for about ten updates per epoch." in said
    )
    done = run("train", *SMALL, f"data.root={tree}", "trainer.max_epochs=1", code=0)
    assert "An epoch has" not in done.stdout


def test_a_warm_up_that_takes_the_whole_run_is_announced(tree: Path, run: Run):
    """If it is typed; that of a recipe takes a quarter of so short a run."""
    options = f"data.root={tree}", "trainer.max_epochs=1", "trainer.limit_train_batches=1"
    done = run("train", *(each for each in SMALL if not each.startswith("schedule")), *options, code=0)
    assert " schedule cosine with a warm-up of 0.25 epochs, loss" in done.stdout
    assert "whole run" not in done.stdout
    done = run("train", *SMALL, *options, "schedule.warmup_epochs=2", code=0)
    assert " with a warm-up of 2 epochs, loss" in done.stdout
    assert (
        "The warm-up takes 2 epochs, and so the whole run: the learning rate does not reach its value." in done.stdout
    )
