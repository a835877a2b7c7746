"""Which devices this node's processes use, and the precision that suits them. Never makes a CUDA context."""

import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from imagenet_ddp.distributed.gpu_names import Gpu, gpu
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.cpu_cores import cores_per_process


def accelerator(asked: str) -> str:
    """cpu, cuda or mps behind trainer.accelerator."""
    if asked in ("cuda", "gpu", "auto"):
        if torch.cuda.is_available():
            return "cuda"
        if asked != "cuda" and torch.backends.mps.is_available():
            return "mps"
        if asked == "auto":
            return "cpu"
        found = "torch finds no CUDA device" if torch.version.cuda else "this torch is built without CUDA"
        raise ConfigError(f"trainer.accelerator={asked} expects a GPU, but {found}. Hint: trainer.accelerator=auto.")
    if asked == "mps" and not torch.backends.mps.is_available():
        raise ConfigError(
            "trainer.accelerator=mps expects a Mac's GPU, but there is none. Hint: trainer.accelerator=auto."
        )
    return asked


def local_devices(trainer: Mapping[str, Any]) -> int | list[int]:
    """How many devices of this node take part, or which: trainer.devices, where auto means all GPUs, or one CPU
    process."""
    kind, asked = accelerator(trainer["accelerator"]), trainer["devices"]
    if isinstance(asked, str) and asked != "auto":
        numbers = [int(part) for part in asked.split(",") if part.strip()]
        asked = numbers if "," in asked else numbers[0]
    if kind != "cuda":
        return 1 if asked in ("auto", -1) else asked
    available = torch.cuda.device_count()
    if asked in ("auto", -1):
        return available
    wanted = asked if isinstance(asked, list) else list(range(asked))
    missing = [number for number in wanted if number >= available]
    if missing or not wanted:
        raise ConfigError(
            f"trainer.devices={asked} expects GPUs {wanted}, but torch finds {available} (numbered from 0"
            f"{', within CUDA_VISIBLE_DEVICES' if 'CUDA_VISIBLE_DEVICES' in os.environ else ''}). "
            f"Hint: trainer.devices={available}."
        )
    return asked


def count(devices: int | list[int]) -> int:
    return len(devices) if isinstance(devices, list) else devices


def own_gpus(trainer: Mapping[str, Any], local_rank: int, num: int = 1) -> list[Gpu]:
    """Those this process is to use, as the driver names them; [] on other devices. num: more than one in a process
    that has all of its node (dp)."""
    if accelerator(trainer["accelerator"]) != "cuda":
        return []
    asked = local_devices(trainer)
    numbers = asked if isinstance(asked, list) else list(range(max(asked, local_rank + 1)))
    first = local_rank % len(numbers)
    mine, there = numbers[first : first + num], torch.cuda.device_count()
    if missing := [number for number in mine if number >= there]:
        raise ConfigError(
            f"local rank {local_rank} expects GPU {missing[0]}, but torch finds {there} on this "
            "machine. Hint: as many processes per node as it has GPUs."
        )
    return [gpu(torch.cuda.get_device_properties(number), number, os.environ) for number in mine]


def first_device(trainer: Mapping[str, Any]) -> torch.device:
    """Of a command that needs one: the first of trainer.devices."""
    kind, asked = accelerator(trainer["accelerator"]), local_devices(trainer)
    return torch.device(kind, asked[0] if isinstance(asked, list) else 0) if kind == "cuda" else torch.device(kind)


def shared_gpus(uuids: Sequence[str | None], label: Callable[[int], str]) -> list[str]:
    """A sentence for each GPU that several ranks would use; uuids: one per rank."""
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


def choose_precision(asked: str | int | None, kind: str) -> tuple[str, str]:
    """(Lightning's precision, the reason)."""
    if asked not in ("auto", None):
        return str(asked), "as set"
    if asked is None:
        return "32-true", "Lightning's default"
    if kind == "cuda":
        name = torch.cuda.get_device_name() if torch.cuda.is_initialized() else "this GPU"
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return "bf16-mixed", f"{name} computes in bf16"
        return "32-true", f"{name} has no bf16 units"
    if kind == "cpu" and cpu_has_bf16():
        return "bf16-mixed", "this CPU computes in bf16 (AVX512-BF16 or AMX)"
    return "32-true", "no bf16 units on this device"


def cpu_has_bf16() -> bool:
    """By the kernel's flags: without these units bf16 on a CPU is emulated, and slower than fp32."""
    cpuinfo = Path("/proc/cpuinfo")
    if platform.machine() not in ("x86_64", "AMD64") or not cpuinfo.is_file():
        return False
    flags = next((line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")), "")
    return bool({"avx512_bf16", "amx_bf16"} & set(flags.split()))


def use_threads(count: int) -> None:
    """Set the number of CPU threads of this process, and the variable: where OMP_NUM_THREADS is not set Lightning's
    launcher sets a number of its own."""
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)


def choose_num_threads(asked: int | str, local_world_size: int) -> int:
    """CPU threads per process: the same whatever started it, because sums in another order are other bits. torchrun
    alone would say 1, a plain start all cores."""
    if asked != "auto":
        return int(asked)
    return cores_per_process(local_world_size)
