from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch import callbacks

from imagenet_ddp.runs.check_run import REPLACED, validate
from imagenet_ddp.runs.checkpoint_store import CheckpointStore

COMMON = {"name": "a_run", "seed": 0, "val_log_every_n_steps": 100}
RUN = {"resume": None, "sweep": {"job": "auto", "resume": None}, "checkpoint": None}
NODES: dict[str, Any] = COMMON | {"callbacks": {}, "logger": {}} | RUN
PREDICT = NODES | {"format": "csv", "top_k": 5, "images": None, "out": None}


def saving(**arguments: Any) -> dict[str, Any]:
    return {"c": {"_target_": "imagenet_ddp.callbacks.ResumeCheckpoint", **arguments}}


def monitoring(monitor: str | None, name: str = "EarlyStopping") -> dict[str, Any]:
    return {"m": {"_target_": f"lightning.pytorch.callbacks.{name}", "monitor": monitor}}


def test_the_replaced_callbacks_are_lightnings():
    assert all(hasattr(callbacks, name) for name in REPLACED)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.ckpt").touch()
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "last.ckpt").touch()


@pytest.mark.parametrize(
    "typed",
    [
        {},
        {"resume": "run"},
        {"callbacks": {"a": {"_target_": "torch.x"}, "b": None}},
        {"callbacks": saving(monitor="val/top1"), "trainer": {"limit_val_batches": 0}},
        {"callbacks": monitoring("step", "ModelCheckpoint")},
        {"callbacks": saving(monitor="train/loss_epoch", mode="auto")},
        {"callbacks": {**monitoring("mine"), "own": {"_target_": "mypkg.Mine"}}},
    ],
)
def test_well(typed: dict[str, Any]):
    assert validate(NODES | typed, {}) == []


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"callbacks": saving(every_n_epochs=0)}, "callbacks.c.every_n_epochs must be an integer ≥ 1, got 0."),
        (
            {"callbacks": {**saving(monitor="val/mine", mode="auto"), "own": {"_target_": "mypkg.Mine"}}},
            "callbacks.c.mode must be max or min with monitor=val/mine, got auto. Hint: set callbacks.c.mode=max",
        ),
        *(
            (
                {"callbacks": {"m": {"_target_": f"lightning.pytorch.callbacks.{name}"}}},
                f"callbacks.m must not be {name}, in whose place there is an option. Hint: set {option} and",
            )
            for name, option in REPLACED.items()
        ),
        ({"callbacks": saving(monitor="val/acc")}, "Hint: set ++callbacks.c.monitor=val/top1."),
        ({"logger": {"a": 3}}, "Hint: set ++logger.a._target_=lightning.pytorch.loggers.CLASS and leave logger.a out."),
        (
            {"callbacks": monitoring("auto"), "trainer": {"limit_val_batches": 0}},
            ", got val/top1. Hint: set ++callbacks.m.monitor=train/top1.",
        ),
        ({"sweep": {"job": "none"}}, "sweep.job must be "),
        (
            {"resume": "/dev/zero"},
            "/dev/zero is not a regular file. Hint: set resume=runs/NAME/TIME, or resume=auto.",
        ),
        ({"resume": "~/x.ckpt"}, "Hint: set resume=/home/ann/x.ckpt."),
        (
            {"callbacks": saving() | {"d": saving()["c"]}},
            "callbacks must have one ResumeCheckpoint, got c and d. Hint: set ++callbacks.d._target_=lightning",
        ),
    ],
)
def test_one_mistake(typed: dict[str, Any], said: str, tmp_path: Path):
    (text,) = map(str, validate(NODES | typed, {"HOME": "/home/ann"}))
    assert said in text
    assert "Hint: " in text


def test_the_best_checkpoint_of_a_folder_is_offered_first_and_the_last_to_resume():
    Path("run").rename("my run")
    for name in ("last", "best"):
        Path(f"my run/checkpoints/{name}.ckpt").touch()
        assert CheckpointStore.to_use(Path("my run")) == Path(f"my run/checkpoints/{name}.ckpt")
        (text,) = map(str, validate(PREDICT | {"checkpoint": "my run/checkpoints"}, {}, verb="predict"))
        assert text.endswith(f"Hint: set `'checkpoint=my run/checkpoints/{name}.ckpt'`.")
    Path("my run/report.html").touch()
    (text,) = map(str, validate(PREDICT | {"checkpoint": "my run/report.html"}, {}, verb="predict"))
    assert text.endswith("is a file of a run. Hint: set `'checkpoint=my run'`.")
    (text,) = map(str, validate(NODES | {"resume": "my run/checkpoints"}, {}))
    assert text.endswith("Hint: set `'resume=my run/checkpoints/last.ckpt'`.")


def test_the_packages_of_a_logger_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("imagenet_ddp.system.packages.is_installed", lambda name: False)
    entry = {"_target_": "lightning.pytorch.loggers.Logger"}
    (text,) = map(str, validate(NODES | {"logger": {"trackio": entry, "mine": entry, "wandb": None}}, {}))
    assert " 'trackio>=0.4'`, or set logger.trackio=null." in text
