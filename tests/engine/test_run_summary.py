"""The last lines of a run's log."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.engine import run_summary
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.run_summary import closing_lines


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_summary, "compile_lines", lambda module: [])


class Targets:
    """Images of ten equally frequent classes."""

    def __init__(self, num_images: int):
        self.targets = np.arange(num_images) % 10

    def __len__(self) -> int:
        return len(self.targets)


def closed(
    num_steps: int,
    command: str = "python -m imagenet_ddp.train",
    *,
    averaging: str = "none",
    sampling: str = "shuffled",
    data: str = "shapes",
    run_dir: str = "runs/x",
    scores: tuple[float, float] | None = None,
    **trainer: Any,
) -> list[str]:
    """Return the last lines of a run. data: data.name; shapes are generated images. scores: val/top1 and train/top1
    after five epochs."""
    trainer = {"max_epochs": 5, "max_steps": -1, "limit_train_batches": 1.0, **trainer}
    config = {
        "data": {"name": data, "_target_": None, "sampling": sampling}, "trainer": trainer,
        "averaging": {"name": averaging}, "loss": {"class_weights": None},
        "model": {"_target_": None, "args": {}, "weights": "DEFAULT"},
    }  # fmt: skip
    best = SimpleNamespace(value=0.9 if num_steps else None, epoch=5)
    metrics = SimpleNamespace(best=best, num_epochs=1, epoch_means=None)
    if scores:
        best.value, metrics.num_epochs, metrics.epoch_means = scores[0], 5, SimpleNamespace(top1=scores[1])
    parts: Any = SimpleNamespace(
        train_log=metrics,
        data=SimpleNamespace(
            source=SimpleNamespace(classes=list("abcdefghij")),
            bad_images=SimpleNamespace(board=SimpleNamespace(all=list)),
            train_images=Targets(2400),
            val_images=Targets(500),
        ),
        module=SimpleNamespace(num_counted=(500, 1) if num_steps else (0, 0)),
        trainer=SimpleNamespace(global_step=num_steps, limit_val_batches=1.0),
    )
    job = Job(to_config(config, CommonConfig), Path(run_dir), command=command)
    return closing_lines(job, parts, 62.0)


@pytest.mark.parametrize("program", ["python", "uv run python"])
def test_the_next_steps_come_last_and_can_be_pasted(program: str):
    best, folder, counted, heading, *steps = closed(375, f"{program} -m imagenet_ddp.train trainer.max_epochs=5")
    assert (best, folder) == ("Best val top-1 90.00 % (epoch 5), in 62 s of training.", "Run folder: runs/x")
    assert counted == "500 of 500 validation images, each once."
    assert heading.startswith("This run used generated images.")
    assert [step.partition("  #")[0].rstrip() for step in steps] == [
        f" {program} -m imagenet_ddp.train {options}"
        for options in (
            "experiment=finetune data=imagefolder data.root=FOLDER",
            "experiment=quick data=imagefolder data.root=FOLDER",
            "data=stl10",
            "data=imagenet data.root=FOLDER",
        )
    ]


def test_a_run_on_other_images_names_the_command_for_a_report():
    closing = closed(375, "uv run python -m imagenet_ddp.train x=1", data="imagefolder", run_dir="runs/my cats")
    assert closing[1:] == [
        "Run folder: runs/my cats",
        "Make a report: `uv run python -m imagenet_ddp.report 'runs/my cats'`",
        "500 of 500 validation images, each once.",
    ]
    assert not any("imagenet_ddp.report" in line for line in closed(0, data="imagefolder"))


@pytest.mark.parametrize(("key", "hint"), [("max_epochs", "5"), ("max_steps", "-1"), ("limit_train_batches", "1.0")])
def test_a_run_without_a_step_says_so(key: str, hint: str):
    limits: dict[str, Any] = {key: 0}
    assert closed(0, **limits) == [
        "Run folder: runs/x",
        f"Nothing was trained, because trainer.{key} is 0. Hint: set trainer.{key}={hint}.",
    ]
    assert closed(0)[-1] == "Nothing was trained: the run ended before its first step."


CHANCE = "Val top-1 is no better than always answering the most frequent class (10.00 %); train top-1 is 80.00 %. "


@pytest.mark.parametrize("more", [{"averaging": "ema"}, {"sampling": "balanced"}, {"scores": (0.9, 0.8)}])
def test_a_net_at_chance_is_noted_unless_it_cannot_be_compared(more: dict[str, Any]):
    assert closed(375, scores=(0.1, 0.8))[1].startswith(CHANCE)
    assert not any(line.startswith(CHANCE) for line in closed(375, **{"scores": (0.1, 0.8), **more}))
