"""However and wherever a training ends, the next one continues it: the same weights, each image once per epoch."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from helpers.in_memory import Images
from lightning.pytorch.callbacks import (
    EarlyStopping,
    EMAWeightAveraging,
    ModelCheckpoint,
)
from torch import nn

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.run_end import TimeLimit
from imagenet_ddp.callbacks.run_files import History
from imagenet_ddp.callbacks.sequence import in_order
from imagenet_ddp.callbacks.time_budget import TimeBudget
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.callbacks.weight_average import WeightAverage
from imagenet_ddp.config.schema.learning import AveragingConfig
from imagenet_ddp.config.schema.losses import CrossEntropy
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.lightning_module import ImageClassifier
from imagenet_ddp.models.losses import Loss
from imagenet_ddp.models.task import OneLabel
from imagenet_ddp.runs.checkpoint_file import KEY, read
from imagenet_ddp.runs.checkpoint_io import BackgroundCheckpointIO
from imagenet_ddp.runs.signals import Signals, Stopped

NUM_IMAGES, BATCH, EPOCHS = 29, 4, 3  # 8 steps, the last two smaller
STEPS = 8


class Watch(L.Callback):
    """What is trained on, and what each validation scores; at training step `step` of this session, or in the
    validation after it, `act` is called."""

    def __init__(self, step: int = 0, act: Callable[[L.Trainer], None] | None = None, in_validation: bool = False):
        self.step, self.act, self.in_validation = step, act, in_validation
        self.steps = 0
        self.seen: dict[int, list[int]] = {}
        self.scores: list[tuple[float, torch.Tensor]] = []  # val/top1 and the weights that reached it

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.seen.setdefault(trainer.current_epoch, []).extend(batch["index"].tolist())
        self.steps += 1
        if self.act and self.steps == self.step and not self.in_validation:
            self.act(trainer)

    def on_validation_batch_start(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if self.act and self.steps == self.step and self.in_validation:
            self.act(trainer)

    def on_validation_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.scores.append((float(trainer.callback_metrics["val/top1"]), pl_module.net[0].weight.detach().clone()))


class Scored(ImageClassifier):
    """With a val/top1 as given, one after the other."""

    scores: Iterator[float] = iter(())

    def on_validation_epoch_end(self) -> None:
        super().on_validation_epoch_end()
        if (score := next(self.scores, None)) is not None:
            self.log("val/top1", torch.tensor(score))


def train(
    folder: Path,
    *watches: L.Callback,
    signals: Signals | None = None,
    saving: Mapping[str, Any] | None = None,
    scores: Iterable[float] = (),
    is_over: bool = False,
    **keys: Any,
) -> ResumeCheckpoint:
    """Train, from last.ckpt in the folder where there is one."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 4), nn.Tanh(), nn.Flatten(), nn.Linear(8, 5), nn.Dropout(0.2))
    classifier = Scored(
        net, 5, NUM_IMAGES, make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.9),
        task=OneLabel(5, Loss(CrossEntropy(label_smoothing=0.1), 5)), seed=0,
    )  # fmt: skip
    classifier.scores = iter(scores)
    transform = {
        "image_size": 64, "val_resize": 64, "interpolation": "bilinear", "mean": [0.5] * 3, "std": [0.5] * 3,
    }  # fmt: skip
    contents = {"config": {"data": {}, "model": {}}, "eval_transform": transform}
    contents |= {"classes": list("abcde"), "labels": list("abcde")}
    contents |= {"experiment": None, "images_per_update": 1, "num_train_images": NUM_IMAGES, "images_digest": ""}
    checkpoint = ResumeCheckpoint(folder, **saving or {}, contents=contents)
    checkpoint.is_over = is_over
    callbacks: list[Any] = [LearningRate(lambda epochs: 1 / (1 + epochs)), TrainLog(), *watches, checkpoint]
    trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, plugins=[BackgroundCheckpointIO()], enable_progress_bar=False,
        enable_model_summary=False, use_distributed_sampler=False, log_every_n_steps=1,
        callbacks=in_order(callbacks, signals or Signals()),
        **{"max_epochs": EPOCHS, "num_sanity_val_steps": 0, **keys},
    )  # fmt: skip
    path = checkpoint.last_path if checkpoint.last_path.exists() else None
    trainer.fit(classifier, datamodule=Images(NUM_IMAGES, NUM_IMAGES, BATCH, size=4), ckpt_path=path, weights_only=True)
    return checkpoint


