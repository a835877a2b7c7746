"""A validation that is no better than guessing."""

from types import SimpleNamespace
from typing import Any

import pytest

from imagenet_ddp.callbacks.chance_note import ChanceNote, at_chance
from imagenet_ddp.callbacks.running_metrics import RunningMetrics
from imagenet_ddp.callbacks.weight_average import WeightAverage


@pytest.mark.parametrize(
    ("best", "trained", "num_classes", "num_images", "said"),
    [
        (0.11, 0.95, 10, 1000, "while training reaches 95.00 %. Check the labels of the validation images"),
        (0.11, 0.12, 10, 1000, "and neither is training. Check the labels"),
        (0.15, 0.95, 10, 1000, ""),
        (0.15, 0.95, 10, 20, "no better than guessing among 10 classes (10.00 %)"),
        (0.0, 0.0, 1, 20, ""),
        (0.002, 0.001, 1000, 50_000, ""),
    ],
)
def test_at_chance(best: float, trained: float, num_classes: int, num_images: int, said: str) -> None:
    lines = at_chance(best, trained, num_classes, num_images)
    assert said in lines[0] if said else lines == []


@pytest.mark.parametrize(
    ("best", "trained", "more", "is_said"),
    [(0.11, 0.5, [], True), (0.4, 0.5, [], False), (0.11, 0.2, [], False), (0.11, 0.5, [WeightAverage()], False)],
)
def test_it_is_said_once_and_early(best: float, trained: float, more: list[Any], is_said: bool) -> None:
    lines: list[str] = []
    note, metrics = ChanceNote(lines.append), RunningMetrics()
    metrics.best.value, metrics.epoch_means = best, SimpleNamespace(top1=trained)  # type: ignore[assignment]
    data, module = SimpleNamespace(source=SimpleNamespace(classes=range(10))), SimpleNamespace(num_counted=(1000, 1))
    for epochs in range(1, 9):
        metrics.num_epochs = epochs
        trainer = SimpleNamespace(callbacks=[metrics, *more], global_step=150 * epochs, datamodule=data)
        note.on_train_epoch_end(trainer, module)  # type: ignore[arg-type]
        assert not lines or epochs >= 4, "within the first 500 steps"
    assert [line.startswith("After 4 epochs: Val top-1 is no better than guessing among 10") for line in lines] == (
        [True] * is_said
    )
