"""Send log messages in a background thread, so that a slow or dead server delays neither a step nor the end of a
run."""

import json
import queue
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.text import count_noun, first_line

START_S = 30.0  # longest wait for the first answer of a server
END_S = 30.0  # longest wait at the end for the remaining messages to be sent
UPLOAD_S = 600.0  # the same wait if a checkpoint is uploaded
MAX_WAITING = 10_000  # longest queue of calls: with one call per ten steps, those of an hour or more


class Background(Logger):
    """Mixin for a Lightning logger whose service can only append. Calls wait in a queue, and one thread sends them.

    The first call that fails switches the logger off, with a single warning. `logger_NAME.json` in the run folder
    stores the run's id at the service, so a resumed run continues the same run there. After a kill, the steps that are
    trained again are also sent again.

    A subclass calls prepare() before the __init__ of Lightning's logger, and begins or continues its run in _open().
    """

    server: str | None = None  # address; None if no data leaves this machine
    hint = ""  # beginning of the hint if the service cannot be reached; "set logger=none." follows

    def prepare(self, run_dir: str | Path, entry: str, server: str | None) -> None:
        """Prepare the queue, and read what an earlier part of the run has stored.

        entry: the logger's name in the config group logger. server: the server's address; None if no data leaves this
        machine.
        """
        self.entry, self.server = entry, server
        self._file = Path(run_dir) / f"logger_{entry}.json"
        self.stored: dict[str, Any] = {}
        if self._file.is_file():
            self.stored = json.loads(self._file.read_text(encoding="utf-8"))
        self._is_resumed = bool(self.stored)
        self._waiting: queue.Queue[tuple[Callable[[], Any], Future]] = queue.Queue(MAX_WAITING)
        self._is_open = False
        self._failure: str | None = None
        self._num_lost = 0
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        """Begin or continue the run at the service. If this fails or takes longer than START_S, raises ConfigError. A
        run that the service has accepted before continues without the logger instead."""
        try:
            self._put(self._open).result(START_S if self.server else None)
        except Exception as error:
            reason = f"there was no answer in {START_S:.0f} s" if isinstance(error, TimeoutError) else first_line(error)
            if self._is_resumed:  # a requeued run has no user to fix this
                self._failure = reason.rstrip(".")
                self._say_off()
                return
            where = f"reach {self.server}" if self.server else "write its files"
            raise ConfigError(
                f"logger.{self.entry} must be able to {where}, but cannot: {reason.rstrip('.')}. "
                f"Hint: {self.hint}set logger=none."
            ) from error
        self._is_open = True
        atomic_write(self._file, json.dumps(self.stored))

    def _open(self) -> None:
        """Begin or continue the run, and set stored["id"]."""
        raise NotImplementedError

    def _close(self, status: str) -> None:
        """End the run at the service. status: Lightning's, success or failed."""
        super().finalize(status)

    # -- Lightning's calls

    @property
    def experiment(self) -> Any:
        """Return the client's experiment object. Until the service has begun the run, return an object that does
        nothing, because the Trainer and callbacks of the user's own may access this property earlier."""
        if self._is_open or threading.current_thread() is self._thread:
            return super().experiment  # type: ignore[misc]  # defined by the Lightning logger of the subclass
        return DummyLogger().experiment

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        log, copy = super().log_metrics, dict(metrics)
        self._put(lambda: log(copy, step))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Send the hyper-parameters, but only those of a new run, because a service may not allow changes."""
        log = super().log_hyperparams
        if not self._is_resumed:
            self._put(lambda: log(params, *args, **kwargs))

    def log_picture(self, name: str, path: Path, step: int) -> None:
        """Send a PNG file."""
        self._put(lambda: self._send_picture(name, path, step))

    def _send_picture(self, name: str, path: Path, step: int) -> None:
        raise NotImplementedError

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        after = super().after_save_checkpoint
        self._put(lambda: after(checkpoint_callback))

    def log_graph(self, model: Any, input_array: Any = None) -> None:
        """Do nothing, because the training thread may be using the module."""

    def save(self) -> None:
        """Do nothing, because Lightning calls this method after every log_metrics."""

    def finalize(self, status: str = "success") -> None:
        """Send the remaining messages, for at most END_S seconds (UPLOAD_S if a checkpoint is uploaded). Warn if
        messages were lost."""
        ended = self._put(lambda: self._close(status))
        seconds = UPLOAD_S if getattr(self, "_log_model", False) in (True, "all") else END_S
        try:
            ended.result(seconds if self.server else None)
        except TimeoutError:
            self._num_lost += self._waiting.qsize() + 1
            self._failure = f"{self.server} did not accept the remaining messages within {seconds:.0f} s"
        except Exception:
            pass  # reported by the thread
        if self._failure is not None:
            warnings.warn(
                f"logger.{self.entry} lost {count_noun(self._num_lost, 'message')}: {self._failure}. "
                "metrics.csv in the run folder still contains the metrics of each epoch.",
                stacklevel=2,
            )

    # -- the thread

    def _put(self, call: Callable[[], Any]) -> Future:
        if self._thread is None:
            self._thread = threading.Thread(target=self._send, name=f"logger.{self.entry}", daemon=True)
            self._thread.start()
        future: Future = Future()
        try:
            self._waiting.put_nowait((call, future))
        except queue.Full:
            self._fail(future, RuntimeError(f"{MAX_WAITING} messages are waiting to be sent"))
        return future

    def _send(self) -> None:
        while True:
            call, future = self._waiting.get()
            try:
                if self._failure is not None:
                    raise RuntimeError(self._failure)
                future.set_result(call())
            except BaseException as error:  # a client may raise SystemExit
                self._fail(future, error)

    def _fail(self, future: Future, error: BaseException) -> None:
        self._num_lost += 1
        if self._failure is None:
            self._failure = first_line(error).rstrip(".")
            if self._is_open:  # else connect() reports it
                self._say_off()
        future.set_exception(error)

    def _say_off(self) -> None:
        warnings.warn(
            f"logger.{self.entry} is switched off, and the training continues without it: {self._failure}.",
            stacklevel=3,
        )


def connect(loggers: Iterable[Logger]) -> None:
    """Begin the runs of all loggers that send to a service. Raises ConfigError if a service cannot be reached."""
    for logger in loggers:
        if isinstance(logger, Background):
            logger.connect()
