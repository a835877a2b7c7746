"""Where the trials of a study run: with a share of this machine's GPUs and CPU cores each, or as SLURM steps. No
torch."""

import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from imagenet_ddp.config.validators import shown
from imagenet_ddp.distributed import nvidia_gpus
from imagenet_ddp.distributed.launchers import slurm_env
from imagenet_ddp.distributed.launchers.request import num_devices
from imagenet_ddp.distributed.validate import no_gpu_reason


@dataclass(frozen=True)
class Place:
    words: tuple[str, ...] = ()  # before python: srun and its options
    environ: Mapping[str, str] = field(default_factory=dict)  # added to this process's environment
    cores: tuple[int, ...] = ()  # of this machine; none: all
    stop: int = signal.SIGTERM  # signal on which a run saves and ends


def by_srun(launcher: str, environ: Mapping[str, str]) -> bool:
    """auto: inside an allocation, but not in one of its steps, which has its own devices only."""
    if launcher != "auto":
        return launcher == "srun"
    return "SLURM_JOB_ID" in environ and not slurm_env.in_step(environ) and shutil.which("srun") is not None


def share(
    config: Mapping[str, Any], options: Mapping[str, Any], environ: Mapping[str, str]
) -> tuple[list[Place], list[str]]:
    """Return (tune.num_at_once places, mistakes). config: train's, plain; options: tune.*"""
    num, trainer = options["num_at_once"], config["trainer"]
    if by_srun(options["launcher"], environ):
        return _steps(trainer, num, environ)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        return [], ["tune starts the processes of each trial, but RANK or WORLD_SIZE is set. Hint: start tune itself "
                    "once, without torchrun or srun."]  # fmt: skip
    if trainer["num_nodes"] not in ("auto", 1):
        return [], [f"trainer.num_nodes must be 1 outside of a SLURM allocation, got {trainer['num_nodes']}. "
                    "Hint: leave it out, or start tune inside of sbatch or salloc."]  # fmt: skip
    if num == 1:
        return [Place()], []
    devices = trainer["devices"]
    names = visible_gpus(environ) if no_gpu_reason(trainer) is None else []
    if names and (isinstance(devices, list) or (isinstance(devices, str) and "," in devices)):
        hint = f"Hint: trainer.devices={num_devices(devices)}, and CUDA_VISIBLE_DEVICES for the GPUs to use."
        return [], [f"trainer.devices must be a number with tune.num_at_once={num}, got {shown(devices)}. {hint}"]
    each = min(num_devices(devices) or max(1, len(names) // num), len(names))
    places = []
    for number, cores in enumerate(_cores(num)):
        mine = [names[(number * each + offset) % len(names)] for offset in range(each)]
        places.append(Place(environ={"CUDA_VISIBLE_DEVICES": ",".join(mine)} if mine else {}, cores=cores))
    return places, []


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """List what CUDA_VISIBLE_DEVICES names; where it is not set, all GPUs by UUID, because CUDA and nvidia-smi may
    number them in different orders."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [card.uuid for card in nvidia_gpus.query_gpus()]
    return [name.strip() for name in named.split(",") if name.strip()]


def _cores(num: int) -> list[tuple[int, ...]]:
    """Split this process's cores into blocks, which threads and loader processes then follow; where there are fewer
    cores than trials, trials share a core."""
    if not hasattr(os, "sched_getaffinity"):
        return [()] * num
    cores = sorted(os.sched_getaffinity(0))
    each = len(cores) // num
    if not each:
        return [(cores[number % len(cores)],) for number in range(num)]
    return [tuple(cores[number * each : (number + 1) * each]) for number in range(num)]


def _steps(trainer: Mapping[str, Any], num: int, environ: Mapping[str, str]) -> tuple[list[Place], list[str]]:
    """One srun per trial, with its share of the allocation's CPUs, GPUs and memory and nothing else (--exact): without
    that a step takes whole nodes, and the next one waits."""
    if "SLURM_JOB_ID" not in environ:
        return [], ["tune.launcher=srun starts steps in an allocation, but there is none. Hint: start tune inside of "
                    "sbatch or salloc, or tune.launcher=local."]  # fmt: skip
    job_nodes = slurm_env.num_job_nodes(environ)
    nodes = trainer["num_nodes"] if trainer["num_nodes"] != "auto" else 1
    if nodes > job_nodes:
        return [], [f"trainer.num_nodes must be at most {job_nodes}, the nodes of SLURM job {environ['SLURM_JOB_ID']}, "
                    f"got {nodes}. Hint: #SBATCH --nodes={nodes}"]  # fmt: skip
    per_node = -(-num * nodes // job_nodes)  # trials that share a node
    cpus = min(slurm_env.expand_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", "")), default=1)
    gpus = 0 if trainer["accelerator"] == "cpu" else _gpus_per_node(environ)
    devices = num_devices(trainer["devices"]) or max(1, gpus // per_node)
    for what, there in (("GPUs", gpus), ("CPUs", cpus)):
        if there and per_node * devices > there:
            most = max(1, there // devices * job_nodes // nodes)
            return [], [f"tune.num_at_once={num} needs {per_node} × {devices} {what} on a node, but SLURM job "
                        f"{environ['SLURM_JOB_ID']} has {there}. Hint: set tune.num_at_once={most}."]  # fmt: skip
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
