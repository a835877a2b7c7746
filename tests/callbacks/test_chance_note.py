"""A validation that is no better than guessing."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from imagenet_ddp.callbacks.chance_note import ChanceNote, at_chance, learns
from imagenet_ddp.callbacks.running_metrics import RunningMetrics
from imagenet_ddp.callbacks.weight_average import WeightAverage
from imagenet_ddp.data.sources.base import Images


def images(counts: Sequence[int]) -> Images:
    """counts: number of images of each class."""
    made = Images()
    made.targets = np.repeat(np.arange(len(counts)), counts)
    return made


def run_of(
    train: Sequence[int], val: Sequence[int], *, sampling: str = "shuffled", weights: Any = None
) -> tuple[Any, Any]:
    """Return the data and the module of a run. train, val: number of images of each class."""
    source = SimpleNamespace(classes=range(len(val)))
    data = SimpleNamespace(
        source=source, train_images=images(train), val_images=images(val), options={"sampling": sampling}
    )
    return data, SimpleNamespace(num_counted=(sum(val), 1), loss=SimpleNamespace(weights=weights))


TEN = "no better than guessing among 10 classes (always answering the most frequent one: 10.00 %)"
TWO = "no better than guessing among 2 classes (always answering the most frequent one: 50.00 %)"


@pytest.mark.parametrize(
    ("best", "trained", "val", "said"),
    [
        (0.11, 0.95, [100] * 10, f"{TEN}, while training reaches 95.00 %. Check the labels of the validation images"),
        (0.11, 0.12, [100] * 10, f"{TEN}, and neither is training. Check the labels"),
        (0.15, 0.95, [100] * 10, ""),
        (0.15, 0.95, [2] * 10, TEN),
        (0.25, 0.95, [2] * 10, "Val top-1 cannot be told from guessing with only 20 validation images."),
        (12 / 21, 0.62, [7] * 3, "Val top-1 cannot be told from guessing with only 21 validation images."),
        (0.5, 0.99, [500] * 2, f"{TWO}, while training reaches 99.00 %"),
        (0.5, 0.51, [500] * 2, f"{TWO}, and neither is training"),
        (0.9, 0.99, [900, 100], "no better than guessing among 2 classes (always answering the most frequent one: 90"),
        (0.95, 0.99, [900, 100], ""),
        (0.0, 0.0, [20], ""),
        (0.002, 0.001, [50] * 1000, ""),
    ],
)
def test_at_chance(best: float, trained: float, val: list[int], said: str) -> None:
    lines = at_chance(best, trained, *run_of([100] * len(val), val))
    assert said in lines[0] if said else lines == []


@pytest.mark.parametrize("option", [{"sampling": "balanced"}, {"weights": object()}])
def test_a_training_that_balances_the_classes_is_compared_with_an_even_guess(option: dict[str, Any]) -> None:
    data, module = run_of([900, 100], [900, 100], **option)
    assert at_chance(0.8, 0.8, data, module) == []
    assert "among 2 classes (50.00 %), while" in at_chance(0.5, 0.8, data, module)[0]


@pytest.mark.parametrize(
    ("counts", "least"),
    [
        ([500, 500], 0.55), ([10, 10], 0.75), ([1, 1], 0.75), ([990, 10], 0.9995), ([100] * 10, 0.19),
        ([50] * 1000, 0.1009),
    ],
)  # fmt: skip
def test_training_learns_if_luck_cannot_explain_its_accuracy(counts: list[int], least: float) -> None:
    """Whatever the data, some accuracy is enough."""
    run = run_of(counts, counts)
    assert not learns(least - 0.01, *run)
    assert learns(min(least + 1e-6, 1.0), *run)


@pytest.mark.parametrize(
    ("best", "trained", "num_classes", "more", "is_said"),
    [
        (0.11, 0.5, 10, [], True),
        (0.4, 0.5, 10, [], False),
        (0.11, 0.15, 10, [], False),
        (0.11, 0.5, 10, [WeightAverage()], False),
        (0.5, 0.99, 2, [], True),
    ],
)
def test_it_is_said_once_and_early(
    best: float, trained: float, num_classes: int, more: list[Any], is_said: bool
) -> None:
    lines: list[str] = []
    note, metrics = ChanceNote(lines.append), RunningMetrics()
    metrics.best.value, metrics.epoch_means = best, SimpleNamespace(top1=trained)  # type: ignore[assignment]
    data, module = run_of([100] * num_classes, [1000 // num_classes] * num_classes)
    for epochs in range(1, 9):
        metrics.num_epochs = epochs
        trainer = SimpleNamespace(callbacks=[metrics, *more], global_step=150 * epochs, datamodule=data)
        note.on_train_epoch_end(trainer, module)  # type: ignore[arg-type]
        assert not lines or epochs >= 4, "within the first 500 steps"
    start = f"After 4 epochs: Val top-1 is no better than guessing among {num_classes}"
    assert [line.startswith(start) for line in lines] == [True] * is_said
