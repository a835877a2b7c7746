"""Mistakes in who takes part: devices, nodes, launcher, meeting place. Before torch is imported: GPUs are not asked."""

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagenet_ddp.trainer_keys import ACCEPTED, AUTO, NULL, Kind, choice, expect, kind, number, shown, whole

PROCESSES_PER_CORE = 4  # beyond this a machine only swaps
# Where a GPU may show without asking torch: NVIDIA, WSL 2, AMD, NVIDIA's small boards. macOS counts as having one.
GPU_PATHS = ("/proc/driver/nvidia", "/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/dev/nvmap")

_ENV_PORT = kind("a port from 1 to 65535", lambda value: str(value).isdecimal() and 1 <= int(value) <= 65535)
_KINDS: dict[str, tuple[Kind, str]] = {
    "strategy.name": (choice("auto", "ddp"), "auto"),
    "strategy.process_group_backend": (choice("gloo", "nccl") | NULL, "null"),
    "strategy.timeout_s": (number(above=0), "1800"),
    "strategy.bucket_cap_mb": (number(above=0), "25"),
    "cluster.node_rank": (whole(0) | NULL, "null"),
    "cluster.timeout_s": (number(above=0), "120"),
    "cluster.num_threads": (AUTO | whole(1), "auto"),
}


def mistakes(
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    verb: str = "train",
    typed: Sequence[str] = (),
    multirun: bool = False,
) -> list[str]:
    """Sentences, none where all is well. typed: the options as typed, for the line to type instead."""
    found: list[str] = []
    for key, (allowed, example) in _KINDS.items():
        node, name = key.split(".")
        found += expect(key, config[node][name], allowed, f"{key}={example}")
    command = f"python -m imagenet_ddp.{verb}"
    found += _cpu(config, environ)
    if {"RANK", "WORLD_SIZE"} & environ.keys():
        found += _launched(config, environ)
        if multirun and environ.get("WORLD_SIZE", "1") not in ("0", "1"):
            found.append(
                f"-m starts the workers of each job itself, but this process is one of "
                f"WORLD_SIZE={environ['WORLD_SIZE']} that a launcher started. "
                f"HINT: without the launcher: `{command} -m {shlex.join(typed)}`."
            )
        return found
    num_nodes = config["trainer"].get("num_nodes")
    if whole(2).accepts(num_nodes):
        found += _meeting(config, environ, f"{command} {shlex.join(typed) or f'trainer.num_nodes={num_nodes}'}")
    tasks = environ.get("SLURM_STEP_NUM_TASKS", "1")
    if tasks.isdecimal() and int(tasks) > 1 and num_nodes != int(tasks):
        found.append(
            f"srun started {tasks} tasks (SLURM_STEP_NUM_TASKS), but none has a RANK: each would train a copy of "
            "its own. HINT: one task per node, and torchrun in it: "
            f"`srun --ntasks-per-node=1 torchrun ... -m imagenet_ddp.{verb}`."
        )
    return found


def num_devices(devices: Any) -> int | None:
    """How many devices trainer.devices asks for on each node; None where it leaves that open."""
    if isinstance(devices, str) and devices not in ("auto", "-1"):
        return len(devices.strip(",").split(",")) if "," in devices else int(devices) if devices.isdecimal() else None
    if isinstance(devices, int) and not isinstance(devices, bool):
        return devices if devices >= 1 else None
    return len(devices) if isinstance(devices, Sequence) and not isinstance(devices, str) else None


