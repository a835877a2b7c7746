"""The lines of README that are typed for photographs, wherever another command prints them. Does not import torch."""

import shlex
from pathlib import Path

from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.runs.folder import unused
from imagenet_ddp.system.files import read_small, short_path

RECIPE = "experiment=own_photos"
OF_FOLDER = (RECIPE, "data.root=FOLDER")  # the options for a folder of photographs
OPTIONS = "check_options.txt"  # what a check was typed with, beside its lists
OF_IMAGES = ("data=", "data.", "+data.", "seed=")  # options that say which images a check and its decisions are about
OF_NET = ("experiment=", "model=", "model.name=", "model.library=", "model.weights=")
CHECKED = "checked"  # the folder of README's check
RUN = Path("runs", "mine")  # the run of README, which its later steps name


def check_line(*options: str) -> str:
    """Return the line that looks for faults in photographs. options: of data and net, quoted."""
    return shell_line("prepare", ["prepare=check", RECIPE, *options, f"out={CHECKED}"])


def check_again_line(lists: Path, *options: str) -> str:
    """Return the line of the check with its net, if it looked at the same images; else check_line. lists: the folder of
    its lists, or of another one, as that of a report beside it. options: of data, as typed. A folder may be from
    anyone, so no other options are repeated."""
    harmless = *OF_IMAGES, *OF_NET, "prepare.", "out="
    for folder in (lists, Path(CHECKED)):
        try:
            words = shlex.split(read_small(folder / OPTIONS))
        except (OSError, ValueError):  # there is none, or it is another file
            continue
        is_same = [word for word in words if word.startswith(OF_IMAGES)] == [*options]
        is_plain = all(word == "prepare=check" or word.startswith(harmless) for word in words)
        if is_same and is_plain and any(word.startswith(OF_NET) for word in words):
            return shell_line("prepare", words)
    return check_line(*options)


def train_line(*options: str) -> str:
    """Return the line that trains on photographs in the run folder of README, or beside it if that is taken."""
    return shell_line("train", [RECIPE, *options, f"hydra.run.dir={unused(RUN)}"])


def untrained_sentence(folder: Path, start: str, least_min: int) -> str:
    """Say that budget_min left no time to train. folder: of the run. start: what its net is. least_min: the budget_min
    that suffices."""
    line = shell_line("train", [quoted(f"resume={short_path(folder)}"), f"budget_min={least_min}"])
    return (
        f"The time (budget_min) was too short to train, so the net is that of epoch 0 ({start}). To train it: `{line}`."
    )
