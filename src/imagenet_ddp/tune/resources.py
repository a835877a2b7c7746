"""Divide GPUs and CPU cores among the trials of a study, as slots of this machine or as SLURM steps.

Does not import torch.
"""

import os
import re
import shutil
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from imagenet_ddp.config.validators import shown
from imagenet_ddp.distributed import nvidia_gpus
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.world_info import num_devices
from imagenet_ddp.distributed.nvidia_gpus import no_gpu_reason
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.cpu_cores import num_cores


@dataclass(frozen=True)
class Slot:
    """The resources of one running trial."""

    prefix: tuple[str, ...] = ()  # start of the command: srun and its options
    environ: Mapping[str, str] = field(default_factory=dict)  # added to the environment
    cores: tuple[int, ...] = ()  # cores of this machine; empty means all
    stop_signal: int = signal.SIGTERM  # the signal on which a run saves and ends


def uses_srun(launcher: str, environ: Mapping[str, str]) -> bool:
    """Return whether srun starts the trials. With launcher=auto it does so in an allocation, but not in a step, because
    a step only has its own devices."""
    if launcher != "auto":
        return launcher == "srun"
    return "SLURM_JOB_ID" in environ and not slurm.in_step(environ) and shutil.which("srun") is not None


def make_slots(config: Mapping[str, Any], options: Mapping[str, Any], environ: Mapping[str, str]) -> list[Slot]:
    """Return tune.num_at_once slots. config: plain config of train. options: tune.* Raises ConfigError if this machine
    or allocation does not suffice."""
    num, trainer = options["num_at_once"], config["trainer"]
    if uses_srun(options["launcher"], environ):
        return _steps(trainer, num, environ)
    if "RANK" in environ or "WORLD_SIZE" in environ:
        raise ConfigError(
            "tune starts the processes of each trial, but RANK or WORLD_SIZE is set. Hint: start tune only once, "
            "without torchrun or srun."
        )
    if trainer["num_nodes"] not in ("auto", 1):
        raise ConfigError(
            f"trainer.num_nodes must be 1 outside of a SLURM allocation, got {trainer['num_nodes']}. "
            "Hint: leave trainer.num_nodes out, or start tune inside sbatch or salloc."
        )
    if num == 1:
        return [Slot()]
    devices = trainer["devices"]
    names = visible_gpus(environ) if no_gpu_reason(trainer) is None else []
    if names and (isinstance(devices, list) or (isinstance(devices, str) and "," in devices)):
        hint = f"Hint: set trainer.devices={num_devices(devices)}, and choose the GPUs with CUDA_VISIBLE_DEVICES."
        raise ConfigError(f"trainer.devices must be a number with tune.num_at_once={num}, got {shown(devices)}. {hint}")
    gpus = _blocks(names, num, num_devices(devices) or max(1, len(names) // num))
    # the cores of this process, no more than its container's quota; trials share a core if there are too few
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    return [
        Slot(environ={"CUDA_VISIBLE_DEVICES": ",".join(own)} if own else {}, cores=tuple(own_cores))
        for own, own_cores in zip(gpus, _blocks(cores, num, max(1, num_cores() // num)), strict=True)
    ]


def _blocks(members: Sequence[Any], num: int, size: int) -> list[list[Any]]:
    """Return `num` blocks of `size` members. If there are too few members, begin again with the first."""
    size = min(size, len(members))
    return [[members[(block * size + offset) % len(members)] for offset in range(size)] for block in range(num)]


def visible_gpus(environ: Mapping[str, str]) -> list[str]:
    """Return the entries of CUDA_VISIBLE_DEVICES. If it is not set, return the UUIDs of all GPUs, because CUDA and
    nvidia-smi may number them in a different order."""
    named = environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return [uuid for uuid, _ in nvidia_gpus.query_gpus()]
    return [name.strip() for name in named.split(",") if name.strip()]


def _steps(trainer: Mapping[str, Any], num: int, environ: Mapping[str, str]) -> list[Slot]:
    """Return one slot per trial, whose srun requests its share of the allocation's CPUs, GPUs and memory. Without
    --exact, a step would occupy whole nodes, and the next step would wait. Raises ConfigError if the allocation is too
    small."""
    if "SLURM_JOB_ID" not in environ:
        raise ConfigError(
            "tune.launcher=srun starts steps in an allocation, but there is none. Hint: start tune inside sbatch or "
            "salloc, or set tune.launcher=local."
        )
    job, job_nodes = environ["SLURM_JOB_ID"], slurm.num_job_nodes(environ)
    nodes = trainer["num_nodes"] if trainer["num_nodes"] != "auto" else 1
    if nodes > job_nodes:
        raise ConfigError(
            f"trainer.num_nodes must be at most {job_nodes}, the nodes of SLURM job {job}, got {nodes}. "
            f"Hint: set #SBATCH --nodes={nodes} in the batch script."
        )
    per_node = -(-num * nodes // job_nodes)  # trials that share a node
    cpus = min(slurm.expand_counts(environ.get("SLURM_JOB_CPUS_PER_NODE", "")), default=1)
    gpus = 0 if trainer["accelerator"] == "cpu" else _gpus_per_node(environ)
    devices = num_devices(trainer["devices"]) or max(1, gpus // per_node)
    for what, available in (("GPUs", gpus), ("CPUs", cpus)):
        if available and per_node * devices > available:
            most = max(1, available // devices * job_nodes // nodes)
            raise ConfigError(
                f"tune.num_at_once={num} needs {per_node} × {devices} {what} on a node, but SLURM job {job} has "
                f"{available}. Hint: set tune.num_at_once={most}."
            )
    prefix = ["srun", "--exact", f"--nodes={nodes}", f"--ntasks={nodes * devices}", f"--ntasks-per-node={devices}"]
    prefix.append(f"--cpus-per-task={cpus // (per_node * devices)}")
    if gpus:
        prefix += [f"--gpus-per-node={devices}", "--gpu-bind=none"]
    if environ.get("SLURM_MEM_PER_NODE", "").isdecimal() and int(environ["SLURM_MEM_PER_NODE"]):
        prefix.append(f"--mem={int(environ['SLURM_MEM_PER_NODE']) // per_node}M")
    # srun forwards SIGUSR2, but kills its tasks at once on SIGTERM
    return [Slot(tuple(prefix), stop_signal=signal.SIGUSR2) for _ in range(num)]


def _gpus_per_node(environ: Mapping[str, str]) -> int:
    """Return the GPUs per node from SLURM_GPUS_ON_NODE, the count of this node, or else from SLURM_GPUS_PER_NODE, the
    request, such as "a100:4". Return 0 if neither is set."""
    for name in ("SLURM_GPUS_ON_NODE", "SLURM_GPUS_PER_NODE"):
        if match := re.search(r"(\d+)$", environ.get(name, "")):
            return int(match.group())
    return 0
