"""Provide loggers for online services. Each run folder is one run at the service, even after a resume."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lightning.pytorch import loggers
from typing_extensions import override

from imagenet_ddp.callbacks.loggers.background import END_S, START_S, Background


class MLFlowLogger(Background, loggers.MLFlowLogger):
    """Log to the server given by tracking_uri or MLFLOW_TRACKING_URI, otherwise to mlflow.db and mlartifacts/ in the
    run folder.

    run_dir, entry: see Background.prepare. group: name of a group of runs, stored as the tag `group`.
    """

    hint = "start the server, correct or unset MLFLOW_TRACKING_URI, or "

    def __init__(
        self,
        *,
        run_dir: str | Path,
        entry: str = "mlflow",
        group: str | None = None,
        tracking_uri: str | None = None,
        **arguments: Any,
    ):
        folder = Path(run_dir).absolute()
        uri = tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        if uri is None:
            uri = f"sqlite:///{folder / 'mlflow.db'}"
            arguments = {"artifact_location": (folder / "mlartifacts").as_uri(), **arguments}
        self.prepare(run_dir, entry, uri if "://" in uri and not uri.startswith(("sqlite:", "file:")) else None)
        if self.stored.get("uri") != uri:  # the stored run belongs to another server
            self.stored, self._is_resumed = {"uri": uri}, False
        name = f"{group}/{folder.name}" if group else folder.name
        arguments = {"run_name": name, "run_id": self.stored.get("id"), **arguments}
        if group is not None:
            arguments["tags"] = {"group": group, **arguments.get("tags", {})}
        super().__init__(tracking_uri=uri, **arguments)

    @override
    def _open(self) -> None:
        is_new = self._run_id is None
        # later calls use the client's own settings, which retry for minutes, long enough for a server to restart
        with _environment(MLFLOW_HTTP_REQUEST_MAX_RETRIES="1", MLFLOW_HTTP_REQUEST_TIMEOUT="10"):
            self.stored["id"] = self.run_id
            if not is_new:
                self.experiment.update_run(self.run_id, status="RUNNING")

    @override
    def _send_picture(self, name: str, path: Path, step: int) -> None:
        self.experiment.log_artifact(self.run_id, str(path))


class WandbLogger(Background, loggers.WandbLogger):
    """Log to the server at WANDB_BASE_URL, or with WANDB_MODE=offline to wandb/ in the run folder.

    run_dir, entry: see Background.prepare. group: name of W&B's group for the run.
    """

    hint = "run `wandb login`, or set WANDB_MODE=offline and run `wandb sync` later, or "

    def __init__(
        self, *, run_dir: str | Path, entry: str = "wandb", group: str | None = None, settings: Any = None,
        **arguments: Any,
    ):  # fmt: skip
        offline = arguments.get("offline") or os.environ.get("WANDB_MODE") in ("offline", "dryrun", "disabled")
        self.prepare(run_dir, entry, None if offline else os.environ.get("WANDB_BASE_URL") or "https://api.wandb.ai")
        folder = Path(run_dir).absolute()
        # W&B need not record the console, because logs/ has the output. Its timeouts are shorter than ours, so that its
        # error message is the one reported.
        bounds = {"console": "off", "init_timeout": START_S - 5, "login_timeout": 5, "finish_timeout": END_S - 5}
        self.stored.setdefault("id", secrets.token_hex(8))
        own = {
            "save_dir": str(folder),
            "id": self.stored["id"],
            "name": folder.name,
            "group": group,
            "settings": bounds | dict(settings or {}),
        }
        super().__init__(**{**own, **arguments})
        self._wandb_init.pop("anonymous")  # W&B warns about this argument

    @override
    def _open(self) -> None:
        self.stored["id"] = self.experiment.id

    @override
    def _close(self, status: str) -> None:
        super()._close(status)
        self.experiment.finish(exit_code=int(status != "success"))  # else it would run at exit, without a time limit

    @override
    def _send_picture(self, name: str, path: Path, step: int) -> None:
        import wandb

        self.experiment.log({name: wandb.Image(str(path)), "trainer/global_step": step})


class CometLogger(Background, loggers.CometLogger):
    """Log to Comet, or with COMET_START_ONLINE=0 to a zip file in comet/ in the run folder.

    run_dir, entry: see Background.prepare. group: name of a group of runs, stored as a tag.
    """

    hint = "set COMET_API_KEY, or set COMET_START_ONLINE=0 and run `comet upload` later, or "

    def __init__(
        self, *, run_dir: str | Path, entry: str = "comet", group: str | None = None, online: bool | None = None,
        **arguments: Any,
    ):  # fmt: skip
        typed = os.environ.get("COMET_START_ONLINE", "1").lower() not in ("0", "false")
        is_online = typed if online is None else online
        self.prepare(run_dir, entry, "https://www.comet.com" if is_online else None)
        folder = Path(run_dir).absolute()
        self.stored.setdefault("id", secrets.token_hex(16))
        self._may_begin = False
        own = {
            "experiment_key": self.stored["id"],
            "mode": "get_or_create",
            "name": folder.name,
            "offline_directory": str(folder / "comet"),
            "tags": [group] if group else None,
            "display_summary_level": 0,
            "auto_output_logging": False,  # logs/ has the output
            "auto_metric_logging": False,  # would also log MLflow's metrics if both loggers are on
            "auto_param_logging": False,
        }
        super().__init__(**{**own, **arguments})
        self._online = is_online  # as an argument of __init__, False would also switch off the offline file

    @override
    def _create_experiment(self) -> None:
        if self._may_begin:  # not yet in __init__, when it is still uncertain whether the run will begin
            super()._create_experiment()

    @override
    def _open(self) -> None:
        self._may_begin = True
        self.stored["id"] = self.experiment.get_key()

    @override
    def _close(self, status: str) -> None:
        self.experiment.end()

    @override
    def _send_picture(self, name: str, path: Path, step: int) -> None:
        self.experiment.log_image(str(path), name=name, step=step)


@contextmanager
def _environment(**variables: str) -> Iterator[None]:
    """Set environment variables that are not set yet, for the duration of the block."""
    new = {name: value for name, value in variables.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            del os.environ[name]