def assert_continued(whole: Path, parts: Path, watches: list[Watch]) -> None:
    seen: dict[int, list[int]] = {}
    for watch in watches:
        for epoch, images in watch.seen.items():
            seen.setdefault(epoch, []).extend(images)
    once = list(range(NUM_IMAGES))
    assert {epoch: sorted(images) for epoch, images in seen.items()} == dict.fromkeys(range(EPOCHS), once)
    one, other = read(whole / "last.ckpt"), read(parts / "last.ckpt")
    for name, tensor in one["state_dict"].items():
        assert torch.equal(tensor, other["state_dict"][name]), name
    assert other[KEY]["kind"] == "epoch_end"
    assert other[KEY]["epoch"] == EPOCHS - 1


@pytest.fixture(scope="module")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    made: dict[str, Path] = {}

    def whole(**keys: Any) -> Path:
        if str(keys) not in made:
            made[str(keys)] = tmp_path_factory.mktemp("whole")
            train(made[str(keys)], Watch(), **keys)
        return made[str(keys)]

    return whole


PLANS: list[dict[str, Any]] = [
    {},
    {"accumulate_grad_batches": 3},
    {"val_check_interval": 3},
    {"val_check_interval": 3, "accumulate_grad_batches": 2},
]


@pytest.mark.parametrize(
    ("keys", "where"),
    [
        (PLANS[1], "training"), *(pytest.param(keys, "training", marks=pytest.mark.slow(3)) for keys in PLANS[2:]),
        (PLANS[3], "validation"), (PLANS[1], "epoch end"),
    ],
    ids=str,
)  # fmt: skip
def test_a_signal_anywhere(tmp_path: Path, wholes: Callable[..., Path], keys: dict[str, Any], where: str) -> None:
    steps: Iterable[int] = (3, 6) if "val_check_interval" in keys else (STEPS,)
    if where == "training":
        steps = range(1, STEPS + 2) if keys is PLANS[3] else (1, 2, 3, STEPS, STEPS + 1)
    for step in (STEPS, 2 * STEPS) if where == "epoch end" else steps:
        signals = Signals()

        def stop(trainer: L.Trainer, signals: Signals = signals) -> None:
            signals.received = 15

        parts, first, second = tmp_path / str(step), Watch(step, stop, where == "validation"), Watch()
        if where == "epoch end":
            first.on_train_epoch_end = lambda trainer, module, watch=first, stop=stop: (  # type: ignore[method-assign]
                stop(trainer) if watch.steps == watch.step else None
            )
            first.act = None
        with pytest.raises(Stopped):
            train(parts, first, signals=signals, **keys)
        assert first.steps - step < keys.get("accumulate_grad_batches", 1), "at the end of the update"
        train(parts, second, **keys)
        assert_continued(wholes(**keys), parts, [first, second])
        num_validations = EPOCHS * (STEPS // 3) + 1 if "val_check_interval" in keys else EPOCHS  # 1: the last state
        assert len(first.scores) + len(second.scores) == num_validations, "none is lost"


@pytest.mark.parametrize(
    ("keys", "way"),
    [
        ({}, "max_steps"), (PLANS[1], "should_stop"),
        pytest.param(PLANS[2], "should_stop", marks=pytest.mark.slow(2)),
    ],
    ids=str,
)  # fmt: skip
def test_an_epoch_that_is_cut_short(
    tmp_path: Path, wholes: Callable[..., Path], keys: dict[str, Any], way: str
) -> None:
    """last.ckpt is there, whatever every_n_epochs is, and the rest of the epoch is trained later."""
    accumulate = keys.get("accumulate_grad_batches", 1)
    for cut in (3, 6, STEPS, STEPS + 3):
        parts, watches = tmp_path / str(cut), [Watch(), Watch()]
        extra: dict[str, Any] = {}
        if way == "max_steps":
            extra = {"max_steps": cut // accumulate}
        else:  # as Lightning's timer and early stopping do
            watches[0] = Watch(cut, lambda trainer: setattr(trainer, "should_stop", True))
        train(parts, watches[0], saving={"every_n_epochs": 10}, **keys, **extra)
        stored = read(parts / "last.ckpt")[KEY]
        assert watches[0].steps % STEPS % accumulate == 0, "at the end of an update"
        assert (stored["kind"] == "epoch_end") == (watches[0].steps % STEPS == 0)
        assert stored["epoch"] + (stored["kind"] == "epoch_end") == watches[0].steps // STEPS
        train(parts, watches[1], **keys)
        assert_continued(wholes(**keys), parts, watches)


@pytest.mark.parametrize(
    ("keys", "saving"),
    [
        (PLANS[1], {"every_n_steps": 1}), pytest.param(PLANS[0], {"every_n_epochs": 2}, marks=pytest.mark.slow(2)),
        pytest.param(PLANS[3], {"every_n_steps": 2}, marks=pytest.mark.slow(2)),
    ],
    ids=str,
)  # fmt: skip
def test_a_crash_anywhere(
    tmp_path: Path, wholes: Callable[..., Path], keys: dict[str, Any], saving: dict[str, Any]
) -> None:
    """What was trained since last.ckpt is trained again."""

    def crash(trainer: L.Trainer) -> None:
        raise ValueError("power cut")

    update = keys.get("accumulate_grad_batches", 1)
    validated = 6 if "val_check_interval" in keys else STEPS
    for step in (2, 5, validated, STEPS + 5, 2 * STEPS + 7):
        for in_validation in (False, True) if step == validated else (False,):
            parts, first = tmp_path / f"{step}{in_validation}", Watch(step, crash, in_validation)
            with pytest.raises(ValueError, match="power cut"):
                train(parts, first, saving=saving, **keys)
            train(parts, second := Watch(), saving=saving, **keys)
            one, other = read(wholes(**keys) / "last.ckpt"), read(parts / "last.ckpt")
            assert all(torch.equal(one["state_dict"][name], other["state_dict"][name]) for name in one["state_dict"])
            if "every_n_epochs" not in saving:
                again = first.steps + second.steps - EPOCHS * STEPS
                assert again <= update * saving.get("every_n_steps", 1), "no more than since the last file"


@pytest.mark.parametrize("keys", [{}, {"val_check_interval": 3}], ids=str)
def test_best_holds_the_weights_that_scored(tmp_path: Path, keys: dict[str, Any]) -> None:
    """A run can be continued from it as from any checkpoint."""
    watch = Watch()
    checkpoint = train(
        tmp_path / "whole", watch, saving={"every_n_epochs": 2}, scores=[0.2, 0.9, 0.4, 0.95, 0.3, 0.1], **keys
    )
    best, weights = max(watch.scores, key=lambda pair: pair[0])
    stored = read(checkpoint.best_path)
    assert stored[KEY]["best_score"] == checkpoint.best.value == pytest.approx(best)
    assert torch.equal(stored["state_dict"]["net.0.weight"], weights)
    assert stored[KEY]["kind"] == ("mid_epoch" if keys else "epoch_end")

    parts = tmp_path / "parts"
    parts.mkdir()
    checkpoint.best_path.rename(parts / "last.ckpt")
    train(parts, Watch(), **keys)
    one, other = read(tmp_path / "whole/last.ckpt"), read(parts / "last.ckpt")
    assert all(torch.equal(one["state_dict"][name], other["state_dict"][name]) for name in one["state_dict"])


@pytest.mark.parametrize(("is_over", "patience", "epochs"), [(True, 1, 2), (False, 1, 3), (False, 3, 4)])
def test_what_early_stopping_has_ended(tmp_path: Path, is_over: bool, patience: int, epochs: int) -> None:
    """It ends at once where it is resumed as it was, and has the patience that is set now."""
    scores = [0.3, 0.2, 0.4, 0.1, 0.1]
    train(tmp_path, EarlyStopping("val/top1", patience=1, mode="max"), scores=scores, max_epochs=20)
    stopping, watch = EarlyStopping("val/top1", patience=patience, mode="max"), Watch()
    checkpoint = train(tmp_path, stopping, watch, scores=[0.1] * 5, max_epochs=20, is_over=is_over)
    assert read(checkpoint.last_path)["epoch"] + 1 == epochs


@pytest.mark.parametrize("every", [{"every_n_train_steps": STEPS}, {"save_on_train_epoch_end": False}], ids=str)
def test_a_checkpoint_of_the_users_own(tmp_path: Path, wholes: Callable[..., Path], every: dict[str, Any]) -> None:
    """Written by Lightning's callback, before or after the validation at an epoch's end, which is not lost."""
    first, second = Watch(), Watch()
    own = ModelCheckpoint(tmp_path / "own", "{step}", save_top_k=-1, **every)
    train(tmp_path / "first", first, own, scores=[0.9, 0.1, 0.1])
    (tmp_path / "second").mkdir()
    (tmp_path / "own" / f"step={STEPS}.ckpt").rename(tmp_path / "second/last.ckpt")
    scores = [0.9, 0.1, 0.1] if "every_n_train_steps" in every else [0.1, 0.1]
    checkpoint = train(tmp_path / "second", second, scores=scores)
    assert len(second.scores) == len(scores)
    assert (checkpoint.best.value, checkpoint.best.epoch) == (pytest.approx(first.scores[0][0]), 1)
    assert read(checkpoint.best_path)[KEY]["best_epoch"] == 1
    del first.seen[1], first.seen[2]
    assert_continued(wholes(), tmp_path / "second", [first, second])


def test_a_checkpoint_of_the_users_own_has_the_row_of_its_epoch(tmp_path: Path) -> None:
    own = ModelCheckpoint(tmp_path / "own", "{epoch}", save_top_k=-1, save_on_train_epoch_end=True)
    train(tmp_path, History(tmp_path, curves=False), own, max_epochs=2)
    state = read(tmp_path / "own/epoch=0.ckpt")["callbacks"]["History"]
    assert [row["epoch"] for row in state["rows"]] == [1]


def test_a_checkpoint_that_is_written_for_an_error_is_not_resumed(tmp_path: Path) -> None:
    """It would leave out the batch, or the validation, in which the error was raised."""

    def fail(trainer: L.Trainer) -> None:
        raise ValueError("of a callback")

    own = ModelCheckpoint(tmp_path, "last", save_on_exception=True)
    with pytest.raises(ValueError, match="of a callback"):
        train(tmp_path, Watch(3, fail), own)
    with pytest.raises(ConfigError, match=r"last.ckpt must be written between two steps to be resumed"):
        train(tmp_path)


AVERAGES: dict[str, Callable[[], L.Callback]] = {
    "Lightning's": lambda: EMAWeightAveraging(decay=0.5),
    "ema": lambda: WeightAverage(0.5),
    "ema, some steps": lambda: WeightAverage(0.5, every_n_steps=3, start_epoch=1),
    "swa": lambda: WeightAverage(None),
}


@pytest.mark.parametrize("name", [*AVERAGES])
@pytest.mark.parametrize("cut", [3, pytest.param(STEPS, marks=pytest.mark.slow(1))])
def test_a_stop_beside_an_average_of_the_weights(tmp_path: Path, name: str, cut: int) -> None:
    """At an epoch's end it stops in the validation, which has the average in the weights' place."""
    checkpoint = train(tmp_path / "whole", AVERAGES[name](), max_epochs=2)
    signals = Signals()
    watch = Watch(cut, lambda trainer: setattr(signals, "received", 15), in_validation=cut == STEPS)
    with pytest.raises(Stopped):
        train(tmp_path / "parts", watch, AVERAGES[name](), signals=signals, max_epochs=2)
    train(tmp_path / "parts", AVERAGES[name](), max_epochs=2)
    one, other = read(checkpoint.last_path), read(tmp_path / "parts/last.ckpt")
    for state in ("state_dict", "current_model_state", "averaging_state"):
        assert all(torch.equal(one[state][name], other[state][name]) for name in one[state]), state


def test_an_average_that_is_to_begin_later_is_forgotten(tmp_path: Path) -> None:
    """A resume with more epochs moves the first averaged epoch, which is a share of them."""
    whole = train(tmp_path / "whole", max_epochs=3)
    train(tmp_path / "parts", WeightAverage(None, start_epoch=1), max_epochs=2)
    assert "averaging_state" in read(tmp_path / "parts/last.ckpt")
    train(tmp_path / "parts", WeightAverage(None, start_epoch=9), max_epochs=3)
    one, other = read(whole.last_path), read(tmp_path / "parts/last.ckpt")
    assert "averaging_state" not in other
    assert all(torch.equal(one["state_dict"][name], other["state_dict"][name]) for name in one["state_dict"])


ENDS: list[dict[str, Any]] = [
    {"max_steps": 2 * STEPS + 6},
    {"max_steps": 2 * STEPS + 6, "val_check_interval": 4},
    {"max_epochs": 2, "check_val_every_n_epoch": 3},
    {"max_epochs": 2, "val_check_interval": 3},
    {"max_epochs": 1, "check_val_every_n_epoch": None, "val_check_interval": 5},
    {"max_epochs": 1, "val_check_interval": timedelta(hours=1)},
    {"max_epochs": 2, "check_val_every_n_epoch": 3, "accumulate_grad_batches": 3},
]


@pytest.mark.parametrize(
    "keys", [*ENDS[:2], *(pytest.param(each, marks=pytest.mark.slow(2)) for each in ENDS[2:])], ids=str
)
def test_the_last_state_is_validated(tmp_path: Path, keys: dict[str, Any]) -> None:
    """Once, also if a signal stops the run right before that validation or in it, or if it dies there."""
    whole = train(tmp_path / "whole", watch := Watch(), **keys)
    assert torch.equal(watch.scores[-1][1], read(whole.last_path)["state_dict"]["net.0.weight"])
    assert whole.best_path.exists()
    for step, in_validation in ((watch.steps, True), (watch.steps, False), (watch.steps - 1, False)):
        parts, signals = tmp_path / f"{step}{in_validation}", Signals()
        first = Watch(step, lambda trainer, signals=signals: setattr(signals, "received", 15), in_validation)
        with pytest.raises(Stopped):
            train(parts, first, signals=signals, **keys)
        again = train(parts, second := Watch(), **keys)
        assert again.best == whole.best and again.best_path.exists()
        assert [score for score, _ in first.scores + second.scores] == [score for score, _ in watch.scores]
        one, other = read(whole.last_path), read(again.last_path)
        assert all(torch.equal(one["state_dict"][name], other["state_dict"][name]) for name in one["state_dict"])
        assert other[KEY] == one[KEY]
        train(parts, third := Watch(), **keys)
        assert (third.steps, third.scores) == (0, []), "nothing is left"


def test_a_validation_that_a_resume_completed_is_not_made_again(tmp_path: Path) -> None:
    """Stopped in the validation at an epoch's end, then at the end of the next epoch."""
    keys: dict[str, Any] = {"val_check_interval": 4, "check_val_every_n_epoch": None, "max_steps": 2 * STEPS + 4}
    train(tmp_path / "whole", whole := Watch(), **keys)
    signals, later = Signals(), Signals()
    first = Watch(STEPS, lambda trainer: setattr(signals, "received", 15), in_validation=True)
    watches = [first, StopsAtEpochEnd(later), Watch()]
    for watch, its_signals in zip(watches, (signals, later, Signals()), strict=True):
        with nullcontext() if watch is watches[-1] else pytest.raises(Stopped):
            train(tmp_path / "parts", watch, signals=its_signals, **keys)
    assert [score for watch in watches for score, _ in watch.scores] == [score for score, _ in whole.scores]


class Steps(TimeLimit):
    """A clock that counts steps."""

    def elapsed_s(self, trainer: L.Trainer) -> float:
        return trainer.fit_loop.total_batch_idx + 1

    def stored_s(self, checkpoint: Mapping[str, Any]) -> float:
        return checkpoint["global_step"]


class Kills(Steps):
    """Ends the process when the run is about to find that the time is over."""

    def elapsed_s(self, trainer: L.Trainer) -> float:
        if super().elapsed_s(trainer) >= self.limit_s:
            raise RuntimeError("killed")
        return 0


@pytest.mark.parametrize(
    ("keys", "limit", "steps"),
    [({}, 5, 5), ({}, STEPS, STEPS), ({"accumulate_grad_batches": 3}, 4, 6), ({"val_check_interval": 4}, 4, 4)],
    ids=str,
)
def test_a_time_limit_ends_the_training_after_an_update(
    tmp_path: Path, keys: dict[str, Any], limit: int, steps: int
) -> None:
    keys["check_val_every_n_epoch"] = 9
    checkpoint = train(tmp_path, watch := Watch(), Steps(limit), **keys)
    assert (watch.steps, len(watch.scores)) == (steps, 1), "the last state is validated"
    stored = read(checkpoint.last_path)[KEY]
    assert stored["ended_by"] == "trainer.max_time"
    train(tmp_path, again := Watch(), Steps(limit), is_over=True)
    assert (again.steps, again.scores) == (0, [])
    train(tmp_path, again := Watch(), Steps(99))
    assert watch.steps + again.steps == EPOCHS * STEPS

    signals = Signals()  # at the same step
    first = Watch(watch.steps, lambda trainer: setattr(signals, "received", 15))
    with pytest.raises(Stopped):
        train(tmp_path / "parts", first, Steps(limit), signals=signals, **keys)
    assert read(tmp_path / "parts/last.ckpt")[KEY]["ended_by"] == "trainer.max_time"
    train(tmp_path / "parts", again := Watch(), Steps(limit), is_over=True, **keys)
    assert (again.steps, len(again.scores)) == (0, 1)
    assert read(tmp_path / "parts/last.ckpt")[KEY] == stored


@pytest.mark.parametrize(("limit", "least", "steps"), [(5, None, 5), (5, 1, STEPS)])
def test_a_run_killed_before_a_time_limit_could_end_it_trains_no_further_step(
    tmp_path: Path, limit: int, least: int | None, steps: int
) -> None:
    keys: dict[str, Any] = {"saving": {"every_n_steps": 1}, "min_epochs": least}
    watch = Watch()
    with pytest.raises(RuntimeError, match="killed"):
        train(tmp_path, watch, Kills(limit), **keys)
    checkpoint = train(tmp_path, again := Watch(), Steps(limit), **keys)
    assert (watch.steps + again.steps, len(again.scores)) == (steps, 1), "the last state is validated"
    assert read(checkpoint.last_path)[KEY]["ended_by"] == "trainer.max_time"


class PassesInSaving(TimeLimit):
    """A clock that passes its limit while the first epoch is saved."""

    has_saved = False

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.has_saved = True

    def elapsed_s(self, trainer: L.Trainer) -> float:
        return 2.0 if self.has_saved else 0.0


def test_a_time_limit_that_passes_while_an_epoch_is_saved_ends_the_next_one(tmp_path: Path) -> None:
    """The state after the epoch, neither validated nor saved as the last one, would be the end."""
    checkpoint = train(tmp_path, watch := Watch(), PassesInSaving(1.0), check_val_every_n_epoch=9)
    assert (watch.steps, len(watch.scores)) == (STEPS + 1, 1), "the last state is validated"
    assert read(checkpoint.last_path)[KEY]["ended_by"] == "trainer.max_time"


class Budget(TimeBudget):
    """A step takes 10 s, and a validation none."""

    def _time_steps(self, trainer: L.Trainer, pl_module: L.LightningModule) -> tuple[float, int]:
        return 10.0, STEPS

    def on_sanity_check_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._val_begin_s = time.monotonic()
        super().on_sanity_check_end(trainer, pl_module)


@pytest.mark.parametrize(
    ("step", "minutes", "most", "epochs", "steps"),
    [
        (STEPS, 4.2, 10, 3, 3 * STEPS),  # as before
        (STEPS, 5.6, 10, 5, 5 * STEPS),  # four more
        (STEPS, 5.6, 2, 2, 2 * STEPS),
        (STEPS + 3, 4.2, 10, 3, 3 * STEPS),
        (STEPS + 3, 5.6, 10, 6, STEPS + 5 * 7),  # 33 more steps, 7 in each of five epochs, of which 3 are done
    ],
)
def test_a_resume_keeps_the_choice_of_the_time_budget_unless_it_is_asked_for_another(
    tmp_path: Path, step: int, minutes: float, most: int, epochs: int, steps: int
) -> None:
    said: list[str] = []

    def budget(minutes: float) -> TimeBudget:
        return Budget(minutes, time.monotonic(), said.append, AveragingConfig("swa").first_epoch)

    signals = Signals()
    first = Watch(step, lambda trainer: setattr(signals, "received", 15), in_validation=step == STEPS)
    if step == STEPS:
        first = StopsAtEpochEnd(signals)
    with pytest.raises(Stopped):
        train(tmp_path, budget(4.2), first, signals=signals, max_epochs=10)
    assert len(said) == 1 and said[0].startswith("budget_min=4.2 allows 3 epochs, each a pass over all images: ")
    average, second = WeightAverage(None, start_epoch=99), Watch()
    checkpoint = train(tmp_path, second_budget := budget(minutes), second, average, max_epochs=most)
    assert (len(said) == 1) == (minutes == 4.2 and most == 10)
    assert first.steps + second.steps == steps
    stored = read(checkpoint.last_path)
    assert stored[KEY]["ended_by"] == ("trainer.max_epochs" if epochs == most else "budget_min")
    assert f"trainer.max_epochs={most} limits" in said[-1] or epochs != most
    val_s = stored["callbacks"]["Budget"]["measured"]["val_s"]
    assert second_budget.limit_s == pytest.approx(66 * minutes - 4 - val_s), "room for the last validation and files"
    assert average.start_epoch == AveragingConfig("swa").first_epoch(epochs) and "averaging_state" in stored
    assert all(sorted(images) == list(range(NUM_IMAGES)) for images in second.seen.values() if len(images) > 28)


def test_early_stopping_is_named_by_what_it_ended_for(tmp_path: Path) -> None:
    for name, stopping in (
        ("patience", EarlyStopping("val/top1", mode="max", patience=1)),
        ("stopping_threshold", EarlyStopping("val/top1", mode="max", stopping_threshold=0.1)),
    ):
        checkpoint = train(tmp_path / name, stopping, scores=[0.3, 0.2], max_epochs=20)
        assert read(checkpoint.last_path)[KEY]["ended_by"] == f"callbacks.{name}"


@pytest.mark.parametrize("step", [STEPS, STEPS + 3])
def test_only_the_start_of_a_run_is_validated_before_it(tmp_path: Path, step: int) -> None:
    whole, counted = tmp_path / "whole", Watch()
    train(whole, counted, num_sanity_val_steps=-1)
    signals = Signals()
    first = Watch(step, lambda trainer: setattr(signals, "received", 15), in_validation=step == STEPS)
    parts = tmp_path / "parts"
    with pytest.raises(Stopped):
        train(parts, first, signals=signals, num_sanity_val_steps=-1)
    second = StopsAtEpochEnd(signals := Signals())
    with pytest.raises(Stopped):  # at the end of the second epoch
        train(parts, second, signals=signals, num_sanity_val_steps=-1)
    train(parts, third := Watch(), num_sanity_val_steps=-1)
    assert_continued(whole, parts, [first, second, third])
    scores = [score for watch in (first, second, third) for score, _ in watch.scores]
    assert scores == [score for score, _ in counted.scores]


class StopsAtEpochEnd(Watch):
    def __init__(self, signals: Signals):
        super().__init__()
        self.signals = signals

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: Any) -> None:
        self.signals.received = 15


@pytest.mark.parametrize("limit", [3, 5])
def test_a_limit_that_is_no_more_than_what_is_trained_already(tmp_path: Path, limit: int) -> None:
    signals = Signals()
    with pytest.raises(Stopped):
        train(tmp_path, Watch(5, lambda trainer: setattr(signals, "received", 15)), signals=signals, max_epochs=1)
    watch = Watch()
    train(tmp_path, watch, max_epochs=1, limit_train_batches=limit)
    assert (watch.steps, len(watch.scores)) == (0, 1)
    assert read(tmp_path / "last.ckpt")[KEY]["kind"] == "epoch_end"
