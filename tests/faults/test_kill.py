"""Processes that are killed, and a machine that loses its power, at random moments: the run that is resumed ends as
one to which nothing has happened."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import torch
from conftest import PROBES, clean_environ
from faults.trainings import SLOW, assert_same, family, largest, options_of, short
from helpers.forked_commands import Command, run
from helpers.train_runs import wait_for

pytestmark = pytest.mark.slow(40)

KILLS = 4
VICTIMS = ("parent", "rank", "all", "any")  # any: maybe a helper that the run does without


def changed(file: Path) -> Callable[[], bool]:
    """Return a function: whether the file has been written since."""

    def written_ns() -> int:
        return file.stat().st_mtime_ns if file.exists() else 0

    before = written_ns()
    return lambda: written_ns() != before


def kill(processes: list[psutil.Process], who: str, draw: random.Random) -> None:
    """Kill one of them or all; then all of them must end within a minute."""
    if who == "parent" or len(processes) < 2:
        victims = processes[:1]
    elif who == "all":
        victims = processes
    elif who == "rank":
        victims = [largest(processes)]
    else:
        victims = [draw.choice(processes)]
    for process in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
    _, alive = psutil.wait_procs(processes, timeout=60)
    assert not alive, f"{alive} after {who} was killed"


@pytest.fixture(scope="module")
def whole(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing happens to."""
    folder = tmp_path_factory.mktemp("whole")
    done = run(
        "imagenet_ddp.train", *options_of(tree, 0), "hydra.run.dir=r", folder=folder, environment=clean_environ()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "r"


def test_kills_at_random_moments(tree: Path, whole: Path, tmp_path: Path) -> None:
    """SIGKILL of the command, of a rank, of all and of any of its processes at random moments: all processes end, and
    the last command completes the run bit-exactly."""
    seed = random.randrange(10**6)
    draw, environment = random.Random(seed), clean_environ(PYTHONPATH=PROBES)
    ways = [[*options_of(tree, workers), "hydra.run.dir=r"] for workers in (0, 2)]
    told = [f"seed {seed}"]
    last, num_hit = tmp_path / "r/checkpoints/last.ckpt", 0
    for number in range(KILLS):
        command = Command("imagenet_ddp.train", *ways[number % 2], *SLOW, folder=tmp_path, environment=environment)
        if number % 3:  # else while it starts
            is_written = changed(last)
            wait_for(lambda command=command, is_written=is_written: is_written() or command.poll() is not None)
        delay_s = draw.uniform(0, 1)
        time.sleep(delay_s)
        who = VICTIMS[number % len(VICTIMS)]
        kill(family(command), who, draw)
        num_hit += command.wait(60) != 0
        told.append(f"{who}, {delay_s:.1f} s after {'a checkpoint' if number % 3 else 'the start'}")
    assert num_hit >= KILLS / 2, told
    done = run("imagenet_ddp.train", *ways[0], "++callbacks.probe=null", folder=tmp_path, environment=environment)
    assert done.returncode == 0, "\n".join([*told, done.stdout, done.stderr])
    assert_same(whole, tmp_path / "r")


def test_power_cuts(tree: Path, unharmed: Callable[..., Path], tmp_path: Path) -> None:
    """The power is cut, three times in one run at random moments: data not yet synced to the disk are lost, and the
    last command completes the run bit-exactly. Rows of loggers may be missing, because loggers do not sync them."""
    options, environment = short(tree), clean_environ(PYTHONPATH=PROBES)
    seed = random.randrange(10**6)
    draw, told, first = random.Random(seed), [f"seed {seed}"], 0
    for _ in range(3):
        first, seconds = first + draw.randint(3, 5), draw.uniform(0, 0.4)
        probe = {"_target_": "power_cut.PowerCut", "folder": "r", "step": first, "seconds": seconds}
        cut = [
            "allow_targets=[power_cut.PowerCut,probe.Probe]",
            *(f"+callbacks.power_cut.{key}={probe[key]}" for key in probe),
        ]
        done = run("imagenet_ddp.train", *options, *SLOW[1:], *cut, "hydra.run.dir=r", folder=tmp_path,
                   environment=environment)  # fmt: skip
        assert done.returncode == 9, (*told, done.stdout + done.stderr)
        saved = torch.load(tmp_path / "r/checkpoints/last.ckpt", weights_only=True)["global_step"]
        told.append(f"{seconds:.2f} s after step {first} began, with a checkpoint of step {saved}")
        assert saved >= first - 4, told  # every second step is saved, and written by the time of the next save
    quiet = ("++callbacks.power_cut=null", "++callbacks.probe=null")
    done = run("imagenet_ddp.train", *options, *quiet, "hydra.run.dir=r", folder=tmp_path, environment=environment)
    assert done.returncode == 0, "\n".join([*told, done.stdout, done.stderr])
    assert_same(unharmed(), tmp_path / "r", logged_steps=False)
