# pyright: standard
# The clients of the services, and their objects in Lightning's loggers, have no types.
"""Adapt Lightning's loggers so that a resumed run continues logging at its checkpoint, and no server can delay a
training.

To add a logger, add a class to this file, a file to conf/logger, and an entry to LOGGER_PACKAGES in runs/check_run.py.
"""

import csv
import json
import os
import queue
import secrets
import threading
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
from lightning.pytorch import loggers
from lightning.pytorch.loggers.logger import DummyLogger, Logger

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.data.contact_sheet import FILE
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import atomic_write
from imagenet_ddp.system.text import count_noun, first_line

START_S = 30.0  # longest wait for the first answer of a server
END_S = 30.0  # longest wait at the end for the remaining messages to be sent
UPLOAD_S = 600.0  # the same wait if a checkpoint is uploaded
MAX_WAITING = 10_000  # longest queue of calls: with one call per ten steps, those of an hour or more


class RunFiles(L.Callback):
    """Pass the config, train_batch.png and curves.png to the loggers and, at the end, best.ckpt, which they upload if
    their log_model is set."""

    def __init__(self, run_dir: Path, hyperparams: Mapping[str, Any]):
        self.run_dir, self.hyperparams = run_dir, hyperparams
        self._has_batch = False

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for logger in trainer.loggers:
            logger.log_hyperparams(dict(self.hyperparams))

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not self._has_batch:
            self._has_batch = True
            self._log_picture(trainer, FILE)

    def on_fit_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._log_picture(trainer, "curves.png")  # drawn by History, which precedes this callback
        checkpoint = find_callback(trainer, ResumeCheckpoint)
        if checkpoint is None or not checkpoint.best_path.is_file():
            return
        # the attributes of Lightning's ModelCheckpoint that its loggers read
        as_lightnings: Any = SimpleNamespace(
            save_top_k=1,
            monitor=checkpoint.best.monitor,
            best_model_path=str(checkpoint.best_path),
            best_model_score=checkpoint.best.value,
        )
        for logger in trainer.loggers:
            logger.after_save_checkpoint(as_lightnings)

    def _log_picture(self, trainer: L.Trainer, name: str) -> None:
        path = self.run_dir / name
        if trainer.is_global_zero and path.is_file():
            for logger in trainer.loggers:
                if isinstance(logger, TensorBoardLogger | Background):
                    logger.log_picture(f"pictures/{path.stem}", path, max(trainer.global_step - 1, 0))


# ---- files ---------------------------------------------------------------------------------------------------------


class TensorBoardLogger(loggers.TensorBoardLogger):
    """Write all event files of a run into one folder, tensorboard/, even if the run is resumed.

    first_step: the first step that this process logs. TensorBoard drops earlier records of this and later steps.
    """

    def __init__(self, save_dir: str | Path, *, first_step: int | None = None, **arguments: Any):
        own = {"name": "tensorboard", "version": "", "default_hp_metric": False, "purge_step": first_step or None}
        super().__init__(save_dir, **{**own, **arguments})
        self._has_scores = False

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        """Record the hyper-parameters with the first val/top1, for TensorBoard's HPARAMS page, which shows only runs
        that have both."""
        if not self._has_scores and self.hparams and "val/top1" in metrics:
            self._has_scores = True
            super().log_hyperparams(self.hparams, {"val/top1": metrics["val/top1"]}, step)
            metrics = {name: value for name, value in metrics.items() if name != "val/top1"}
        super().log_metrics(metrics, step)

    def log_picture(self, name: str, path: Path, step: int) -> None:
        import numpy as np
        from PIL import Image

        with Image.open(path) as image:
            self.experiment.add_image(name, np.asarray(image.convert("RGB")), step, dataformats="HWC")


class CSVLogger(loggers.CSVLogger):
    """Write csv/metrics.csv, with one row per call. Lightning's own logger would delete the file of an earlier part of
    the run.

    first_step: the first step that this process logs. Existing rows of this and later steps are removed.
    """

    def __init__(self, save_dir: str | Path, *, first_step: int | None = None, **arguments: Any):
        super().__init__(save_dir, **{"name": "csv", "version": "", **arguments})
        self._first_step, self._is_open = first_step or 0, False

    @property
    def experiment(self) -> Any:
        if self._is_open:
            return super().experiment
        self._is_open = True
        file, earlier = Path(self.log_dir) / "metrics.csv", []
        if self._first_step and file.is_file():
            with file.open(newline="", encoding="utf-8") as stream:
                rows = [{key: cell for key, cell in row.items() if cell} for row in csv.DictReader(stream)]
            earlier = [row for row in rows if int(row.get("step", 0)) < self._first_step]
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # warns that it will delete the file
            experiment = super().experiment
        experiment.metrics.extend(earlier)
        experiment.save()
        return experiment


