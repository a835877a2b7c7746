# pyright: standard
# The clients of the services, and their objects in Lightning's loggers, have no types.
"""Begin and continue a run at each service: MLflow, W&B and trackio.

To add a logger, add a file with the name of its package to conf/logger and, for a service, a class to this file.
"""

import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from lightning.pytorch.loggers.logger import DummyLogger, Logger

from imagenet_ddp.callbacks.background_logger import END_S, START_S, Background


class MLFlowLogger(Background):
    """Log to the server given by tracking_uri or MLFLOW_TRACKING_URI, otherwise to mlflow.db and mlartifacts/ in the
    run folder."""

    hint = "start the server, correct or unset MLFLOW_TRACKING_URI, or "

    def __init__(
        self, *, run_dir: str | Path, entry: str = "mlflow", group: str | None = None, tracking_uri: str | None = None,
        **arguments: Any,
    ):  # fmt: skip
        import mlflow.tracking  # noqa: F401  # takes seconds, which are not the server's

        super().__init__(run_dir, entry, group, arguments)
        self.own_uri = f"sqlite:///{self.folder / 'mlflow.db'}"
        self.uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI") or self.own_uri
        self.server = self.uri if "://" in self.uri and not self.uri.startswith(("sqlite:", "file:")) else None

    def _open(self) -> Logger:
        own: dict[str, Any] = {"run_name": f"{self.group}/{self.folder.name}" if self.group else self.folder.name}
        if self.uri == self.own_uri:
            own["artifact_location"] = (self.folder / "mlartifacts").as_uri()
            if self.origin:  # the copied file's experiment stores its artifacts in the original folder
                self.arguments["experiment_name"] = f"{self.folder.name}_{secrets.token_hex(4)}"
        logger = loggers.MLFlowLogger(tracking_uri=self.uri, run_id=self.id, **{**own, **self.arguments})
        self.id = logger.run_id
        logger.experiment.update_run(self.id, status="RUNNING")
        return logger

    def _send_picture(self, path: Path, step: int) -> None:
        self._logger.experiment.log_artifact(self.id, str(path))


class WandbLogger(Background):
    """Log to the server at WANDB_BASE_URL, or with WANDB_MODE=offline to wandb/ in the run folder."""

    hint = "run `wandb login`, or set WANDB_MODE=offline and run `wandb sync` later, or "

    def __init__(self, *, run_dir: str | Path, entry: str = "wandb", group: str | None = None, **arguments: Any):
        import wandb  # noqa: F401  # takes seconds, which are not the server's

        super().__init__(run_dir, entry, group, arguments)
        if not (arguments.get("offline") or os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled")):
            self.server = os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai"

    def _open(self) -> Logger:
        # W&B need not record the console, because logs/ has the output. Its timeouts are shorter than ours, so that its
        # error message is the one reported.
        settings = {"console": "off", "init_timeout": START_S - 5, "login_timeout": 5, "finish_timeout": END_S - 5}
        own: dict[str, Any] = {
            "save_dir": self.folder,
            "name": self.folder.name,
            "group": self.group,
            "version": self.id,
        }
        settings |= self.arguments.get("settings") or {}
        logger = loggers.WandbLogger(**{**own, **self.arguments, "settings": settings})
        self.id = logger.experiment.id
        return logger

    def _send_picture(self, path: Path, step: int) -> None:
        self._logger.log_image(f"pictures/{path.stem}", [str(path)], step)

    def _close(self, status: str) -> None:
        super()._close(status)
        self._logger.experiment.finish(exit_code=int(status != "success"))  # at exit, it would have no time limit


class TrackioLogger(Background):
    """Log to files in TRACKIO_DIR (default: ~/.cache/huggingface/trackio), or to the Space or server of space_id or
    server_url (TRACKIO_SPACE_ID, TRACKIO_SERVER_URL)."""

    hint = "correct space_id or server_url, or "

    def __init__(self, *, run_dir: str | Path, entry: str = "trackio", group: str | None = None, **arguments: Any):
        super().__init__(run_dir, entry, group, arguments)
        self.server = (
            arguments.get("space_id")
            or arguments.get("server_url")
            or os.environ.get("TRACKIO_SPACE_ID")
            or os.environ.get("TRACKIO_SERVER_URL")
        )

    def _open(self) -> Logger:
        import trackio

        self.id = self.id or f"{self.folder.name}-{secrets.token_hex(4)}"
        own = {"name": self.id, "group": self.group, "resume": "allow", "embed": False}
        return TrackioRun(trackio.init(**{**own, **self.arguments}))

    def _send_picture(self, path: Path, step: int) -> None:
        import trackio

        self._logger.experiment.log({f"pictures/{path.stem}": trackio.Image(str(path))}, step)


class TrackioRun(DummyLogger):
    """Pass Lightning's calls to a run of trackio."""

    def __init__(self, run: Any):
        super().__init__()
        self.run = run

    @property
    def experiment(self) -> Any:
        return self.run

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        self.run.log(dict(metrics), step)

    def log_hyperparams(self, params: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        self.run.config.update(params)

    def finalize(self, status: str) -> None:
        self.run.finish()
