"""What loggers and callback_metrics get, at which steps, and that no other step is held up for it."""

from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LearningRateMonitor
from lightning.pytorch.loggers import Logger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch import nn
from torch.utils.data import DataLoader

from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.measures import Best, RunningSums, Span, StepTimes
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.models.sums import Sums
from imagenet_ddp.models.task import OneLabel
from imagenet_ddp.training import diagnosis
from imagenet_ddp.training.diagnosis import refusing

NUM_BATCHES = 7

NAMES = ("loss", "top1", "top5")


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.task = OneLabel(3)
        self.net = nn.Linear(3, 3)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.5)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        """The loss shown is the batch's number in its epoch."""
        logits = self.net(batch["image"])
        sums = self.task.sums(torch.tensor(2.0 * batch_idx), logits, batch["target"])
        return {"loss": logits.sum(), "sums": sums}

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        pass


class MemoryLogger(Logger):
    """Rows in memory."""

    name = version = "memory"  # type: ignore

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None: ...

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, metrics))

    def of(self, name: str) -> dict[int | None, float]:
        return {step: row[name] for step, row in self.rows if name in row}


class Counting(TrainLog):
    """Remembers after which batch the device was waited for, and other ranks were asked."""

    def __init__(self) -> None:
        super().__init__()
        self.num_batches = 0
        self.read_after: list[int] = []
        self.asked_after: list[int] = []

    def on_train_batch_start(self, *args: Any, **kwargs: Any) -> None:
        super().on_train_batch_start(*args, **kwargs)
        self.num_batches += 1

    def read_sums(self) -> tuple[Sums, Sums]:
        if self.sums._host is None:
            self.read_after.append(self.num_batches)
        return super().read_sums()

    def _total(self, trainer: L.Trainer) -> dict[str, float]:
        self.asked_after.append(self.num_batches)
        reads = list(self.read_after)
        total = super()._total(trainer)
        self.read_after = reads
        return total


class Seen(L.Callback):
    def __init__(self, logger: MemoryLogger) -> None:
        self.logger = logger
        self.logged_at_epoch_end: list[int] = []
        self.at_validation: list[float] = []
        self.at_epoch_end: list[float] = []

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.at_validation.append(float(trainer.callback_metrics["train/loss"]))

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.at_epoch_end.append(float(trainer.callback_metrics["train/loss"]))
        self.logged_at_epoch_end.append(len(self.logger.of("train/loss_epoch")))


def fitted(callbacks: list[L.Callback], logger: MemoryLogger, **keys: Any) -> L.Trainer:
    """Trained for two epochs of seven batches of two images."""
    data: Any = [
        {"image": torch.zeros(2, 3), "target": torch.zeros(2, dtype=torch.int64), "num_counted": 2, "step_images": 2}
        for _ in range(NUM_BATCHES)
    ]
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=2, logger=logger, callbacks=callbacks, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0, **keys,
    )  # fmt: skip
    trainer.fit(Module(), DataLoader(data, batch_size=None), DataLoader(data[:1], batch_size=None))
    return trainer