# ---- services ------------------------------------------------------------------------------------------------------


class Background(Logger):
    """Log through a logger of Lightning's for a service that can only append. Calls wait in a queue, and one thread
    makes this logger and calls it, so a slow or dead server delays neither a step nor the end of a run.

    The first call that fails switches the logger off, with a single warning. `logger_NAME.json` in the run folder
    stores the run's id at the service, so a resumed run continues the same run there. After a kill, the steps that are
    trained again are also sent again.

    entry: the logger's name in the config group logger. group: name of a group of runs. arguments: those of Lightning's
    logger.
    """

    server: str | None = None  # address; None if no data leaves this machine
    hint = ""  # beginning of the hint if the service cannot be reached; "set logger=none." follows

    def __init__(self, run_dir: str | Path, entry: str, group: str | None, arguments: Mapping[str, Any]) -> None:
        super().__init__()
        self.folder, self.entry, self.group, self.arguments = Path(run_dir).absolute(), entry, group, dict(arguments)
        self._file = Path(run_dir) / f"logger_{entry}.json"
        self.stored: dict[str, Any] = {}  # "id": that of the run
        if self._file.is_file():
            self.stored = json.loads(self._file.read_text(encoding="utf-8"))
        self._is_resumed = bool(self.stored)
        self._logger: Any = None  # Lightning's, made in the thread
        self._waiting: queue.Queue[tuple[Callable[[], Any], Future]] = queue.Queue(MAX_WAITING)
        self._is_open = False
        self._failure: str | None = None
        self._num_lost = 0
        self._thread: threading.Thread | None = None

    def connect(self) -> None:
        """Begin or continue the run at the service. If this fails or takes longer than START_S, raises ConfigError. A
        run that the service has accepted before continues without the logger instead."""
        try:
            self._put(self._begin).result(START_S if self.server else None)
        except Exception as error:
            reason = f"there was no answer in {START_S:.0f} s" if isinstance(error, TimeoutError) else first_line(error)
            if self._is_resumed and not isinstance(error, TypeError):  # a requeued run has no user to fix this
                self._failure = reason.rstrip(".")
                self._say_off()
                return
            where = f"reach {self.server}" if self.server else "write its files"
            if isinstance(error, TypeError):  # an argument that does not exist
                where, self.hint = "begin its run", "correct its arguments, or "
            raise ConfigError(
                f"logger.{self.entry} must be able to {where}, but cannot: {reason.rstrip('.')}. "
                f"Hint: {self.hint}set logger=none."
            ) from error
        self._is_open = True
        atomic_write(self._file, json.dumps(self.stored))

    def _begin(self) -> None:
        self._logger = self._open()

    # -- what a subclass defines, called in the thread

    def _open(self) -> Logger:
        """Begin or continue the run, set stored["id"], and return Lightning's logger for it."""
        raise NotImplementedError

    def _send_picture(self, name: str, path: Path, step: int) -> None:
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
        return self.stored.get("id")

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
            self._put(lambda: self._logger.log_hyperparams(params, *args, **kwargs))

    def log_picture(self, name: str, path: Path, step: int) -> None:
        """Send a PNG file."""
        self._put(lambda: self._send_picture(name, path, step))

    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        self._put(lambda: self._logger.after_save_checkpoint(checkpoint_callback))

    def finalize(self, status: str = "success") -> None:
        """Send the remaining messages, for at most END_S seconds (UPLOAD_S if a checkpoint is uploaded). Warn if
        messages were lost."""
        ended = self._put(lambda: self._close(status))
        seconds = UPLOAD_S if self.arguments.get("log_model") in (True, "all") else END_S
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


def connect(all_loggers: Iterable[Logger]) -> None:
    """Begin the runs of all loggers that send to a service. Raises ConfigError if a service cannot be reached."""
    for logger in all_loggers:
        if isinstance(logger, Background):
            logger.connect()