def _cpu(config: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """What can be said of CPU processes; nothing where there may be a GPU."""
    trainer = config["trainer"]
    accelerator, devices = trainer.get("accelerator"), trainer.get("devices")
    if not ACCEPTED["devices"][0].accepts(devices):
        return []  # said already
    if accelerator == "cpu":
        why = "trainer.accelerator is cpu"
    elif accelerator == "auto" and sys.platform != "darwin" and not any(Path(path).exists() for path in GPU_PATHS):
        why = "this machine has no GPU"
    else:
        return []
    found = []
    if config["strategy"]["process_group_backend"] == "nccl":
        found.append(
            f"strategy.process_group_backend=nccl is for GPUs, but {why}. HINT: strategy.process_group_backend=null."
        )
    count, from_where = num_devices(devices), ""
    names_gpus = (isinstance(devices, str) and "," in devices) or not isinstance(devices, str | int | None)
    if names_gpus or devices in (-1, "-1"):
        what = "names GPUs" if names_gpus else "means all GPUs"
        found.append(
            f"trainer.devices={shown(devices)} {what}, but {why}. "
            f"HINT: set trainer.devices={count or 2}: so many CPU processes."
        )
        return found
    if count is None and environ.get("LOCAL_WORLD_SIZE", "").isdecimal():
        count, from_where = int(environ["LOCAL_WORLD_SIZE"]), " (LOCAL_WORLD_SIZE, from the launcher)"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if count is not None and count > PROCESSES_PER_CORE * cores:
        found.append(
            f"trainer.devices is expected to be at most {PROCESSES_PER_CORE * cores} ({PROCESSES_PER_CORE} processes "
            f"for each of {cores} CPU cores; {why}), but is {count}{from_where}. HINT: set trainer.devices={cores}."
        )
    return found


def _launched(config: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """A launcher set RANK or WORLD_SIZE: all it must set is there, and what is typed agrees with it."""
    needed = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT"] + ["MASTER_ADDR"] * (not config["cluster"]["address"])
    if missing := [name for name in needed if name not in environ]:
        there = ", ".join(f"{name}={environ[name]}" for name in ("RANK", "WORLD_SIZE") if name in environ)
        return [
            f"{there} in the environment says that a launcher started this process, but not set: {', '.join(missing)}. "
            "HINT: start it with torchrun, set what is missing, or unset RANK and WORLD_SIZE."
        ]
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK"] + [name for name in ("LOCAL_WORLD_SIZE",) if name in environ]
    wrong = [name for name in names if not environ[name].isdecimal()]
    found = [
        f"{name} is expected to be a whole number, but is {environ[name]} (environment). HINT: start it with torchrun."
        for name in wrong
    ]
    found += expect("MASTER_PORT", environ["MASTER_PORT"], _ENV_PORT, "MASTER_PORT=29500 (environment)")
    if found:
        return found
    rank, world_size = int(environ["RANK"]), int(environ["WORLD_SIZE"])
    if rank >= world_size:
        return [
            f"RANK is expected to be below WORLD_SIZE ({world_size}), but is {rank} (environment). "
            "HINT: ranks count from 0."
        ]
    local = int(environ["LOCAL_WORLD_SIZE"]) if "LOCAL_WORLD_SIZE" in environ else None
    devices = num_devices(config["trainer"].get("devices"))
    num_nodes = config["trainer"].get("num_nodes")
    num_nodes = num_nodes if whole(1).accepts(num_nodes) else None
    leave_out = "leave trainer.devices and trainer.num_nodes out: the launcher's numbers are followed"
    if devices is not None and local is not None and devices != local:
        found.append(
            f"trainer.devices is expected to equal LOCAL_WORLD_SIZE ({local}, from the launcher), but is {devices}. "
            f"HINT: set trainer.devices={local}, or {leave_out}."
        )
    if devices is None and local is not None:
        devices = local
    if devices is not None and num_nodes is not None and devices * num_nodes != world_size:
        fits = world_size % devices == 0
        hint = f"set trainer.num_nodes={world_size // devices}" if fits else leave_out
        found.append(
            f"trainer.devices × trainer.num_nodes is expected to equal WORLD_SIZE ({world_size}), but is "
            f"{devices} × {num_nodes} = {devices * num_nodes}. HINT: {hint}."
        )
    elif (devices or num_nodes) and world_size % (devices or num_nodes or 1):
        key, value = ("devices", devices) if devices else ("num_nodes", num_nodes)
        found.append(
            f"trainer.{key} is expected to divide WORLD_SIZE ({world_size}), but is {value}. HINT: {leave_out}."
        )
    return found


def _meeting(config: Mapping[str, Any], environ: Mapping[str, str], line: str) -> list[str]:
    """One command per node: where do they meet, and which is this one?"""
    cluster, num_nodes = config["cluster"], config["trainer"]["num_nodes"]
    address = cluster["address"] or environ.get("MASTER_ADDR")
    others = f"<0 to {num_nodes - 1}>"
    if not address:
        return [
            f"trainer.num_nodes={num_nodes} needs a place where the nodes meet, but there is no cluster.address, no "
            "MASTER_ADDR in the environment, and no launcher's RANK and WORLD_SIZE. HINT: type on each node "
            f"`MASTER_ADDR=<address of node 0> NODE_RANK={others} {line}`."
        ]
    found = []
    port = address.removeprefix("tcp://").partition(":")[2] or environ.get("MASTER_PORT", "29500")
    if not _ENV_PORT.accepts(port):
        where = "cluster.address" if cluster["address"] else "MASTER_ADDR or MASTER_PORT"
        found.append(
            f"{where} is expected to end in {_ENV_PORT.words}, but that is {port}. HINT: cluster.address=HOST:29500."
        )
    sources = {
        "cluster.node_rank": cluster["node_rank"],
        **{key: environ.get(key) for key in ("NODE_RANK", "GROUP_RANK")},
    }
    source = next((key for key, value in sources.items() if value is not None), None)
    if source is None:
        found.append(
            f"trainer.num_nodes={num_nodes}: the nodes meet at {address}, but which node is this? "
            f"HINT: cluster.node_rank={others}, 0 on the node that has that address, or NODE_RANK in the environment: "
            f"`{line} cluster.node_rank={others}`."
        )
    elif not str(sources[source]).isdecimal() or int(str(sources[source])) >= num_nodes:
        found.append(
            f"{source} is expected to be a whole number from 0 to {num_nodes - 1} (trainer.num_nodes={num_nodes}), "
            f"but is {sources[source]}. HINT: cluster.node_rank={others}."
        )
    return found