@pytest.mark.parametrize(
    ("accumulate", "every", "batches"),  # the last batch of each group of log steps, counted from 1 in the whole run
    [
        (1, 1, range(1, 15)),
        (1, 5, (5, 10)),
        (2, 2, (4, 7, 11, 14)),
        (1, 0, ()),  # never
    ],
)
def test_figures_come_at_their_steps_alone(accumulate: int, every: int, batches: tuple[int, ...]) -> None:
    """The last group of an accumulation may be smaller."""
    metrics, logger = Counting(), MemoryLogger()
    seen = Seen(logger)
    callbacks = [LearningRate(lambda epochs: 1 / (1 + epochs)), metrics, seen]
    fitted(callbacks, logger, log_every_n_steps=every, accumulate_grad_batches=accumulate, val_check_interval=4)

    assert metrics.read_after == list(batches)
    assert metrics.asked_after == [4, 7, 11, 14]  # a validation; an epoch's end
    steps = [every * (number + 1) - 1 for number in range(len(batches))]
    begins = [0, *batches]
    means = [
        sum(number % NUM_BATCHES for number in range(begin, end)) / (end - begin)
        for begin, end in zip(begins, batches, strict=False)
    ]
    assert logger.of("train/loss") == pytest.approx(dict(zip(steps, means, strict=True)))
    lasts = [divmod(batch - 1, NUM_BATCHES) for batch in batches]  # of the first batch of each update
    steps_per_epoch = -(-NUM_BATCHES // accumulate)
    rates = [0.5 / (1 + epoch + last // accumulate / steps_per_epoch) for epoch, last in lasts]
    assert logger.of("lr") == pytest.approx(dict(zip(steps, rates, strict=True)))
    for name in ("train/top1", "train/top5", "images_per_s", "data_wait_frac"):
        assert list(logger.of(name)) == steps
    assert logger.of("train/loss_epoch") == {steps_per_epoch - 1: 3.0, 2 * steps_per_epoch - 1: 3.0}
    assert seen.at_validation == [1.5, 1.5]  # of the epoch's four batches so far
    assert seen.at_epoch_end == [3.0, 3.0]
    assert seen.logged_at_epoch_end == [1, 2], "before a checkpoint is written, which no kill then separates from it"


class Lagging(L.Callback):
    """What a resume in mid-epoch leaves behind in Lightning."""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        trainer.fit_loop.epoch_loop._batches_that_stepped -= 1


def test_after_a_resume_steps_are_those_of_the_optimizer() -> None:
    metrics, logger = Counting(), MemoryLogger()
    callbacks = [LearningRate(lambda epochs: epochs), Lagging(), metrics, LearningRateMonitor()]
    trainer = fitted(callbacks, logger, log_every_n_steps=3)
    assert trainer.global_step == 14
    assert list(logger.of("lr")) == [2, 5, 8, 11]
    monitored = logger.of("lr-SGD")
    assert {step: monitored[step] for step in (2, 5, 8, 11)} == logger.of("lr")


def test_sums_are_those_of_a_plain_count() -> None:
    """Over two epochs, of batches of different sizes, read in between. Equal logits are in the order of the classes."""
    torch.manual_seed(0)
    sums, trainer, task = RunningSums(NAMES), L.Trainer(accelerator="cpu", logger=False), OneLabel(7)

    def equal(found: Sums, expected: list[float]) -> bool:
        return found.numbers() == pytest.approx(expected)

    epoch = since = [0.0] * 4
    for step in range(1, 40):
        logits, loss, counted = torch.randn(step % 4 + 1, 7).round(), torch.rand(()), step % 4
        logits[0, 3] = torch.nan if step % 5 == 0 else logits[0, 3]
        target = torch.randint(7, (len(logits),))
        sums.add(task.sums(loss, logits[:counted], target[:counted]))
        orders = [sorted(range(7), key=lambda each, row=row: -row[each]) for row in logits[:counted].tolist()]
        places = [order.index(label) if row.isfinite().all() else 7
                  for order, label, row in zip(orders, target.tolist(), logits, strict=False)]  # fmt: skip
        new = [loss.item(), sum(place < 1 for place in places), sum(place < 5 for place in places), counted]
        epoch, since = ([a + b for a, b in zip(each, new, strict=True)] for each in (epoch, since))
        if step in (5, 23):
            last, so_far = sums.read()
            assert equal(last, new) and equal(so_far, epoch)
        if step == 17:
            sums.begin_epoch()
            epoch = [0.0] * 4
        if step in (11, 29):  # between them, an epoch ends
            assert equal(sums.take(), since)
            since = [0.0] * 4
    assert equal(sums.total(trainer), epoch)
    resumed = RunningSums(NAMES, "cpu", Sums.of(NAMES, epoch))
    assert resumed.take() == Sums.of(NAMES, [0, 0, 0, 0]), "a resumed run logs only its own steps"
    assert Sums.of(NAMES, [3.0, 1, 2, 4]).means() == {"loss": 0.75, "top1": 0.25, "top5": 0.5}


def test_times_of_epochs_of_the_run_and_since_the_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause before a step counts only without begin(); a resumed run goes on with the sums of the first."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def epoch(times: StepTimes, *, data_s: float, rest_s: float, pause_s: float = 0.0) -> None:
        for _ in range(2):
            clock[0] += data_s
            times.data_is_here()
            clock[0] += rest_s
            times.end_step(4)
            clock[0] += pause_s
            times.begin()

    times = StepTimes()
    assert (times.epoch.images_per_s, times.run.data_wait_frac) == (0.0, 0.0)
    times.begin_epoch()
    epoch(times, data_s=1.0, rest_s=3.0, pause_s=50.0)
    times.add_wait(2.0)
    assert (times.last.batch_s, times.last.data_s, times.epoch.batch_s) == (6.0, 1.0, 10.0)
    assert (times.epoch.images_per_s, times.epoch.data_wait_frac) == (0.8, 0.2)
    assert times.epoch == times.run == times.take()
    assert times.take() == Span()

    resumed = StepTimes()
    resumed.load_state_dict(times.state_dict())
    resumed.begin_epoch()
    epoch(resumed, data_s=5.0, rest_s=10.0)
    assert resumed.epoch.images_per_s == pytest.approx(8 / 30)
    assert (resumed.run.images_per_s, resumed.run.data_wait_frac) == (16 / 40, 12 / 40)


@pytest.mark.parametrize(("begun", "kind"), [(False, ConfigError), (True, RunError)])
def test_lightnings_refusals_are_sentences(begun: bool, kind: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "own_place", lambda error: "")  # else this file is code of the user's own
    trainer: Any = L.Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False)
    trainer.callback_metrics["val/top1"] = torch.tensor(0.5)
    known = r"which is not available.* any of the following: `val/top1`. Hint: "
    with pytest.raises(kind, match=known), refusing(lambda: begun):
        EarlyStopping("mine")._run_early_stopping_check(trainer)
    with pytest.raises(kind, match=r"logger.*: no logger. Hint: "), refusing(lambda: begun):
        raise MisconfigurationException("no logger")
    with pytest.raises(RuntimeError, match=r"^another$"), refusing(lambda: begun):
        raise RuntimeError("another")
    with pytest.raises(ModuleNotFoundError if begun else ConfigError), refusing(lambda: begun):
        raise ModuleNotFoundError("No module named 'psutil'")


def test_of_equal_scores_that_with_the_lowest_loss_is_the_best() -> None:
    """With few validation images, many are equal. Where no loss is known, the first stays."""
    best, first = Best("val/top1"), Best("val/top1", value=0.5, epoch=1)
    for epoch, (top1, loss) in enumerate([(0.5, 1.0), (0.5, 0.8), (0.5, 0.9), (0.4, 0.1), (0.5, float("nan"))]):
        metrics = {"val/top1": torch.tensor(top1), "val/loss": torch.tensor(loss)}
        trainer: Any = SimpleNamespace(
            callback_metrics=metrics, sanity_checking=False, current_epoch=epoch, global_step=7 * epoch
        )
        best.update(trainer)
        first.update(trainer)
    assert (best.value, best.epoch, best.step) == (0.5, 2, 7) and best.loss == pytest.approx(0.8)
    assert first.epoch == 1
