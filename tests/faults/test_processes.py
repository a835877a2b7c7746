"""Processes that die, stand still or want the same folder while a training runs; test_kill.py has random moments."""

import shlex
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import PROBES, SMALL, clean_environ
from faults.trainings import QUIET, SLOW, assert_same, begin, command, end, family, largest, resume, short, told
from helpers.forked_commands import Command
from helpers.ports import free_port
from helpers.train_runs import wait_for


@pytest.mark.slow(4)
def test_killed_rank(tree: Path, tmp_path: Path) -> None:
    """SIGKILL of one of two ranks in the middle of an epoch: the other rank and the command both report it within
    10 s, and the command says how to continue."""
    running = begin(tmp_path, *short(tree, "trainer.devices=2"), after=2)
    wait_for((tmp_path / "r/checkpoints/last.ckpt").exists, running)
    largest(family(running)).kill()
    ended = end(running)
    assert (ended.code, ended.said_s < 30) == (1, True), ended.said_s  # three times that, for a busy machine
    told(ended, "was ended by signal 9 (SIGKILL)")
    assert " is gone: its process, or its machine, no longer answers" in ended.err
    line = ended.err.partition("Continue with: python -m imagenet_ddp.train ")[2].splitlines()[0]
    assert command("train", *shlex.split(line), folder=tmp_path).returncode == 0


@pytest.mark.slow(4)
@pytest.mark.parametrize("more", [{}, {"TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "1"}])
def test_killed_rank_of_a_launcher(more: dict[str, str], tree: Path, tmp_path: Path) -> None:
    """One command per rank, as torchrun and srun start them: the other rank says how to continue, unless its launcher
    starts both again."""
    port = free_port()
    ranks = [
        Command(
            "imagenet_ddp.train", *short(tree, "trainer.devices=auto"), *SLOW, "hydra.run.dir=r", folder=tmp_path,
            environment=clean_environ(
                PYTHONPATH=PROBES, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2",
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), **more,
            ),
        )
        for rank in (0, 1)
    ]  # fmt: skip
    wait_for((tmp_path / "r/checkpoints/last.ckpt").exists, ranks[0])
    ranks[1].kill()
    ranks[1].wait(5)
    assert ranks[0].wait(60) == 1
    assert "ends because rank 1 is gone" in ranks[0].err
    _, said, line = ranks[0].err.partition("Continue with: python -m imagenet_ddp.train ")
    assert bool(said) == (not more)
    if said:
        assert command("train", *shlex.split(line.splitlines()[0]), folder=tmp_path).returncode == 0


@pytest.mark.slow
def test_stopped_rank(tree: Path, unharmed: Callable[..., Path], tmp_path: Path) -> None:
    """SIGSTOP of one of two ranks for longer than strategy.timeout_s: the other rank reports the timeout, all ranks end
    as soon as the stopped one can, and the run continues bit-exactly."""
    options = short(tree, "trainer.devices=2", "data.num_workers=1")
    running = begin(tmp_path, *options, "strategy.timeout_s=5", after=2)
    stopped = largest(family(running))
    stopped.send_signal(signal.SIGSTOP)
    stopped_at = time.monotonic()
    wait_for(lambda: "timed out after 5 s (strategy.timeout_s)" in running.err, running)
    said_s = time.monotonic() - stopped_at
    stopped.send_signal(signal.SIGCONT)  # else torch's launcher kills it half a minute later
    ended = end(running)
    assert (ended.code, said_s < 60) == (1, True)
    told(ended, "another rank did not take part in a collective operation. Hint: check whether a process is stopped")
    assert "leaked semaphore" not in ended.err
    resume(tmp_path, *options)
    assert_same(unharmed(2), tmp_path / "r")


@pytest.mark.slow
def test_two_trainings_in_one_folder(tree: Path, unharmed: Callable[..., Path], tmp_path: Path) -> None:
    """A second command is started in the folder of a run in progress: the second command is refused, and the first
    one is not affected."""
    options = short(tree)
    running = begin(tmp_path, *options)
    running.send_signal(signal.SIGSTOP)  # it must not end before the other one has started
    second = Command(
        "imagenet_ddp.train", *options, *QUIET, "hydra.run.dir=r", folder=tmp_path, environment=clean_environ()
    )
    refused = end(second)
    assert refused.code == 2
    told(refused, "r must be free, but another process trains in it. Hint: wait until it ends, or stop it first.")
    running.send_signal(signal.SIGCONT)
    assert end(running).code == 0
    assert_same(unharmed(), tmp_path / "r")


@pytest.mark.slow
def test_two_tunes(tree: Path, tmp_path: Path) -> None:
    """A second tune is started on a running study: the second tune is refused, and the first one runs each
    trial once."""
    pytest.importorskip("optuna", reason="the extra `tune` is not installed")
    small = [option for option in SMALL if not option.startswith("optim.lr")]
    options = [*small, f"data.root={tree}", "trainer.max_epochs=1", "search=none", "search.optim.lr=[0.01,0.02]",
               "tune.num_trials=2", "hydra.run.dir=s"]  # fmt: skip

    def tune(*words: str) -> Command:
        return Command("imagenet_ddp.tune", *words, folder=tmp_path, environment=clean_environ())

    first = tune(*options)
    wait_for((tmp_path / "s/trials/0").exists, first)
    first.send_signal(signal.SIGSTOP)
    refused = end(tune(*options))
    assert refused.code == 2
    told(refused, "s must be free, but another process trains in it. Hint: wait until it ends, or stop it first.")
    first.send_signal(signal.SIGCONT)
    assert first.wait(240) == 0, first.err
    assert "2 trials: 2 finished." in first.out
