"""Start train with a probe, read what it has seen and written, and compare what two runs have written."""

import csv
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import PROBES, clean_environ
from helpers import forked_commands
from helpers.forked_commands import Command
from torch.utils import _pytree as pytree


def start(cwd: Path, *options: str, forked: bool = True, **environ: str | None) -> subprocess.Popen[str] | Command:
    environment = clean_environ(PYTHONPATH=PROBES, **environ)
    return forked_commands.start("imagenet_ddp.train", *options, folder=cwd, environment=environment, forked=forked)


def wait_for(
    condition: Callable[[], object], command: Command | subprocess.Popen[Any] | None = None, *, timeout_s: float = 240
) -> None:
    """Wait until the condition is true. Fail after timeout_s, or when the command ends before."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline or (command is not None and command.poll() is not None and not condition()):
            said = command.out + command.err if isinstance(command, Command) else ""
            pytest.fail(f"waited in vain: {said}")
        time.sleep(0.02)


def probe(folder: Path, **keys: object) -> list[str]:
    """Options that add tests/helpers/probes/probe.py to a run; its folder holds what it saw."""
    options = [
        "allow_targets=[probe.Probe]",
        "+callbacks.probe._target_=probe.Probe",
        f"+callbacks.probe.folder='{folder}'",
    ]
    return options + [f"+callbacks.probe.{key}={value}" for key, value in keys.items()]


def slow_disk(root: Path, folder: Path, seconds: float) -> list[str]:
    """Options for tests/helpers/probes/slow_disk.py, which creates the file folder/mark.<PID> when it begins."""
    return [f"data.root={root}", "data._target_=slow_disk.open_slowly", "allow_targets=[slow_disk]",
            f"+data.args.mark={folder / 'mark'}", f"+data.args.seconds={seconds}"]  # fmt: skip


def seen(folder: Path) -> dict[int, list[int]]:
    """Epoch -> the images trained on, over all ranks, in the order of rank and step."""
    images: dict[int, list[int]] = {}
    for path in sorted(folder.glob("seen*.jsonl")):
        for line in path.read_text().splitlines():
            epoch, _, indices = json.loads(line)
            images.setdefault(epoch, []).extend(indices)
    return images


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


MEASURED = {"images_per_s", "data_wait_frac", "train_s"}


def assert_same_runs(one: Path, other: Path) -> None:
    """Check that two run folders have the same weights, optimizer states and figures, to the bit."""
    for name in ("last.ckpt", "best.ckpt"):
        states = [torch.load(folder / "checkpoints" / name, weights_only=True) for folder in (one, other)]
        for key in ("state_dict", "current_model_state", "optimizer_states"):
            leaves, others = (pytree.tree_flatten_with_path(state.get(key))[0] for state in states)
            assert len(leaves) == len(others) and (leaves or key == "current_model_state")
            for (path, leaf), (_, its) in zip(leaves, others, strict=True):
                same = torch.equal(leaf, its) if isinstance(leaf, torch.Tensor) else leaf == its
                assert same, (name, key, pytree.keystr(path))
    own, others = (
        [{key: row[key] for key in row.keys() - MEASURED} for row in rows(folder)] for folder in (one, other)
    )
    assert own == others
