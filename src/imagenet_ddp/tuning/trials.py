"""A trial as a process: started in a session of its own, read while it runs, asked to stop, and known by its folder
when this process is another one. No torch, no Optuna."""

import contextlib
import csv
import ctypes
import fcntl
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.run.folder import summary
from imagenet_ddp.session import in_folder
from imagenet_ddp.tuning.places import Place

STOP_S = 120.0  # longest wait for a run to save; SLURM's own, KillWait, is 30
FREE_S = 60.0  # longest wait for a run that an earlier, killed tune has left behind
TAIL = 20  # lines of the log that are kept of a failure


@dataclass
class Trial:
    """Number in the study, its options beyond the study's own, and the process while it runs."""

    number: int
    options: tuple[str, ...]
    folder: Path  # the run folder
    place: Place | None = None
    process: subprocess.Popen | None = None
    began: float = 0.0  # time.monotonic()
    stop_since: float | None = None  # when it was asked to stop
    pruned_at: int | None = None  # epoch
    ended_at: float | None = None
    _seen: tuple[int, int] = field(default=(0, 0))

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def begin(self, train_argv: Sequence[str], place: Place) -> None:
        """train_argv: the study's options of train."""
        self.place, self.began = place, time.monotonic()
        self.folder.parent.mkdir(exist_ok=True)
        own = [*self.options, *place.options, "resume=auto", "cluster.requeue=false"]
        argv = in_folder([*train_argv, *own], "hydra.run.dir", self.folder)
        command = [*place.words, sys.executable, "-m", "imagenet_ddp.train", *argv]
        parent = os.getpid()

        def in_child() -> None:
            if sys.platform == "linux":
                ctypes.CDLL(None).prctl(1, place.stop)  # PR_SET_PDEATHSIG: tune killed, the run saves and ends
                if place.cores:
                    os.sched_setaffinity(0, place.cores)
                if os.getppid() != parent:
                    os._exit(1)

        with self.log.open("a", encoding="utf-8") as log:
            with contextlib.suppress(OSError):  # a file system without locks
                fcntl.flock(log, fcntl.LOCK_EX)  # the process's as well, for as long as it lives
            log.write(f"$ {shlex.join(command)}\n")
            log.flush()
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, **place.environ},
                start_new_session=True,  # Ctrl-C in the terminal reaches tune alone, which passes it on
                preexec_fn=in_child,
            )

    def stop(self) -> None:
        """Asked once, it saves and ends; what has not ended by then is killed (see `ended`)."""
        if self.stop_since is None and self.process is not None and self.place is not None:
            self.stop_since = time.monotonic()
            self.process.send_signal(self.place.stop)

    def ended(self) -> int | None:
        """The exit code, 128 + n for signal n; None while it runs."""
        assert self.process is not None
        code = self.process.poll()
        if code is None and self.stop_since is not None and time.monotonic() - self.stop_since > STOP_S:
            self.process.kill()
        if code is not None and self.ended_at is None:
            self.ended_at = time.monotonic()
        return None if code is None else code if code >= 0 else 128 - code

    def new_epochs(self) -> dict[int, float]:
        """Epoch -> val/top1 of metrics.csv; {} where the file is the one read last."""
        path = self.folder / "metrics.csv"
        try:
            found = path.stat()
        except FileNotFoundError:
            return {}
        if self._seen == (found.st_mtime_ns, found.st_ino):
            return {}
        self._seen = (found.st_mtime_ns, found.st_ino)
        with path.open(newline="", encoding="utf-8") as file:
            return {int(row["epoch"]): float(row["val/top1"]) for row in csv.DictReader(file) if row["val/top1"]}

    def result(self) -> tuple[float | None, int | None] | None:
        """(highest val/top1, its epoch) of a run that finished; None of one that did not."""
        found = summary(self.folder)
        return (found["best/val/top1"], found["best_epoch"]) if found else None

    def last_lines(self, num: int | None = TAIL) -> list[str]:
        """Of its log, since it was last started; None: all of them."""
        try:
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            return []
        begin = max((number for number, line in enumerate(lines) if line.startswith("$ ")), default=-1)
        found = [line for line in lines[begin + 1 :] if line.strip()]
        return found[-num:] if num else found

    def wait_until_free(self) -> None:
        """A run of an earlier, killed tune may still be saving."""
        end = time.monotonic() + FREE_S
        with self.log.open("a") as log:
            while time.monotonic() < end:
                try:
                    fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    time.sleep(0.2)
                except OSError:
                    return
                else:
                    return
