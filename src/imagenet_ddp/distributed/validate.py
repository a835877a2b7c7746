"""Mistakes in who takes part: devices, nodes, launcher, meeting place. Before torch is imported: GPUs are not asked."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.trainer_options import ACCEPTED
from imagenet_ddp.config.validators import integer, shown
from imagenet_ddp.distributed.launchers import slurm_env
from imagenet_ddp.distributed.launchers.detect import detect
from imagenet_ddp.distributed.launchers.request import num_devices
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.distributed.network import interfaces, nccl
from imagenet_ddp.distributed.nvidia_gpus import cards
from imagenet_ddp.distributed.rendezvous import address_file
from imagenet_ddp.distributed.strategies import batch_split, ddp_options
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.cpu_cores import num_cores

PROCESSES_PER_CORE = 4  # beyond this a machine only swaps
# Where a GPU may show without asking torch: NVIDIA, WSL 2, AMD, NVIDIA's small boards. macOS counts as having one.
GPU_PATHS = ("/proc/driver/nvidia", "/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/dev/nvmap")


def validate(
    config: Mapping[str, Any],
    environ: Mapping[str, str],
    *,
    verb: str = "train",
    typed: Sequence[str] = (),
    multirun: bool = False,
    num_jobs: int = 2,
    elsewhere: bool = False,
) -> list[str]:
    """Sentences, none where all is well. typed: the options as typed, for the line to type instead. num_jobs: of -m.
    elsewhere: of a SLURM job on other machines, with as many nodes and devices as the config says."""
    if elsewhere:
        local = batch_split.processes(config["strategy"], num_devices(config["trainer"].get("devices")) or 1)
        environ = slurm_env.first_task(environ, config["trainer"].get("num_nodes"), local)
    found = validate_group("cluster", config["cluster"])
    broken = bool(found) or bool(validate_group("strategy", {"name": config["strategy"]["name"]}))
    found += _cpu(config, environ)
    found += _gpus_of_other_jobs(config["trainer"], environ)
    found += _booked_gpus(config["trainer"], environ)
    strategy, num_nodes = config["strategy"], config["trainer"].get("num_nodes")
    found += ddp_options.mistakes(config)
    found += batch_split.mistakes(strategy, config["trainer"], {}, num_devices(config["trainer"].get("devices")))
    if broken or (strategy["name"] in batch_split.NAMES and integer(2).accepts(num_nodes)):
        return found  # the world hangs on these values
    try:
        rendezvous = detect(config, environ, verb=verb, typed=typed, cpu=has_no_gpu(config["trainer"]) is not None)
    except ConfigError as error:
        return found + error.mistakes
    if multirun and not rendezvous.alone:
        found.append(_sweep(rendezvous, f"python -m imagenet_ddp.{verb} -m {shlex.join(typed)}", environ, num_jobs))
    local = batch_split.processes(strategy, num_devices(config["trainer"].get("devices")) or 1)
    if (rendezvous.place.world_size if rendezvous.place else rendezvous.num_nodes * local) > 1:
        found += validate_several(config["trainer"], on_cpu=has_no_gpu(config["trainer"]) is not None)
    several_nodes = rendezvous.num_nodes > 1
    host = rendezvous.address.host if rendezvous.address and several_nodes else None
    if not rendezvous.alone or num_devices(config["trainer"].get("devices")) != 1:
        found += nccl.mistakes(config["nccl"], environ, host, elsewhere=elsewhere)
    if rendezvous.address and rendezvous.address.file and not elsewhere:
        found += address_file.mistakes(rendezvous.address.file)
    return found


def validate_several(trainer: Mapping[str, Any], *, on_cpu: bool) -> list[str]:
    """List what several processes cannot do together."""
    found: list[str] = []
    interval = trainer.get("val_check_interval")
    if isinstance(interval, str | Mapping):
        found.append(
            "trainer.val_check_interval must be a number of batches or a share of an epoch with several processes, "
            f"whose clocks differ, got {shown(interval)}. Hint: trainer.val_check_interval=0.25."
        )
    if trainer.get("sync_batchnorm") is True and on_cpu:
        found.append(
            "trainer.sync_batchnorm=true expects GPUs, but this runs on CPUs. Hint: trainer.sync_batchnorm=false."
        )
    return found


def _sweep(rendezvous: LaunchInfo, line: str, environ: Mapping[str, str], num_jobs: int) -> str:
    if rendezvous.place is not None:
        size = f"WORLD_SIZE={environ['WORLD_SIZE']}" if "WORLD_SIZE" in environ else f"{rendezvous.place.world_size}"
        return (
            f"-m starts the workers of each job itself, but this process is one of {size} that a launcher started "
            f"({rendezvous.source}). Hint: without the launcher: `{line}`."
        )
    numbers = " ".join(map(str, range(num_jobs)))
    folder = "" if "hydra.sweep.dir=" in line else " hydra.sweep.dir=runs/SWEEP"
    return (
        f"-m runs its jobs on one node, but trainer.num_nodes is {rendezvous.num_nodes}. Hint: on each node "
        f"`for n in {numbers}; do {line}{folder} sweep.job=$n; done`"
    )


def is_elsewhere(config: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Whether this is, or may be, another machine than node 0, which alone needs the files of a run; False where the
    options are wrong."""
    try:
        rendezvous = detect(config, environ)
        if rendezvous.alone or rendezvous.num_nodes == 1:
            return False
        if rendezvous.node_rank is not None:
            return rendezvous.node_rank > 0
        host = rendezvous.address.host if rendezvous.address else None
        return host is None or not interfaces.is_local(interfaces.resolve(host))
    except (ConfigError, OSError, TypeError, ValueError):
        return False


