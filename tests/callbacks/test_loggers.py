"""A logger whose service fails, hangs or comes late: the training never waits for it, and is told once."""

import json
import shutil
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

import pytest
from lightning.pytorch.loggers.logger import DummyLogger

from imagenet_ddp.callbacks import background_logger, loggers
from imagenet_ddp.callbacks.background_logger import Background
from imagenet_ddp.errors import ConfigError


class Sent(Background):
    """do: called with (metrics, step). begin: called when the run begins."""

    all: ClassVar[list["Sent"]] = []
    server = "http://server"

    def __init__(self, folder: Path, do: Any, begin: Any = None) -> None:
        super().__init__(folder, "mine", None, {})
        self.do, self.begin, self.ended = do, begin or (lambda: None), list[str]()
        self.all.append(self)

    def _open(self) -> Any:
        self.begin()
        self.id = "7"
        logger: Any = DummyLogger()
        logger.log_metrics = self.do
        return logger

    def _close(self, status: str) -> None:
        self.ended.append(status)


@pytest.fixture(autouse=True)
def _wait_for_threads(tmp_path: Path) -> Iterator[None]:
    """Wait until nothing is sent any more: pytest removes the folder of a passed test at once, and a thread stores in
    it what it has sent."""
    yield
    for logger in Sent.all:
        idle: Future = Future()
        logger._waiting.put((lambda: None, idle))
        idle.exception(60)
    Sent.all.clear()


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
    (said,) = caught
    assert str(said.message).startswith("logger.mine is switched off: connection lost. The run continues without it")


def test_a_copied_folder_begins_a_run_of_its_own(tmp_path: Path) -> None:
    """A moved folder continues its run."""

    def origin(name: str) -> tuple[str | None, dict[str, str]]:
        logger = Sent(tmp_path / name, None)
        Sent.all.remove(logger)  # it has no thread
        return logger.id, logger.origin

    (tmp_path / "r").mkdir()
    Sent(tmp_path / "r", None).connect()
    assert origin("r") == ("7", {})
    (tmp_path / "r").rename(tmp_path / "moved")
    assert origin("moved") == ("7", {})
    Sent(tmp_path / "moved", None).connect()
    shutil.copytree(tmp_path / "moved", tmp_path / "copy")
    assert origin("copy") == (None, {"folder": str(tmp_path / "moved"), "run": "7"})
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    assert origin("link") == ("7", {})


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"id": 3}', '{"id": "7", "folder": []}', "[" * 100_000])
def test_without_the_id_of_a_run_a_new_one_begins(content: str, tmp_path: Path) -> None:
    (tmp_path / "logger_mine.json").write_text(content)
    logger = Sent(tmp_path, None)
    assert logger.id is None
    logger.connect()
    assert Sent(tmp_path, None).id == "7"
    Sent.all.pop()  # it has no thread


def test_a_server_that_hangs_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(background_logger, "END_S", 0.2)
    monkeypatch.setattr(background_logger, "MAX_WAITING", 50)
    released = threading.Event()
    logger = Sent(tmp_path, lambda *_: released.wait(120))
    logger.connect()
    start_s = time.monotonic()
    for step in range(3):
        logger.log_metrics({"a": 0.0}, step)
    with pytest.warns(UserWarning, match="switched off: http://server did not accept the last messages"):
        logger.finalize("success")
    assert time.monotonic() - start_s < 60
    released.set()


def test_a_service_that_does_not_begin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise PermissionError("no key")

    with pytest.raises(
        ConfigError, match=r"mine must be able to reach http://server, but cannot: no key\. Hint: set logger=none\."
    ):
        Sent(tmp_path, None, refuse).connect()
    monkeypatch.setattr(background_logger, "START_S", 0.2)
    released = threading.Event()
    with pytest.raises(ConfigError, match="there was no answer in 0 s"):
        Sent(tmp_path, None, lambda: released.wait(120)).connect()
    released.set()
    assert not list(tmp_path.iterdir())


def test_a_resumed_run_goes_on_without_its_service(tmp_path: Path) -> None:
    calls: list[Any] = []
    first = Sent(tmp_path, lambda *call: calls.append(call))
    first.connect()
    first.log_metrics({"a": 1.0}, 3)
    first.log_metrics({"b": 2.0}, 3)
    first.finalize("success")
    assert calls == [({"a": 1.0}, 3), ({"b": 2.0}, 3)] and first.ended == ["success"]
    assert json.loads((tmp_path / "logger_mine.json").read_text())["id"] == "7"

    def refuse() -> None:
        raise PermissionError("no key")

    second = Sent(tmp_path, None, refuse)
    with pytest.warns(UserWarning, match="mine is switched off: no key"):
        second.connect()
    second.experiment.log("by a callback of one's own")
    second.log_metrics({"a": 2.0}, 7)
    second.finalize("failed")
    assert not second.ended


@pytest.mark.parametrize("name", ["TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"])
def test_a_server_that_the_environment_names_is_waited_for_with_a_bound(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loggers.TrackioLogger(run_dir=tmp_path).server is None
    monkeypatch.setenv(name, "http://server")
    assert loggers.TrackioLogger(run_dir=tmp_path).server == "http://server"
