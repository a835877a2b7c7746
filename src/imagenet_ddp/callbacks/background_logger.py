# pyright: standard
# The objects in Lightning's loggers have no types.
"""Send what is logged to a service in a thread, so that no server can delay a training, and a resumed run stays one run
there."""

import json
import queue
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers.logger import DummyLogger, Logger

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import atomic_write, read_mapping
from imagenet_ddp.system.text import first_line

START_S = 30.0  # longest wait for the first answer of a server
END_S = 30.0  # longest wait at the end for the remaining messages to be sent
UPLOAD_S = 600.0  # the same wait if a checkpoint is uploaded
MAX_WAITING = 10_000  # longest queue of calls: with one call per ten steps, those of an hour or more


class Background(Logger):
    """Log through a logger of Lightning's for a service. Calls wait in a queue, and one thread makes this logger and
    calls it, so a slow or dead server delays neither a step nor the end of a run.

    The first call that fails switches the logger off, with a single warning. `logger_NAME.json` in the run folder
    stores the run's id at the service, so a resumed run continues the same run there. After a kill, the steps that are
    trained again are also sent again. In a copy of a run folder, a new run begins there, with the original in its
    hyper-parameters, because both folders may be resumed.

    entry: the logger's name in the config group logger. group: name of a group of runs. arguments: those of Lightning's
    logger.
    """

    server: str | None = None  # address; None if no data leaves this machine
    hint = ""  # beginning of the hint if the service cannot be reached; "set logger=none." follows

    def __init__(self, run_dir: str | Path, entry: str, group: str | None, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.folder, self.entry, self.group, self.arguments = Path(run_dir).absolute(), entry, group, dict(arguments)
        self._file = self.folder / f"logger_{entry}.json"
        stored = _read(self._file)
        self.origin: dict[str, str] = {}  # if this folder is a copy: the folder and the run's id of the original
        if stored and _is_of(other := Path(stored.get("folder", self.folder)), stored, self._file):
            self.origin = {"folder": str(other), "run": stored["id"]}
        self._is_resumed = bool(stored) and not self.origin
        self.id: str | None = stored["id"] if self._is_resumed else None
        self._logger: Any = None  # Lightning's, made in the thread
        self._waiting: queue.Queue[tuple[Callable[[], Any], Future]] = queue.Queue(MAX_WAITING)
        self._is_open = self._is_off = False

    def connect(self) -> None:
        """Begin or continue the run at the service. If this fails or takes longer than START_S, raises ConfigError. A
        run that the service has accepted before continues without the logger instead."""
        threading.Thread(target=self._send, name=f"logger.{self.entry}", daemon=True).start()
        try:
            self._put(self._begin).result(START_S if self.server else None)
        except Exception as error:
            reason = f"there was no answer in {START_S:.0f} s" if isinstance(error, TimeoutError) else first_line(error)
            if self._is_resumed:  # a requeued run has no user to fix this
                self._switch_off(reason)
                return
            where = f"reach {self.server}" if self.server else "write its files"
            raise ConfigError(
                f"logger.{self.entry} must be able to {where}, but cannot: {reason.rstrip('.')}. "
                f"Hint: {self.hint}set logger=none."
            ) from error
        self._is_open = True
        atomic_write(self._file, json.dumps({"id": self.id, "folder": str(self.folder)}))
        if self.origin:
            print_message(
                f"logger.{self.entry}: this folder is a copy of {self.origin['folder']}, so it begins a new run, "
                f"{self.id}; the run {self.origin['run']} stays that of the original.",
                sys.stdout,
            )

    def _begin(self) -> None:
        self._logger = self._open()

    # -- what a subclass defines, called in the thread

    def _open(self) -> Logger:
        """Begin or continue the run, set self.id, and return Lightning's logger for it."""
        raise NotImplementedError

    def _send_picture(self, path: Path, step: int) -> None:
        raise NotImplementedError

    def _close(self, status: str) -> None:
        """End the run at the service. status: Lightning's, success or failed."""
        self._logger.finalize(status)

    # -- Lightning's calls

    @property
    def name(self) -> str:
        return self.entry

    @property
    def version(self) -> str | None:
        return self.id

    @property
    def save_dir(self) -> str:
        return str(self.folder)

    @property
    def experiment(self) -> Any:
        """Return the client's experiment object, or an object that does nothing if the service has not begun the run,
        because the Trainer and callbacks of the user's own may access this property earlier."""
        return self._logger.experiment if self._is_open else DummyLogger().experiment

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        copy = dict(metrics)
        self._put(lambda: self._logger.log_metrics(copy, step))

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Send the hyper-parameters, but only those of a new run, because a service may not allow changes."""
        if not self._is_resumed:
            if self.origin and isinstance(params, Mapping):
                params = {**params, "copy_of": self.origin}
            self._put(lambda: self._logger.log_hyperparams(params, *args, **kwargs))

    def log_picture(self, path: Path, step: int) -> None:
        """Send a PNG file."""
        self._put(lambda: self._send_picture(path, step))

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        self._put(lambda: self._logger.after_save_checkpoint(checkpoint_callback))

    def finalize(self, status: str = "success") -> None:
        """Send the remaining messages, for at most END_S seconds (UPLOAD_S if a checkpoint is uploaded)."""
        seconds = UPLOAD_S if self.arguments.get("log_model") in (True, "all") else END_S
        try:
            self._put(lambda: self._close(status)).result(seconds if self.server else None)
        except TimeoutError:
            self._switch_off(f"{self.server} did not accept the last messages within {seconds:.0f} s")
        except Exception:
            pass  # _put or _send has warned

    # -- the thread

    def _put(self, call: Callable[[], Any]) -> Future:
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
                future.set_result(None if self._is_off else call())
            except BaseException as error:  # a client may raise SystemExit
                self._fail(future, error)

    def _fail(self, future: Future, error: BaseException) -> None:
        if self._is_open:  # else connect() reports it
            self._switch_off(first_line(error))
        future.set_exception(error)

    def _switch_off(self, reason: str) -> None:
        if not self._is_off:
            self._is_off = True
            warnings.warn(
                f"logger.{self.entry} is switched off: {reason.rstrip('.')}. The run continues without it, and "
                "metrics.csv in the run folder has the metrics of each epoch.",
                stacklevel=3,
            )


def _read(file: Path) -> dict[str, Any]:
    """Return the id and the folder of a stored run; {} if the file is none that connect() wrote."""
    found = read_mapping(file)
    return found if isinstance(found.get("id"), str) and isinstance(found.get("folder", ""), str) else {}


def _is_of(folder: Path, stored: Mapping[str, str], file: Path) -> bool:
    """Return whether another folder has this run's id, too, so that the folder of the file is a copy of it. A folder
    that was moved is no longer there."""
    other = folder / file.name
    try:
        return not other.samefile(file) and _read(other).get("id") == stored["id"]
    except (OSError, ValueError):
        return False


def connect(all_loggers: Iterable[Logger]) -> None:
    """Begin the runs of all loggers that send to a service. Raises ConfigError if a service cannot be reached."""
    for logger in all_loggers:
        if isinstance(logger, Background):
            logger.connect()
