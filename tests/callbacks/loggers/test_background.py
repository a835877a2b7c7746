"""A logger whose service fails, hangs or comes late: the training never waits for it, and is told once."""

import itertools
import json
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from lightning.pytorch.loggers.logger import DummyLogger

from imagenet_ddp.callbacks.logger_pictures import LoggerPictures
from imagenet_ddp.callbacks.loggers import background
from imagenet_ddp.callbacks.loggers.background import Background
from imagenet_ddp.errors import ConfigError


class Service(DummyLogger):
    """do: called with (metrics, step) and for the end."""

    def __init__(self, do: Any) -> None:
        super().__init__()
        self.do = do
        self.ended: list[str] = []

    @property
    def experiment(self) -> Any:
        raise OSError("not while there is no service")

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        self.do(metrics, step)

    def finalize(self, status: str) -> None:
        self.ended.append(status)


class Sent(Background, Service):
    all: ClassVar[list["Sent"]] = []

    def __init__(self, folder: Path, do: Any, begin: Any = None) -> None:
        self.prepare(folder, "mine", "http://server")
        Service.__init__(self, do)
        self.begin = begin or (lambda: None)
        self.all.append(self)

    def _open(self) -> None:
        self.begin()
        self.stored["id"] = "7"


@pytest.fixture(autouse=True)
def _wait_for_threads(tmp_path: Path) -> Iterator[None]:
    """Wait until nothing is sent any more: pytest removes the folder of a passed test at once, and a thread stores in
    it what it has sent."""
    yield
    for logger in Sent.all:
        if logger._thread is not None:
            idle: Future = Future()
            logger._waiting.put((lambda: None, idle))
            idle.exception(60)
    Sent.all.clear()


def test_calls_arrive_in_order_and_none_twice(tmp_path: Path) -> None:
    """Also in the next part of the run, which trains the last steps again."""
    calls: list[Any] = []
    first = Sent(tmp_path, lambda *call: calls.append(call))
    first.connect()
    first.log_metrics({"a": 1.0, "epoch": 0}, 3)
    first.log_metrics({"b": 2.0, "epoch": 0}, 3)
    first.log_metrics({"a": 3.0}, 7)
    first.finalize("success")
    assert calls == [({"a": 1.0, "epoch": 0}, 3), ({"b": 2.0}, 3), ({"a": 3.0}, 7)]
    assert first.ended == ["success"]
    assert json.loads((tmp_path / "logger_mine.json").read_text()) == {"id": "7", "steps": {"a": 7, "epoch": 3, "b": 3}}

    second = Sent(tmp_path, lambda *call: calls.append(call))
    assert second.stored["id"] == "7"
    second.connect()
    second.log_metrics({"a": 3.0}, 7)
    second.log_metrics({"b": 4.0}, 7)
    second.log_metrics({"a": 5.0}, 11)
    second.finalize("failed")
    assert calls[3:] == [({"b": 4.0}, 7), ({"a": 5.0}, 11)]


def test_a_failure_is_reported_once_and_ends_it(tmp_path: Path) -> None:
    calls: list[int | None] = []

    def fail(metrics: Any, step: int | None) -> None:
        calls.append(step)
        if step == 2:
            raise OSError("connection lost\nand more")

    logger = Sent(tmp_path, fail)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        logger.connect()
        for step in range(6):
            logger.log_metrics({"a": 0.0}, step)
        logger.finalize("success")
    assert calls == [0, 1, 2]
    assert [str(each.message) for each in caught] == [
        "logger.mine is switched off, and the training continues without it: connection lost.",
        "logger.mine lost 5 messages: connection lost. "
        "metrics.csv in the run folder still contains the metrics of each epoch.",  # and the end
    ]


def test_a_server_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "END_S", 0.2)
    monkeypatch.setattr(background, "MAX_WAITING", 50)
    released = threading.Event()
    logger = Sent(tmp_path, lambda *_: released.wait(120))
    logger.connect()
    start_s = time.monotonic()
    for step in range(3):
        logger.log_metrics({"a": 0.0}, step)
    with pytest.warns(UserWarning, match="mine lost 4 messages: http://server did not accept the remaining messages"):
        logger.finalize("success")
    assert time.monotonic() - start_s < 60
    assert len(logger.unsent) == 3
    released.set()


def test_more_than_can_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background, "MAX_WAITING", 5)
    released = threading.Event()
    logger = Sent(tmp_path, lambda *_: released.wait(120))
    logger.connect()
    logger.log_metrics({"a": 0.0}, 0)
    while logger._waiting.qsize():  # until the thread has taken it
        time.sleep(0.01)
    for step in range(1, 6):
        logger.log_metrics({"a": 0.0}, step)
    with pytest.warns(UserWarning, match="training continues without it: 5 messages are waiting to be sent"):
        logger.log_metrics({"a": 0.0}, 20)
    released.set()
    with pytest.warns(UserWarning, match="mine lost"):
        logger.finalize("success")


