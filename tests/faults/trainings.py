"""Trainings to which something happens: started, resumed, and compared with one to which nothing has happened."""

import contextlib
import functools
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from conftest import PROBES, SMALL, clean_environ
from helpers import logged
from helpers.forked_commands import Command, run
from helpers.train_runs import assert_same_runs, wait_for

OPTIONS = (
    *SMALL, "trainer.devices=2", "trainer.max_epochs=6", "trainer.log_every_n_steps=1", "data.augment=pad_crop",
    "data.policy=randaugment", "data.mixup_alpha=0.4", "averaging=ema", "averaging.decay=0.5", "logger=csv",
    "+callbacks.checkpoint.every_n_steps=2",
)  # fmt: skip

SLOW = (  # steps of 0.3 s: kills come between two of them
    "allow_targets=[probe.Probe]", "+callbacks.probe._target_=probe.Probe", "+callbacks.probe.folder=p",
    "+callbacks.probe.slow_s=0.3",
)  # fmt: skip


def options_of(tree: Path, workers: int) -> list[str]:
    return [*OPTIONS, f"data.root={tree}", f"data.num_workers={workers}", "resume=auto"]


def family(command: Command) -> list[psutil.Process]:
    """The command's processes, the first one first."""
    try:
        first = psutil.Process(command.pid)
        return [first, *first.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def largest(processes: list[psutil.Process]) -> psutil.Process:
    """Return a rank: the largest process below the first one, or the first one if there is no other."""

    def size(process: psutil.Process) -> int:
        with contextlib.suppress(psutil.NoSuchProcess):
            return process.memory_info().rss
        return 0

    return max(processes[1:] or processes, key=size)


def assert_same(whole: Path, parts: Path, *, logged_steps: bool = True) -> None:
    """logged_steps: compare those of the CSV logger too."""
    assert_same_runs(whole, parts)
    if logged_steps:  # those that were trained twice are logged twice
        one, other = ({step for step, _ in logged.of_csv(folder)["train/loss"]} for folder in (whole, parts))
        assert one == other, "no logged step is missing"
    assert not list(parts.rglob("*.tmp")), "nothing half-written stays"


# ---- trainings of a single rank that take a few seconds --------------------------------------------------------------

QUIET = ("+callbacks.probe=null",)  # in place of SLOW


@dataclass(frozen=True)
class End:
    """How a command ended. said_s: from the fault to the first words on stderr, or to the end; printed: all of them."""

    code: int
    out: str
    err: str
    said_s: float

    @property
    def said(self) -> str:
        return " ".join(f"{self.out}{self.err}".split())


def told(end: End, words: str) -> None:
    """Check that the output contains these words, and no traceback."""
    assert words in end.said, end.out + end.err
    assert "Traceback" not in end.err, end.err


def short(tree: Path, *more: str) -> list[str]:
    """The options of 3 epochs of 4 or 8 steps, by 1 rank or 2."""
    return [*options_of(tree, 0), "trainer.max_epochs=3", "trainer.devices=1", *more]


def begin(folder: Path, *options: str, run_dir: str = "r", after: int = 3) -> Command:
    """Start a training whose steps take 0.3 s, and return within step `after` + 1."""
    seen = folder / "p/seen0.jsonl"
    seen.unlink(missing_ok=True)
    environment = clean_environ(PYTHONPATH=PROBES)
    words = [*options, *SLOW, f"hydra.run.dir={run_dir}"]
    command = Command("imagenet_ddp.train", *words, folder=folder, environment=environment)
    wait_for(lambda: seen.exists() and len(seen.read_text().splitlines()) >= after, command)
    return command


def end(command: Command, timeout_s: float = 120) -> End:
    """Wait for the end of a command to which something happens now. Nothing of it may be left."""
    started, said_s, processes = time.monotonic(), None, family(command)
    while command.poll() is None:
        if said_s is None and command.err:
            said_s = time.monotonic() - started
        if time.monotonic() - started > timeout_s:
            printed = command.out + command.err
            command.kill()
            pytest.fail(f"hangs for {timeout_s} s: {printed}")
        time.sleep(0.02)
    took_s = time.monotonic() - started
    _, alive = psutil.wait_procs(processes, timeout=30)
    assert not alive, f"{alive} left: {command.out}{command.err}"
    return End(command.wait(), command.out, command.err, took_s if said_s is None else said_s)


def command(verb: str, *options: str, folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environ(PYTHONPATH=PROBES, **environ)
    return run(f"imagenet_ddp.{verb}", *options, folder=folder, environment=environment)


def resume(folder: Path, *options: str, run_dir: str = "r") -> subprocess.CompletedProcess[str]:
    """The same command without the probe, to its end."""
    done = command("train", *options, *QUIET, f"hydra.run.dir={run_dir}", folder=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@functools.cache
def whole(folder: Path, *options: str) -> Path:
    """The run folder of a training to which nothing happens, in a folder that is shared by all who ask."""
    number = len(list(folder.iterdir()))
    resume(folder, *options, run_dir=f"whole{number}")
    return folder / f"whole{number}"