class MLFlowLogger(Background):
    """Log to the server given by tracking_uri or MLFLOW_TRACKING_URI, otherwise to mlflow.db and mlartifacts/ in the
    run folder. A group of runs is stored as the tag `group`."""

    hint = "start the server, correct or unset MLFLOW_TRACKING_URI, or "

    def __init__(
        self, *, run_dir: str | Path, entry: str = "mlflow", group: str | None = None, tracking_uri: str | None = None,
        **arguments: Any,
    ):  # fmt: skip
        import mlflow.tracking  # noqa: F401  # takes seconds, which are not the server's

        super().__init__(run_dir, entry, group, arguments)
        self.uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{self.folder / 'mlflow.db'}"
        self.server = self.uri if "://" in self.uri and not self.uri.startswith(("sqlite:", "file:")) else None
        if self.stored.get("uri") != self.uri:  # the stored run belongs to another server
            self.stored, self._is_resumed = {"uri": self.uri}, False

    def _open(self) -> Logger:
        own: dict[str, Any] = {"run_name": f"{self.group}/{self.folder.name}" if self.group else self.folder.name}
        if self.uri == f"sqlite:///{self.folder / 'mlflow.db'}":
            own["artifact_location"] = (self.folder / "mlartifacts").as_uri()
        tags = {"group": self.group} if self.group else {}
        own |= {"run_id": self.stored.get("id"), **self.arguments, "tags": tags | self.arguments.get("tags", {})}
        logger = loggers.MLFlowLogger(tracking_uri=self.uri, **own)
        # later calls use the client's own settings, which retry for minutes, long enough for a server to restart
        bounds = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
        new = {name: value for name, value in bounds.items() if name not in os.environ}
        os.environ.update(new)
        try:
            self.stored["id"] = logger.run_id
            logger.experiment.update_run(logger.run_id, status="RUNNING")
        finally:
            for name in new:
                del os.environ[name]
        return logger

    def _send_picture(self, name: str, path: Path, step: int) -> None:
        self._logger.experiment.log_artifact(self._logger.run_id, str(path))


class WandbLogger(Background):
    """Log to the server at WANDB_BASE_URL, or with WANDB_MODE=offline to wandb/ in the run folder."""

    hint = "run `wandb login`, or set WANDB_MODE=offline and run `wandb sync` later, or "

    def __init__(
        self, *, run_dir: str | Path, entry: str = "wandb", group: str | None = None, offline: bool = False,
        **arguments: Any,
    ):  # fmt: skip
        import wandb  # noqa: F401  # takes seconds, which are not the server's

        super().__init__(run_dir, entry, group, arguments)
        self.is_offline = offline
        if not (offline or os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled")):
            self.server = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"
        self.stored.setdefault("id", secrets.token_hex(8))

    def _open(self) -> Logger:
        import wandb

        of_lightning = {"log_model", "prefix", "checkpoint_name", "add_file_policy"} & self.arguments.keys()
        of_wandb = {key: value for key, value in self.arguments.items() if key not in of_lightning}
        # W&B need not record the console, because logs/ has the output. Its timeouts are shorter than ours, so that its
        # error message is the one reported.
        bounds = {"console": "off", "init_timeout": START_S - 5, "login_timeout": 5, "finish_timeout": END_S - 5}
        own = {"dir": str(self.folder), "id": self.stored["id"], "name": self.folder.name, "group": self.group}
        own |= {"resume": "allow", **({"mode": "offline"} if self.is_offline else {})}
        for name, of_client in (("save_dir", "dir"), ("version", "id")):  # as Lightning calls them
            if name in of_wandb:
                of_wandb[of_client] = of_wandb.pop(name)
        settings: Any = bounds | dict(of_wandb.pop("settings", None) or {})
        run = wandb.init(**{**own, **of_wandb}, settings=settings)
        run.define_metric("trainer/global_step")
        run.define_metric("*", step_metric="trainer/global_step", step_sync=True)
        self.stored["id"] = run.id
        return loggers.WandbLogger(experiment=run, **{key: self.arguments[key] for key in of_lightning})

    def _close(self, status: str) -> None:
        super()._close(status)
        self._logger.experiment.finish(exit_code=int(status != "success"))  # at exit, it would have no time limit

    def _send_picture(self, name: str, path: Path, step: int) -> None:
        import wandb

        self._logger.experiment.log({name: wandb.Image(str(path)), "trainer/global_step": step})
