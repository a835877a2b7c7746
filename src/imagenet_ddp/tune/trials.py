"""Divide the GPUs and CPU cores of this machine among the trials of a study, and run a trial as a process: start it in
its own session, read its metrics while it runs, and stop it. Imports neither torch nor Optuna."""

import csv
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.config.figures import best_metric
from imagenet_ddp.config.schema.trainer import TrainerConfig, num_devices
from imagenet_ddp.runs.folder import is_locked
from imagenet_ddp.system import nvidia_gpus
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.nvidia_gpus import no_gpu_reason
from imagenet_ddp.system.text import without_secrets

STOP_S = 120.0  # longest wait for a run to save; SLURM's own limit, KillWait, is 30
FREE_S = 60.0  # longest wait for a run that an earlier, killed tune started


@dataclass(frozen=True)
class Slot:
    """The resources of one running trial."""

    environ: Mapping[str, str] = field(default_factory=dict)  # added to the environment
    cores: tuple[int, ...] = ()  # empty means all


def make_slots(trainer: TrainerConfig, num: int, environ: Mapping[str, str]) -> list[Slot]:
    """Return one slot for each trial that runs at the same time."""
    if num == 1:
        return [Slot()]
    names = visible_gpus(environ) if no_gpu_reason(trainer.accelerator) is None else []
    gpus = _blocks(names, num, num_devices(trainer.devices) or max(1, len(names) // num))
    # the cores of this process, no more than its container's quota; trials share a core if there are too few
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [
        Slot({"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {}, tuple(own_cores))
        for own, own_cores in zip(gpus, _blocks(cores, num, max(1, num_cores() // num)), strict=True)
    ]


def _blocks(members: Sequence[Any], num: int, size: int) -> list[list[Any]]:
    """Return `num` blocks of `size` members. If there are too few members, begin again with the first."""
    size = min(size, len(members))
    return [[members[(block * size + offset) % len(members)] for offset in range(size)] for block in range(num)]


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES. If it is not set, return the UUIDs of all GPUs, because CUDA and
    nvidia-smi may number them in a different order."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [uuid for uuid, _ in nvidia_gpus.query_gpus()]
    return [name.strip() for name in named.split(",") if name.strip()]


def _before_exec(parent: int, cores: Sequence[int]) -> None:
    """Tie a new process to tune, whose pid is `parent`, and to its cores before it executes the command of its
    trial."""
    if sys.platform == "linux":
        # PR_SET_PDEATHSIG: if tune is killed, the run gets the signal on which it saves and ends
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
        if cores:
            os.sched_setaffinity(0, cores)
        if os.getppid() != parent:
            os._exit(1)


class Trial:
    """A run of train. options: its own, in addition to the study's. folder: its run folder."""

    def __init__(self, number: int, options: Sequence[str], folder: Path, slot: Slot, train_argv: Sequence[str]):
        """Start the process. train_argv: the study's options for train."""
        self.number, self.folder, self.slot = number, folder, slot
        self.log = folder.with_name(f"{folder.name}.log")
        self.is_pruned = False
        self._stopped_s: float | None = None  # time.monotonic() when SIGTERM was sent
        self._num_rows = 0  # of metrics.csv at the last call of new_epochs
        folder.parent.mkdir(exist_ok=True)
        end_s = time.monotonic() + FREE_S
        while is_locked(folder) and time.monotonic() < end_s:  # a run that a killed tune started may still be saving
            time.sleep(0.2)
        argv = in_folder([*train_argv, *options, "resume=auto", "cluster.requeue=false"], "hydra.run.dir", folder)
        command = [sys.executable, "-m", "imagenet_ddp.train", *argv]
        self.started_s = time.monotonic()
        with self.log.open("a", encoding="utf-8") as log:
            print("$", without_secrets(shlex.join(command)), file=log, flush=True)
            # in its own session, because Ctrl-C must only reach tune, which then stops the run
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, **slot.environ}, start_new_session=True,
                preexec_fn=partial(_before_exec, os.getpid(), slot.cores),
            )  # fmt: skip

    def stop(self) -> None:
        """Send SIGTERM once, on which the run saves and ends; `poll` kills it after STOP_S."""
        if self._stopped_s is None:
            self._stopped_s = time.monotonic()
            self.process.terminate()

    def poll(self) -> int | None:
        """Return the exit code, which is 128 + n for signal n, or None while the trial runs."""
        code = self.process.poll()
        if code is None and self._stopped_s is not None and time.monotonic() - self._stopped_s > STOP_S:
            self.process.kill()
        return 128 - code if code is not None and code < 0 else code

    def new_epochs(self) -> dict[int, float]:
        """Return epoch -> its last score, of the epochs that were added to metrics.csv since the last call."""
        file = self.folder / "metrics.csv"
        rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines())) if file.exists() else []
        first, self._num_rows = self._num_rows, len(rows)
        score, found, last = best_metric(rows[0] if rows else ()), dict[int, float](), ""
        for number, row in enumerate(rows):
            last = row[score] or last
            if row["epoch"].isdecimal():  # else a validation within an epoch
                if number >= first and last and row["epoch"] != "0":
                    found[int(row["epoch"])] = float(last)
                last = ""
        return found

    def output(self) -> list[str]:
        """Return the lines of the log since the trial was last started, without empty lines."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return [line for line in f"\n{text}".rpartition("\n$ ")[2].splitlines()[1:] if line.strip()]
