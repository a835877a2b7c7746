"""Trainings to which something happens: started, resumed, and compared with one to which nothing has happened."""

import csv
import functools
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from conftest import PROBES, SMALL, clean_environ
from helpers import logged
from helpers.forked_commands import Command, run

MEASURED = ("images_per_s", "data_wait_frac", "train_s")
OPTIONS = (
    *SMALL, "trainer.devices=2", "trainer.max_epochs=6", "trainer.log_every_n_steps=1", "data.augment=pad_crop",
    "data.policy=randaugment", "data.mixup_alpha=0.4", "averaging=ema", "averaging.decay=0.5", "logger=csv",
    "+callbacks.checkpoint.every_n_steps=2",
)  # fmt: skip

SLOW = (  # steps of 0.3 s: kills come between two of them
    "allow_targets=[probe]", "+callbacks.probe._target_=probe.Probe", "+callbacks.probe.folder=p",
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


def state(path: Path) -> dict[str, torch.Tensor]:
    """All tensors of a checkpoint that training and evaluation read."""
    found = {}

    def visit(name: str, value: object) -> None:
        if isinstance(value, torch.Tensor):
            found[name] = value
        elif isinstance(value, dict):
            for key, each in value.items():
                visit(f"{name}.{key}", each)
        elif isinstance(value, list | tuple):
            for key, each in enumerate(value):
                visit(f"{name}.{key}", each)

    stored = torch.load(path, weights_only=True)
    for key in ("state_dict", "current_model_state", "optimizer_states"):
        visit(key, stored.get(key))
    assert len(found) > 100
    return found


def assert_same(whole: Path, parts: Path, *, logged_steps: bool = True) -> None:
    """logged_steps: compare those of the CSV logger too."""
    for name in ("last.ckpt", "best.ckpt"):
        one, other = state(whole / "checkpoints" / name), state(parts / "checkpoints" / name)
        assert one.keys() == other.keys()
        assert [key for key in one if not torch.equal(one[key], other[key])] == [], name
    rows = []
    for folder in (whole, parts):
        with (folder / "metrics.csv").open(newline="") as file:
            kept = [{key: row[key] for key in row.keys() - set(MEASURED)} for row in csv.DictReader(file)]
        rows.append([{key: float(value) for key, value in row.items()} for row in kept])
    assert rows[0] == [pytest.approx(row, rel=1e-9) for row in rows[1]]
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


def wait_for(condition: Callable[[], object], command: Command, timeout_s: float = 120) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert command.poll() is None and time.monotonic() < deadline, command.out + command.err
        time.sleep(0.02)


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
