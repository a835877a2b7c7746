"""The command line of submit -> a plan, or every mistake at once. No torch."""

import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp import check
from imagenet_ddp.schema import ConfigError
from imagenet_ddp.submitting import wanted
from imagenet_ddp.submitting.job import seconds
from imagenet_ddp.submitting.wanted import Wanted
from imagenet_ddp.trainer_keys import FLAG, NULL, Kind, choice, expect, expect_all, kind, matching, whole

_WORD = matching(r"[^\s#'\"\\]+", "a word as sbatch takes it")
_LINE = matching(r"[^\n\r\"\\]+", "text of one line, without quotes")
_TIME = kind("a time such as 24:00:00 or 2-00:00:00", lambda value: isinstance(value, str) and bool(seconds(value)))
_OPTION = r"-(-[a-z][\w-]*(=[^\n\r]*)?|[a-zA-Z][^\n\r]*)"

# submit.* -> what it may be, and an example for the hint.
_KINDS: dict[str, tuple[Kind, str]] = {
    **dict.fromkeys(("partition", "account", "qos"), (_WORD | NULL, "NAME")),
    "constraint": (_LINE | NULL, "NAME"),
    "time": (_TIME, "24:00:00"),
    "cpus_per_device": (whole(1), "8"),
    "mem_gb_per_device": (whole(1) | NULL, "64"),
    "gpu_type": (matching(r"[\w.-]+", "a name such as a100") | NULL, "a100"),
    "signal_s": (whole(1, 65535), "120"),  # sbatch takes no more
    "requeue": (FLAG, "true"),
    "form": (choice("tasks", "torchrun"), "tasks"),
    "log": (_LINE | NULL, "slurm-%j.log"),
    "name": (_LINE | NULL, "my_job"),
    "array_parallelism": (whole(1) | NULL, "4"),
    "now": (FLAG, "true"),
}


@dataclass(frozen=True)
class Plan:
    options: Mapping[str, Any]  # submit.*
    argv: tuple[str, ...]  # of submit, as typed
    train_argv: tuple[str, ...]  # what of it is train's, as typed
    wanted: Wanted


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan | None:
    """None where Hydra only prints something. Raises ConfigError with every mistake."""
    if any(token.partition("=")[0] in wanted.PRINTING for token in argv):
        check.command_line("submit", argv, environ)
        return None
    request, options = wanted.compose(argv, environ)
    found = expect_all("submit", options, _KINDS)
    found += _extra(options["extra"]) + _files(options)
    if options["now"] is True and shutil.which("sbatch", path=environ.get("PATH")) is None:
        hint = "submit.out=train.sbatch writes the file; `sbatch train.sbatch` on a login node"
        found.append(f"submit.now=true runs sbatch, but this machine has none. HINT: {hint}.")
    asked = None
    try:
        asked = wanted.read(request, environ, torchrun=options["form"] == "torchrun")
        if options["check"] is None:
            found += _cannot_be_booked(asked, request, options)
    except ConfigError as error:
        found += error.mistakes
    if found or asked is None:
        raise ConfigError(list(dict.fromkeys(found)))
    train_argv = tuple(token for token in check.without_local_rank(argv) if not wanted.is_own(token))
    return Plan(options, tuple(argv), train_argv, asked)


def _extra(options: Sequence[Any]) -> list[str]:
    kinds = matching(_OPTION, "an option of sbatch")
    example = "'submit.extra=[\"--mail-type=END\"]'"
    return [text for option in options for text in expect("each of submit.extra", option, kinds, example)]


def _files(options: Mapping[str, Any]) -> list[str]:
    found, file, out = [], options["check"], options["out"]
    if file is not None and not Path(file).is_file():
        what = "is a folder" if Path(file).is_dir() else "does not exist"
        found.append(
            f"submit.check is expected to be a batch script, but {file} {what}. "
            "HINT: submit.check=scripts/train.sbatch."
        )
    if file is not None and (out is not None or options["now"]):
        other = "submit.out" if out is not None else "submit.now"
        found.append(f"submit.check only looks at {file}, but {other} is set. HINT: leave one of them out.")
    if out is None:
        return found
    path = Path(out)
    there = next(place for place in (path.absolute().parent, *path.absolute().parents) if place.exists())
    if out.startswith("~"):  # no shell expands it behind "submit.out="
        found.append(f"submit.out={out} would be a folder called ~. HINT: submit.out=$HOME{out[1:]}")
    elif path.is_dir() or out.endswith("/"):
        found.append(
            f"submit.out is expected to be a file, but {out} is a folder. HINT: submit.out={path}/train.sbatch."
        )
    elif not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        what = "cannot be written in" if there.is_dir() else "is a file"
        found.append(
            f"submit.out is expected to be a file that can be written, but {there} {what}. HINT: submit.out=FILE."
        )
    return found


def _cannot_be_booked(asked: Wanted, request: check.Request, options: Mapping[str, Any]) -> list[str]:
    """What train can do, but not a file for SLURM with its numbers."""
    found, devices = [], asked.devices_typed
    if devices in (-1, "-1"):
        found.append("trainer.devices=-1 means all GPUs, but SLURM is asked for a number. HINT: trainer.devices=8.")
    names = devices.strip(",").split(",") if isinstance(devices, str) and "," in devices else devices
    if isinstance(names, list) and any(int(number) >= len(names) for number in names):
        found.append(
            f"trainer.devices={','.join(map(str, names))} names GPUs of a machine, but SLURM numbers those of a job "
            f"from 0. HINT: trainer.devices={len(names)}."
        )
    if asked.accelerator == "mps":
        found.append("trainer.accelerator=mps is a Mac's, but SLURM has none. HINT: trainer.accelerator=gpu.")
    if options["form"] == "torchrun" and asked.one_process:
        found.append(
            "submit.form=torchrun starts a process per device, but strategy=dp is one. HINT: submit.form=tasks."
        )
    sweeper = str(request.hydra.sweeper.get("_target_")) if request.hydra is not None else ""
    if request.multirun and asked.launcher:
        found.append(
            "hydra/launcher=submitit_slurm submits the jobs of a sweep itself, and so does submit. HINT: leave it out; "
            "or type `python -m imagenet_ddp.train -m ...` with it."
        )
    elif request.multirun and not sweeper.endswith(".BasicSweeper"):
        found.append("submit makes a job array, but this sweeper chooses its jobs later. HINT: scripts/sweep.sbatch.")
    elif request.multirun and asked.num_jobs is None and request.configs[0].sweep.job in ("all", "list"):
        found.append(
            f"sweep.job={request.configs[0].sweep.job} is for one command that knows all jobs, but a job array has a "
            "task for each. HINT: leave it out; or scripts/sweep.sbatch."
        )
    if options["array_parallelism"] is not None and asked.num_jobs is None:
        found.append("submit.array_parallelism is for the job array of -m, but -m is not set. HINT: add -m.")
    return found
