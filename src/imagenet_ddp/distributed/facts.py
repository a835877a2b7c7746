"""Compare what must be equal in a run's commands: options, code, libraries. Does not import torch."""

import functools
import hashlib
import os
import platform
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from imagenet_ddp.config.keys import leaves
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.validators import shown

LIBRARIES = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core", "omegaconf", "numpy")
# Options that may differ between nodes: ranks, interfaces, mount points, the name of node 0.
MAY_DIFFER = re.compile(
    r"cluster\.(rank|local_rank|node_rank|address)|nccl\.env(\..*IFNAME)?|data\.(root|train_dir|val_dir)|checkpoint|resume|out"
)
MAX_KEYS = 8
HINTS = {
    "the accelerator": "set trainer.accelerator=cpu, or trainer.accelerator=gpu to read why a machine has no GPU",
    "the precision": "set trainer.precision=32-true, which every device supports",
    "the code of imagenet_ddp": "install the same version of this project everywhere",
    "number of workers": "set the same trainer.devices on every node",
}


def facts_of_command(config: CommonConfig, num_local: int | None) -> dict[str, Any]:
    """Return, as plain JSON, the facts about this command that must be equal in all commands.

    config: the resolved config, as typed on this machine. num_local: number of workers that the command starts; None if
    the command is itself a rank.
    """
    facts: dict[str, Any] = {
        f"option {key}": value for key, value in leaves(config).items() if not MAY_DIFFER.fullmatch(key)
    }
    facts["the code of imagenet_ddp"] = code_digest()
    facts["Python"] = f"{sys.version_info.major}.{sys.version_info.minor}"
    facts |= {library: _version(library) for library in LIBRARIES}
    if num_local is not None:
        facts["number of workers"] = num_local
    return facts


@dataclass(frozen=True)
class Process:
    """A process of a run. machine: an ID that only the processes of one machine share. pids: an ID of the processes
    among which the pid is unique, such as those of a container."""

    host: str
    pid: int
    machine: str
    pids: str


def this_process() -> Process:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pids = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = pids = ""
    machine = f"{platform.node()} {boot}"
    return Process(socket.gethostname(), os.getpid(), machine, f"{machine} {pids}")


def differences(facts: Sequence[Mapping[str, Any]], noun: str) -> list[str]:
    """Return an error message for each fact that differs.

    facts: facts of each command, by rank or node number. noun: rank or node.
    """
    keys = list(dict.fromkeys(key for each in facts for key in each))
    found: list[str] = []
    for key in keys:
        groups: dict[str, list[int]] = {}
        for number, each in enumerate(facts):
            groups.setdefault(shown(each[key]) if key in each else "not set", []).append(number)
        if len(groups) == 1 or all(_is_path(each.get(key)) for each in facts):
            continue
        whose = "; ".join(f"{value} on {_numbers(numbers, noun)}" for value, numbers in groups.items())
        name = key.removeprefix("option ")
        found.append(f"the {noun}s disagree on {name}: {whose}. Hint: {_hint(key)}.")
    if len(found) > MAX_KEYS:
        found[MAX_KEYS:] = [
            f"the {noun}s disagree on {len(found) - MAX_KEYS} more facts. Hint: type the same line on each {noun}."
        ]
    return found


@functools.cache
def code_digest() -> str:
    """Return a hash of this package's Python files, in the order of their names."""
    digest = hashlib.sha256()
    package = Path(__file__).resolve().parents[1]
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:  # such as a build on PYTHONPATH
        return "unknown"


def _hint(key: str) -> str:
    if key in HINTS:
        return HINTS[key]
    if key.startswith("option "):
        return "type the same options everywhere"
    return "use the same images on every machine" if key.startswith("the ") else f"install the same {key} everywhere"


def _is_path(value: object) -> bool:
    return isinstance(value, str) and value.startswith(("/", "~"))


def _numbers(numbers: Sequence[int], noun: str) -> str:
    """Format a list of numbers, such as [0, 1, 2, 5] as "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    ranges = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    more = ", ..." if len(ranges) > 8 else ""
    return f"{noun}{'s' if len(numbers) > 1 else ''} {', '.join(ranges[:8])}{more}"
