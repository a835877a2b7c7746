"""Where the trials of a study run: each that runs at the same time has its own GPUs and CPU cores, or is a SLURM step.
No torch here."""

import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagenet_ddp.distributed import cards, slurm
from imagenet_ddp.distributed.asked import num_devices
from imagenet_ddp.distributed.check import has_no_gpu
from imagenet_ddp.trainer_keys import shown


@dataclass(frozen=True)
class Place:
    words: tuple[str, ...] = ()  # before python: srun and its options
    options: tuple[str, ...] = ()  # further ones of train
    environ: Mapping[str, str] = field(default_factory=dict)  # on top of this process's
    cores: tuple[int, ...] = ()  # of this machine; none: all
    stop: int = signal.SIGTERM  # what makes a run save and end


def by_srun(launcher: str, environ: Mapping[str, str]) -> bool:
    """auto: inside an allocation, but not in one of its steps, which has its own devices only."""
    if launcher != "auto":
        return launcher == "srun"
    return "SLURM_JOB_ID" in environ and not slurm.in_step(environ) and shutil.which("srun") is not None


def share(
    config: Mapping[str, Any], options: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[list[Place], list[str]]:
    """(tune.num_at_once places, mistakes). config: train's, plain; options: tune.*"""
    num = options["num_at_once"]
    if by_srun(options["launcher"], environ):
        return _steps(config["trainer"], num, environ)
    trainer, num_nodes = config["trainer"], config["trainer"]["num_nodes"]
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return [], ["tune starts the processes of each trial, but RANK or WORLD_SIZE is set. HINT: start tune itself "
                    "once, without torchrun or srun."]  # fmt: skip
    if num_nodes not in ("auto", 1):
        return [], [
            f"trainer.num_nodes={num_nodes}: outside of a SLURM allocation, trials run on this machine. "
            "HINT: leave it out, or start tune inside of sbatch or salloc."
        ]
    if num == 1:
        return [Place()], []
    if options["launcher"] == "local" and not slurm.in_step(environ) and slurm.num_job_nodes(environ) > 1:
        return [], ["tune.launcher=local uses this node alone. HINT: tune.launcher=srun."]
    gpus, found = _gpus(trainer, num, environ)
    cores = _cores(num)
    if found:
        return [], found
    places = []
    for number in range(num):
        mine = {"CUDA_VISIBLE_DEVICES": ",".join(gpus[number])} if gpus else {}
        places.append(Place(environ=mine, cores=cores[number]))
    return places, []


def _gpus(trainer: Mapping[str, Any], num: int, environ: Mapping[str, str]) -> tuple[list[list[str]], list[str]]:
    """(the GPUs of each trial, mistakes); no GPUs where CPUs train."""
    if has_no_gpu(trainer) is not None:
        return [], []
    names = visible(environ)
    if not names and trainer["accelerator"] == "auto" and environ.get("CUDA_VISIBLE_DEVICES") == "":
        return [], []
    if not names:
        return [], [
            f"tune.num_at_once={num} shares out this machine's GPUs, but nvidia-smi names none. "
            "HINT: tune.num_at_once=1, or CUDA_VISIBLE_DEVICES=0,1,... for those to share."
        ]
    devices, asked = trainer["devices"], num_devices(trainer["devices"])
    if asked is None and devices not in ("auto",):
        return [], [
            f"trainer.devices={shown(devices)} means all GPUs, but tune.num_at_once={num} shares them out. "
            "HINT: trainer.devices=1."
        ]
    if not isinstance(devices, int | str) or (isinstance(devices, str) and "," in devices):
        return [], [
            f"trainer.devices={shown(devices)} names GPUs, but tune.num_at_once={num} shares them out. "
            f"HINT: trainer.devices={asked}, and CUDA_VISIBLE_DEVICES for those to share."
        ]
    each = asked or max(1, len(names) // num)
    if each * num > len(names):
        most = len(names) // each
        hint = f"tune.num_at_once={most}" if most else f"trainer.devices={len(names)} tune.num_at_once=1"
        return [], [
            f"tune.num_at_once × trainer.devices is expected to be at most {len(names)}, the GPUs of this machine, "
            f"but is {num} × {each} = {num * each}. HINT: set {hint}."
        ]
    return [names[number * each : (number + 1) * each] for number in range(num)], []


def visible(environ: Mapping[str, str]) -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, by UUID: CUDA and the driver may number them in other orders."""
    there = cards.cards()
    seen = cards.visible(there, environ)
    if seen is None or (not there and environ.get("CUDA_VISIBLE_DEVICES")):  # MIG, or a driver that does not answer
        return [name.strip() for name in environ["CUDA_VISIBLE_DEVICES"].split(",") if name.strip()]
    return [card.uuid for card in seen]


def _cores(num: int) -> list[tuple[int, ...]]:
    """Blocks of this process's cores, which threads and loader processes then follow; shared where there are fewer
    cores than trials."""
    if not hasattr(os, "sched_getaffinity"):
        return [()] * num
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // num
    if not each:
        return [(cores[number % len(cores)],) for number in range(num)]
    return [tuple(cores[number * each : (number + 1) * each]) for number in range(num)]


def _steps(trainer: Mapping[str, Any], num: int, environ: Mapping[str, str]) -> tuple[list[Place], list[str]]:
    """One srun for each trial, with its share of the allocation's CPUs, GPUs and memory and nothing else (--exact):
    without that a step takes whole nodes, and the next one waits."""
    if "SLURM_JOB_ID" not in environ:
        return [], ["tune.launcher=srun starts steps in an allocation, but there is none. HINT: start tune inside of "
                    "sbatch or salloc, or tune.launcher=local."]  # fmt: skip
    job_nodes = slurm.num_job_nodes(environ)
    nodes = trainer["num_nodes"] if trainer["num_nodes"] != "auto" else 1
    if nodes > job_nodes:
        return [], [
            f"trainer.num_nodes is expected to be at most {job_nodes}, the nodes of SLURM job "
            f"{environ['SLURM_JOB_ID']}, but is {nodes}. HINT: #SBATCH --nodes={nodes}"
        ]
    per_node = -(-num * nodes // job_nodes)  # trials that share a node
    cpus = min(slurm.expand_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", "")), default=1)
    gpus = 0 if trainer["accelerator"] == "cpu" else _gpus_per_node(environ)
    devices = num_devices(trainer["devices"]) or max(1, gpus // per_node)
    for what, there in (("GPUs", gpus), ("CPUs", cpus)):
        if there and per_node * devices > there:
            most = max(1, there // devices * job_nodes // nodes)
            return [], [
                f"tune.num_at_once={num} needs {per_node} × {devices} {what} on a node, but SLURM job "
                f"{environ['SLURM_JOB_ID']} has {there}. HINT: set tune.num_at_once={most}."
            ]
    words = ["srun", "--exact", f"--nodes={nodes}", f"--ntasks={nodes * devices}", f"--ntasks-per-node={devices}"]
    words.append(f"--cpus-per-task={cpus // (per_node * devices)}")
    if gpus:
        words += [f"--gpus-per-node={devices}", "--gpu-bind=none"]
    if environ.get("SLURM_MEM_PER_NODE", "").isdecimal() and int(environ["SLURM_MEM_PER_NODE"]):
        words.append(f"--mem={int(environ['SLURM_MEM_PER_NODE']) // per_node}M")
    # srun passes SIGUSR2 on; by SIGTERM it kills its tasks at once
    return [Place(tuple(words), stop=signal.SIGUSR2) for _ in range(num)], []


def _gpus_per_node(environ: Mapping[str, str]) -> int:
    """SLURM_GPUS_ON_NODE counts them where tune runs; SLURM_GPUS_PER_NODE is as asked for, "a100:4"."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if match := re.search(r"(\d+)$", environ.get(name, "")):
            return int(match.group())
    return 0
