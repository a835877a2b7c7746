"""Provide loggers that write files into the run folder. A resumed run removes records logged after its checkpoint."""

import csv
import warnings
from pathlib import Path
from typing import Any

from lightning.fabric.utilities.logger import _convert_params, _flatten_dict
from lightning.pytorch import loggers
from typing_extensions import override


class TensorBoardLogger(loggers.TensorBoardLogger):
    """Write all event files of a run into one folder, tensorboard/, even if the run is resumed.

    first_step: the first step that this process logs. TensorBoard drops earlier records of this and later steps.
    """

    def __init__(
        self,
        save_dir: str | Path,
        name: str = "tensorboard",
        version: int | str | None = "",
        *,
        first_step: int | None = None,
        **arguments: Any,
    ):
        arguments = {"default_hp_metric": False, "purge_step": first_step or None, **arguments}
        super().__init__(save_dir, name, version, **arguments)

    @override
    def log_hyperparams(self, params: Any, metrics: Any = None, step: int | None = None) -> None:
        """Record the hyper-parameters with the metric val/top1, for TensorBoard's HPARAMS page. Lightning would log -1
        as the value of a metric."""
        super().log_hyperparams(params, metrics, step)
        if metrics is None:
            from torch.utils.tensorboard.summary import hparams

            flat = self._sanitize_params(_flatten_dict(_convert_params(params)))
            for summary in hparams({key: str(value) if value is None else value for key, value in flat.items()},
                                   {"val/top1": None}):  # fmt: skip
                self.experiment._get_file_writer().add_summary(summary, 0)


class CSVLogger(loggers.CSVLogger):
    """Write csv/metrics.csv, with one row per call. Lightning's own logger would delete the file of an earlier part of
    the run.

    first_step: the first step that this process logs. Existing rows of this and later steps are removed.
    """

    def __init__(
        self,
        save_dir: str | Path,
        name: str = "csv",
        version: int | str | None = "",
        *,
        first_step: int | None = None,
        **arguments: Any,
    ):
        super().__init__(save_dir, name, version, **arguments)
        self._first_step = first_step or 0

    @property
    @override
    def experiment(self) -> Any:
        if self._experiment is not None:
            return self._experiment
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
