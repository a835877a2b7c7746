"""Make the loggers of a run."""

from pathlib import Path

from lightning.pytorch.loggers import Logger
from lightning.pytorch.loggers.logger import DummyLogger

from imagenet_ddp.callbacks.defaults import Config, given, make_entries
from imagenet_ddp.runs.folder import run_group


def make_loggers(config: Config, run_dir: Path, rank: int, first_step: int = 0) -> list[Logger]:
    """Return the loggers of the config's logger group, which write into the run folder unless configured otherwise.

    Ranks other than 0 get dummy loggers, because two real loggers would create the same database at once. first_step:
    number of steps trained before a resume.
    """
    if rank:
        return [DummyLogger() for _ in given(config["logger"])]
    group = run_group(run_dir)
    return make_entries(
        config, "logger", save_dir=str(run_dir), run_dir=str(run_dir), first_step=first_step, group=group
    )
