"""The last lines of a run's log."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_ddp.callbacks.step_times import Span
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.augment import Augmentation, AugmentedTransform
from imagenet_ddp.engine import run_summary
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.run_summary import closing_lines, mirrored_pair


@pytest.fixture(autouse=True)
def _not_compiled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(run_summary, "compile_lines", lambda module: [])


class Targets:
    """Images of ten equally frequent classes."""

    def __init__(self, num_images: int, picture: Any = None):
        self.open = lambda index: picture
        self.targets = np.arange(num_images) % 10

    def __len__(self) -> int:
        return len(self.targets)


def closed(
    num_steps: int,
    command: str = "python -m imagenet_ddp.train",
    *,
    averaging: str = "none",
    sampling: str = "shuffled",
    classes: Sequence[str] = "abcdefghij",
    image: tuple[int, int] = (40, 40),
    flip: float = 0.0,
    wait: float | None = None,
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
    metrics.train_times = SimpleNamespace(run=Span(100, 1, 1.0, wait or 0.0))
    picture = SimpleNamespace(width=image[0], height=image[1])
    if scores:
        best.value, metrics.num_epochs, metrics.epoch_means = scores[0], 5, SimpleNamespace(top1=scores[1])
    parts: Any = SimpleNamespace(
        train_log=metrics,
        data=SimpleNamespace(
            source=SimpleNamespace(classes=list(classes)),
            bad_images=SimpleNamespace(board=SimpleNamespace(all=list)),
            train_images=Targets(2400),
            val_images=Targets(500, picture),
            options={"flip": flip, "augment": "crop", "image_size": 224},
            eval_transform=SimpleNamespace(image_size=224, resize=256, fit="crop"),
            train_transform=AugmentedTransform(SimpleNamespace(), Augmentation((0, 0, 0), "augmix")) if wait else None,  # type: ignore[arg-type]
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


CHANCE = "Val top-1 is no better than always answering the most frequent class (10.00 %); train top-1 is 80.00 %."


@pytest.mark.parametrize("more", [{"averaging": "ema"}, {"sampling": "balanced"}, {"scores": (0.9, 0.8)}])
def test_a_net_at_chance_is_noted_unless_it_cannot_be_compared(more: dict[str, Any]):
    lines = closed(375, scores=(0.1, 0.8))
    assert lines[1:3] == [CHANCE, "Check the labels in train_batch.png and in the validation images."]
    assert CHANCE not in closed(375, **{"scores": (0.1, 0.8), **more})


def test_the_causes_in_the_options_are_named_instead_of_the_labels():
    arrows = ["arrow-left", "arrow-right", *"abcdefgh"]
    flip = "data.flip=0.5 mirrors training images, which may turn arrow-left into arrow-right. Hint: set data.flip=0."
    assert closed(375, scores=(0.1, 0.8), classes=arrows, flip=0.5)[1:3] == [CHANCE, flip]
    assert closed(375, scores=(0.6, 0.8), classes=arrows, flip=0.5)[1] == flip, "eight other classes are learned"
    assert flip not in closed(375, scores=(0.1, 0.8), classes=arrows)
    chance, crop, *_ = closed(375, scores=(0.1, 0.8), image=(1280, 720))[1:]
    assert chance == CHANCE
    assert crop.startswith("Validation sees only the middle 43 % of an image (median).")
    assert crop.endswith("set data.fit=pad or data.fit=squash.")
    assert not any("middle" in line for line in closed(375, scores=(0.9, 0.8), image=(1280, 720)))


@pytest.mark.parametrize(
    ("classes", "pair"),
    [
        (["Turn_Right", "stop", "turn_left"], ("Turn_Right", "turn_left")), (["a", "b", "c", "d"], ("b", "d")),
        (["q", "p"], ("q", "p")), (["left", "centre"], None), (["bd", "db"], None), (["cat", "dog"], None),
    ],
)  # fmt: skip
def test_classes_that_are_mirror_images_by_their_names(classes: list[str], pair: tuple[str, str] | None):
    assert mirrored_pair(classes) == pair


def test_an_augmentation_for_which_training_waited_is_named():
    lines = closed(375, wait=0.34)
    assert lines[1].startswith("Training waited for images for 34 % of the time, in part for their augmentation (data")
    assert not any("waited" in line for line in closed(375, wait=0.05))