def has_no_gpu(trainer: Mapping[str, Any]) -> str | None:
    """Why only CPUs take part; None where there may be a GPU."""
    accelerator = trainer.get("accelerator")
    if accelerator == "cpu":
        return "trainer.accelerator is cpu"
    if accelerator == "auto" and sys.platform != "darwin" and not any(Path(path).exists() for path in GPU_PATHS):
        return "this machine has no GPU"
    return None


def _gpus_of_other_jobs(trainer: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """srun --gpu-bind=none (SLURM 22.05, several tasks) takes CUDA_VISIBLE_DEVICES away. Where SLURM does not hide the
    devices themselves, a task then takes the first ones of the node, whosever they are."""
    ours = environ.get("SLURM_GPUS_ON_NODE", "")
    if (
        not slurm_env.in_step(environ)
        or not ours.isdecimal()
        or "CUDA_VISIBLE_DEVICES" in environ
        or has_no_gpu(trainer)
    ):
        return []
    seen = len(cards())
    if seen <= int(ours):
        return []
    return [
        f"this job has {ours} of the node's {seen} GPUs (SLURM_GPUS_ON_NODE), but CUDA_VISIBLE_DEVICES does not say "
        "which, and the first ones may be another job's. Hint: srun without --gpu-bind."
    ]


def _booked_gpus(trainer: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """A CPU training in an allocation of GPUs is a mistake, unless it was asked for."""
    booked = environ.get("SLURM_GPUS_ON_NODE", "0")
    if trainer.get("accelerator") != "auto" or not booked.isdecimal() or int(booked) == 0 or not has_no_gpu(trainer):
        return []
    return [
        f"this job has {booked} GPUs of its node (SLURM_GPUS_ON_NODE), but this machine shows none: no driver? "
        "Hint: another node (sbatch --exclude), or trainer.accelerator=cpu to do without."
    ]


def _cpu(config: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """What can be said of CPU processes; nothing where there may be a GPU."""
    trainer = config["trainer"]
    devices, why = trainer.get("devices"), has_no_gpu(trainer)
    if not ACCEPTED["devices"][0].accepts(devices) or why is None:
        return []  # said already, or left to torch
    found = []
    if config["strategy"]["process_group_backend"] == "nccl":
        found.append(
            f"strategy.process_group_backend=nccl is for GPUs, but {why}. Hint: strategy.process_group_backend=null."
        )
    count, from_where = num_devices(devices), ""
    names_gpus = (isinstance(devices, str) and "," in devices) or not isinstance(devices, str | int | None)
    if names_gpus or devices in (-1, "-1"):
        what = "names GPUs" if names_gpus else "means all GPUs"
        found.append(
            f"trainer.devices={shown(devices)} {what}, but {why}. "
            f"Hint: set trainer.devices={count or 2}: so many CPU processes."
        )
        return found
    if count is None and environ.get("LOCAL_WORLD_SIZE", "").isdecimal():
        count, from_where = int(environ["LOCAL_WORLD_SIZE"]), " (LOCAL_WORLD_SIZE, from the launcher)"
    cores = num_cores()
    if environ.get("SLURM_CPUS_ON_NODE", "").isdecimal() and slurm_env.read_step(environ):
        cores = max(cores, int(environ["SLURM_CPUS_ON_NODE"]))  # this task's are only a part of them
    if count is not None and count > PROCESSES_PER_CORE * cores:
        found.append(
            f"trainer.devices must be at most {PROCESSES_PER_CORE * cores} ({PROCESSES_PER_CORE} processes "
            f"for each of {cores} CPU cores; {why}), but is {count}{from_where}. Hint: set trainer.devices={cores}."
        )
    return found