def test_a_service_that_does_not_begin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError("no key")

    first = Sent(tmp_path, None, refuse)
    first.stored["id"] = "7"  # as W&B's and Comet's, which is chosen here
    with pytest.raises(
        ConfigError, match=r"mine must be able to reach http://server, but cannot: no key\. Hint: set logger=none\."
    ):
        first.connect()  # without the warning that the training continues
    monkeypatch.setattr(background, "START_S", 0.2)
    released = threading.Event()
    with pytest.raises(ConfigError, match="there was no answer in 0 s"):
        Sent(tmp_path, None, lambda: released.wait(120)).connect()
    released.set()
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_goes_on_without_its_service(tmp_path: Path) -> None:
    """And the part after that sends what this one could not."""
    calls: list[Any] = []
    first = Sent(tmp_path, lambda *call: calls.append(call))
    first.connect()
    first.log_metrics({"a": 1.0}, 3)
    first.finalize("success")

    def refuse() -> None:
        raise PermissionError("no key")

    second = Sent(tmp_path, None, refuse)
    with pytest.warns(UserWarning, match="mine is switched off, and the training continues without it: no key"):
        second.connect()
    second.experiment.log("by a callback of one's own")
    second.log_metrics({"a": 2.0}, 7)
    with pytest.warns(UserWarning, match="mine lost 3 messages: no key"):  # the beginning, and the end
        second.finalize("failed")
    assert list(second.unsent) == [({"a": 2.0}, 7)]


def test_a_picture_that_cannot_be_drawn_does_not_end_a_training(tmp_path: Path) -> None:
    """Bytes of a folder's name that are no text."""
    source = SimpleNamespace(labels=["cat", "d\udcff"])
    strategy = SimpleNamespace(reduce=lambda counts, reduce_op: counts)
    trainer: Any = SimpleNamespace(
        datamodule=SimpleNamespace(source=source), is_global_zero=True, sanity_checking=False, strategy=strategy
    )
    module: Any = SimpleNamespace(device="cpu")
    callback = LoggerPictures(tmp_path, {})
    callback.on_validation_start(trainer, module)
    batch = {"target": torch.tensor([0, 1])}
    callback.on_validation_batch_end(trainer, module, {"logits": torch.eye(2)}, batch, 0)
    with pytest.warns(UserWarning, match="confusion_matrix.png cannot be drawn"):
        callback.on_train_end(trainer, module)


def test_what_waits_is_in_the_checkpoint(tmp_path: Path) -> None:
    """A kill would lose it, and its steps are not trained again."""
    released = threading.Event()
    first = Sent(tmp_path, lambda *_: released.wait(120))
    first.connect()
    first.log_metrics({"a": np.float64(1.0), "picture": [object()]}, 3)  # as WandbLogger.log_image does
    callback = LoggerPictures(tmp_path, {})
    trainer: Any = type("T", (), {"loggers": [first], "is_global_zero": True})()
    callback.setup(trainer, None, "fit")  # type: ignore[arg-type]
    state = callback.state_dict()
    torch.save(state, tmp_path / "last.ckpt")
    state = torch.load(tmp_path / "last.ckpt", weights_only=True)
    assert state == {"mine": [({"a": 1.0}, 3)]}

    calls: list[Any] = []
    second = Sent(tmp_path, lambda *call: calls.append(call))
    second.connect()
    trainer.loggers = [second]
    resumed = LoggerPictures(tmp_path, {})
    resumed.setup(trainer, None, "fit")  # type: ignore[arg-type]
    resumed.load_state_dict(state)
    resumed.on_train_start(trainer, None)  # type: ignore[arg-type]
    second.finalize("success")
    assert calls == [({"a": 1.0}, 3)]
    assert resumed.state_dict() == {}
    released.set()


@pytest.mark.parametrize("can_be_asked", [False, True])
def test_no_kill_loses_a_message(can_be_asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Resumed from the checkpoint of any moment after a kill at any later one. Only a kill after a message is sent, and
    before that is noted, sends it again, unless the service can be asked."""
    sent: list[Any] = []
    calls: deque[Callable[[], Any]] = deque()  # what the thread has still to do
    monkeypatch.setattr(Sent, "_put", lambda self, call: calls.append(call))
    moments: list[tuple[int, list[Any], str, list[Any], bool]] = []
    file = tmp_path / "logger_mine.json"
    trained = 0

    def remember(is_noted: bool = True) -> None:
        noted = file.read_text() if file.exists() else ""
        moments.append((trained, list(logger.unsent), noted, list(sent), is_noted))

    def send(metrics: Any, step: int | None) -> None:
        remember()
        sent.append(step)
        remember(is_noted=False)

    logger = Sent(tmp_path, send)
    steps = range(1, 8, 2)
    for trained in steps:
        logger.log_metrics({"a": 0.0}, trained)
        remember()
        if len(calls) > 2:  # the service is behind
            calls.popleft()()
            remember()
    while calls:
        calls.popleft()()
        remember()

    for checkpoint, killed in itertools.combinations_with_replacement(moments, 2):
        file.write_text(killed[2] or "{}")
        arrived = list(killed[3])
        resumed = Sent(tmp_path, lambda metrics, step, arrived=arrived: arrived.append(step))
        if can_be_asked:
            monkeypatch.setattr(resumed, "_last_steps", lambda arrived=arrived: {"a": max(arrived, default=-1)})
        resumed._begin()
        for metrics, step in [*checkpoint[1], *(({"a": 0.0}, step) for step in steps if step > checkpoint[0])]:
            resumed.log_metrics(metrics, step)
            calls.popleft()()
        again = [] if killed[4] or can_be_asked else [killed[3][-1]]
        assert arrived == sorted([*steps, *again])
