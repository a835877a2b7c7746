"""Train on two nodes with the commands of a platform, which starts both again: after one was lost in the middle, or,
in a third of the time, after both have ended."""

import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conftest import PROBES, SMALL
from helpers import train_runs
from helpers.forked_commands import Command
from helpers.hosts import Host
from helpers.train_runs import probe, wait_for

EPOCHS = 8


@dataclass(frozen=True)
class Started:
    """What a platform starts on a node: a command, here as its words, with these environment variables."""

    words: Sequence[str]
    environ: Mapping[str, str]


def small(tree: Path) -> list[str]:
    """Options that follow those of the platform's file, for a training of seconds on a CPU."""
    options = [option for option in SMALL if not option.startswith("data=")]
    return [*options, "data=imagefolder", f"data.root={tree}"]


def goes_on_after_its_end(
    hosts: tuple[Host, ...], started: Sequence[Started], options: Sequence[str], run_dir: Path
) -> str:
    """Check that the same commands train for one epoch and, started again, for a second one. Return what node 0 printed
    then. options: follow those of the commands."""
    out = ""
    for epochs in (1, 2):
        commands = [
            host.popen([*each.words, *options, f"trainer.max_epochs={epochs}"], dict(each.environ))
            for host, each in zip(hosts, started, strict=True)
        ]
        assert [each.wait(120) for each in commands] == [0, 0], commands[0].err + commands[1].err
        assert len(train_runs.rows(run_dir)) == epochs
        out = commands[0].out
    assert f"resume=auto: continuing from {run_dir}" in out
    return out


def loses_a_node_and_resumes(
    hosts: tuple[Host, Host], started: Sequence[Started], options: Sequence[str], run_dir: Path, seen: Path
) -> str:
    """Check that the training ends with each epoch once, although node 1 was lost in the middle. Return what node 0
    printed after the restart. options: follow those of the commands. seen: folder of the probe."""
    options = [*options, f"trainer.max_epochs={EPOCHS}", *probe(seen, slow_s=0.2)]

    def start() -> list[Command]:
        return [
            host.popen([*each.words, *options], {"PYTHONPATH": PROBES, **each.environ})
            for host, each in zip(hosts, started, strict=True)
        ]

    def printed() -> str:
        return "\n".join(f"== exit code {each.poll()}\n{each.out}{each.err}" for each in commands)

    def num_epochs() -> int:
        return len(train_runs.rows(run_dir)) if (run_dir / "metrics.csv").exists() else 0

    commands = start()
    wait_for(lambda: num_epochs() >= 2 or any(each.poll() is not None for each in commands))
    assert all(each.poll() is None for each in commands), printed()
    for pid in hosts[1].processes():
        os.kill(pid, signal.SIGKILL)
    assert commands[0].wait(60) != 0, printed()
    assert num_epochs() < EPOCHS
    (seen / "fast").touch()
    commands = start()
    assert [each.wait(120) for each in commands] == [0, 0], printed()
    assert [row["epoch"] for row in train_runs.rows(run_dir)] == [str(epoch) for epoch in range(1, EPOCHS + 1)]
    assert train_runs.summary(run_dir)["num_nodes"] == 2
    assert f"resume=auto: continuing from {run_dir}" in commands[0].out, printed()
    return commands[0].out
