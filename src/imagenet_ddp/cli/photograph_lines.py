"""The lines of README that are typed for photographs, wherever another command prints them. Does not import torch."""

from pathlib import Path

from imagenet_ddp.cli.overrides import shell_line
from imagenet_ddp.runs.folder import unused

RECIPE = "experiment=own_photos"
RUN = Path("runs", "mine")  # the run of README, which its later steps name


def check_line(*options: str) -> str:
    """Return the line that looks for faults in photographs. options: of data and net, quoted."""
    return shell_line("prepare", ["prepare=check", RECIPE, *options, "out=checked"])


def train_line(*options: str) -> str:
    """Return the line that trains on photographs in the run folder of README, or beside it if that is taken."""
    return shell_line("train", [RECIPE, *options, f"hydra.run.dir={unused(RUN)}"])
