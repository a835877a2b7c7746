"""Choose the devices of this node's processes and their threads, and describe them. Never creates a CUDA context."""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from imagenet_ddp.distributed.nvidia_gpus import RankGpu
from imagenet_ddp.distributed.precision import cpu_has_bf16
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.cpu_cores import cores_per_process, cpu_model, num_cores
from imagenet_ddp.system.text import count_noun


def device_type(accelerator: str) -> str:
    """Return the device type for trainer.accelerator: cpu, cuda or mps."""
    if accelerator in ("cuda", "gpu", "auto"):
        if torch.cuda.is_available():
            return "cuda"
        if accelerator != "cuda" and torch.backends.mps.is_available():
            return "mps"
        if accelerator == "auto":
            _refuse_missing_gpus()
            return "cpu"
        reason = "torch finds no CUDA device" if torch.version.cuda else "this torch is built without CUDA"
        raise ConfigError(f"trainer.accelerator={accelerator} needs a GPU: {reason}. Hint: trainer.accelerator=auto.")
    if accelerator == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            "trainer.accelerator=mps needs a Mac's GPU, and this machine has none. Hint: trainer.accelerator=auto."
        )
    return accelerator


def _refuse_missing_gpus() -> None:
    """Refuse to train on the CPU if the environment promises GPUs, unless trainer.accelerator requests it."""
    name = "CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in os.environ else "SLURM_GPUS_ON_NODE"
    value = os.environ.get(name, "").strip()
    if value not in ("", "-1", "NoDevFiles") and (name, value) != ("SLURM_GPUS_ON_NODE", "0"):
        raise ConfigError(
            f"{name}={value} promises GPUs, but torch finds none. Hint: `nvidia-smi` shows what the driver finds; "
            "trainer.accelerator=cpu to do without."
        )


def local_devices(trainer: Mapping[str, Any]) -> int | list[int]:
    """Return the devices of this node that take part: their number, or a list.

    trainer.devices=auto means all GPUs, or one CPU process.
    """
    kind, requested = device_type(trainer["accelerator"]), trainer["devices"]
    if isinstance(requested, str) and requested != "auto":
        numbers = [int(part) for part in requested.split(",") if part.strip()]
        requested = numbers if "," in requested else numbers[0]
    if kind != "cuda":
        return 1 if requested in ("auto", -1) else requested
    available = torch.cuda.device_count()
    if requested in ("auto", -1):
        return available
    numbers = requested if isinstance(requested, list) else list(range(requested))
    if not numbers or max(numbers) >= available:
        within = ", within CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
        raise ConfigError(
            f"trainer.devices={requested} needs GPUs {numbers}, but torch finds {available} (numbered from 0{within}). "
            f"Hint: trainer.devices={available}."
        )
    return requested


def count_devices(devices: int | list[int]) -> int:
    return len(devices) if isinstance(devices, list) else devices


def num_local_processes(config: Mapping[str, Any]) -> int:
    """Return the number of processes of this node."""
    return batch_split.num_processes(config["strategy"], count_devices(local_devices(config["trainer"])))


def rank_gpus(trainer: Mapping[str, Any], local_rank: int, num: int = 1) -> list[RankGpu]:
    """Return the GPUs of the process with this local rank; [] on other devices.

    num: more than one for a process that uses all devices of its node (strategy=dp).
    """
    if device_type(trainer["accelerator"]) != "cuda":
        return []
    local = local_devices(trainer)
    numbers = local if isinstance(local, list) else list(range(max(local, local_rank + 1)))
    first, available = local_rank % len(numbers), torch.cuda.device_count()
    own = numbers[first : first + num]
    if max(own) >= available:
        raise ConfigError(
            f"local rank {local_rank} needs GPU {max(own)}, but torch finds {available} on this machine. "
            "Hint: as many processes per node as it has GPUs, each seeing all of them (in SLURM --gpus-per-node, "
            "without --gpus-per-task)."
        )
    return [RankGpu.from_properties(torch.cuda.get_device_properties(number), number, os.environ) for number in own]


def device_of(trainer: Mapping[str, Any], local_rank: int = 0) -> torch.device:
    """Return the device of the process with this local rank, which is 0 for a command of one process."""
    kind, local = device_type(trainer["accelerator"]), local_devices(trainer)
    if kind != "cuda":
        return torch.device(kind)
    return torch.device(kind, local[local_rank] if isinstance(local, list) else local_rank)


def find_shared_gpus(uuids: Sequence[str | None], label: Callable[[int], str]) -> list[str]:
    """Return an error for each GPU that several ranks would use. uuids: one per rank."""
    users: dict[str, list[int]] = {}
    for rank, uuid in enumerate(uuids):
        if uuid is not None:
            users.setdefault(uuid, []).append(rank)
    return [
        f"each rank must have a GPU of its own, but {' and '.join(map(label, ranks))} share {uuid}. "
        "Hint: LOCAL_RANK or cluster.local_rank must differ on one machine, and CUDA_VISIBLE_DEVICES show all its GPUs."
        for uuid, ranks in users.items()
        if len(ranks) > 1
    ]


def describe_hardware(kind: str, gpu_models: Sequence[str], num_nodes: int = 1) -> str:
    """Return "8 × NVIDIA H200", or "Intel Xeon 8481C, 2 cores, with bf16 units". kind: cpu, cuda or mps.

    gpu_models: of all ranks. Only the cores that this node's processes may use (the affinity mask) are counted.
    """
    if gpu_models:
        return " + ".join(f"{number} × {model}" for model, number in sorted(Counter(gpu_models).items()))
    if kind == "mps":
        return f"{cpu_model()}, GPU (mps)"
    units = "with" if cpu_has_bf16() else "without"
    nodes = f"{num_nodes} × " if num_nodes > 1 else ""
    return f"{nodes}{cpu_model()}, {count_noun(num_cores(), 'core')}, {units} bf16 units"


def set_num_threads(count: int) -> None:
    """Set the number of CPU threads of this process, and OMP_NUM_THREADS, which Lightning would otherwise set."""
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)


def choose_num_threads(requested: int | str, local_world_size: int) -> int:
    """Return the CPU threads per process, the same with every launcher: another order of sums changes the last bits.

    By default torchrun would use 1, and a plain start all cores.
    """
    return cores_per_process(local_world_size) if requested == "auto" else int(requested)
