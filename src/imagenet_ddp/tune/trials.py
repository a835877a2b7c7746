"""Run a trial as a process: start it in its own session, read its metrics while it runs, and stop it.

Imports neither torch nor Optuna.
"""

import csv
import ctypes
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.runs.folder import is_locked
from imagenet_ddp.tune.resources import Slot

STOP_S = 120.0  # longest wait for a run to save; SLURM's own limit, KillWait, is 30
FREE_S = 60.0  # longest wait for a run that an earlier, killed tune started


@dataclass(frozen=True)
class BeforeExec:
    """Tie a new process to tune and to its cores before it executes the command of its trial."""

    parent: int  # pid
    stop_signal: int
    cores: tuple[int, ...]  # empty means all

    def __call__(self) -> None:
        if sys.platform == "linux":
            # PR_SET_PDEATHSIG: if tune is killed, the run gets the signal on which it saves and ends
            ctypes.CDLL(None).prctl(1, self.stop_signal)
            if self.cores:
                os.sched_setaffinity(0, self.cores)
            if os.getppid() != self.parent:
                os._exit(1)


@dataclass
class Trial:
    number: int
    options: tuple[str, ...]  # its own options, in addition to the study's
    folder: Path  # the run folder
    slot: Slot
    started: float = field(default_factory=time.monotonic)
    ended: float | None = None  # time.monotonic() at its end
    stopped: float | None = None  # time.monotonic() when the stop signal was sent
    process: subprocess.Popen | None = None
    pruned_at: int | None = None  # epoch
    num_epochs: int = 0  # rows of metrics.csv at the last call of new_epochs

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def start(self, train_argv: Sequence[str]) -> None:
        """Start the trial's process. train_argv: the study's options for train."""
        slot = self.slot
        self.folder.parent.mkdir(exist_ok=True)
        own = [*self.options, "resume=auto", "cluster.requeue=false"]
        argv = in_folder([*train_argv, *own], "hydra.run.dir", self.folder)
        command = [*slot.prefix, sys.executable, "-m", "imagenet_ddp.train", *argv]

        with self.log.open("a", encoding="utf-8") as log:
            print("$", shlex.join(command), file=log, flush=True)
            # in its own session, because Ctrl-C must only reach tune, which then stops the run
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                env={**os.environ, **slot.environ}, start_new_session=True,
                preexec_fn=BeforeExec(os.getpid(), slot.stop_signal, slot.cores),
            )  # fmt: skip

    def stop(self) -> None:
        """Send the stop signal once; `poll` kills the run after STOP_S."""
        if self.stopped is None and self.process is not None:
            self.stopped = time.monotonic()
            self.process.send_signal(self.slot.stop_signal)

    def poll(self) -> int | None:
        """Return the exit code, which is 128 + n for signal n, or None while the trial runs."""
        assert self.process is not None
        code = self.process.poll()
        if code is None:
            if self.stopped is not None and time.monotonic() - self.stopped > STOP_S:
                self.process.kill()
            return None
        self.ended = self.ended or time.monotonic()
        return code if code >= 0 else 128 - code

    def new_epochs(self) -> dict[int, float]:
        """Return trained epoch -> val/top1 in metrics.csv; {} if there is no new row since the last call."""
        file = self.folder / "metrics.csv"
        rows = list(csv.DictReader(file.read_text(encoding="utf-8").splitlines())) if file.exists() else []
        if len(rows) == self.num_epochs:
            return {}
        self.num_epochs = len(rows)
        return {int(row["epoch"]): float(row["val/top1"]) for row in rows if row["val/top1"] and row["epoch"] != "0"}

    def output(self) -> list[str]:
        """Return the lines of the log since the trial was last started, without empty lines."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return [line for line in f"\n{text}".rpartition("\n$ ")[2].splitlines()[1:] if line.strip()]

    def wait_until_free(self) -> None:
        """Wait for a run that an earlier, killed tune started, because it may still be saving."""
        end = time.monotonic() + FREE_S
        while is_locked(self.folder) and time.monotonic() < end:
            time.sleep(0.2)
