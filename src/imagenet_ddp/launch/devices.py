"""Choose the devices, the precision and the CPU threads of this node's processes, and describe the hardware.

Counting GPUs does not initialise CUDA. A process calls `use_device` before any other function that does.
"""

import ctypes
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from imagenet_ddp.cli.check_launch import is_too_small_for_bf16
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.strategies import batch_split
from imagenet_ddp.system import idle_cores
from imagenet_ddp.system.cpu_cores import bf16_units, cores_per_process, cpu_model, num_cores, num_sharing
from imagenet_ddp.system.idle_cores import Cores
from imagenet_ddp.system.nvidia_gpus import RankGpu
from imagenet_ddp.system.text import count_noun

MALLOPT_TRIM_THRESHOLD, MALLOPT_MMAP_MAX = -1, -4  # malloc.h
# Lightning's short names of precisions, and the full names.
LONG_NAMES = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}
# Share of depthwise convolutions in the multiplications of a net above which a CPU with these units trains it faster in
# fp32. On one core of an AMD EPYC with AVX512-BF16, at 160 pixels, bf16 has 0.50 times the speed of fp32 for
# MobileNetV3-small (share 0.13), 0.63 for EfficientNet-Lite0 (0.09), 0.89 for MobileNetV2 (0.07), 1.27 for
# ConvNeXt-Atto (0.053), 1.41 for ConvNeXt-Pico (0.034), 1.61 for ConvNeXt-Tiny (0.024). ShuffleNet (0.029), which
# mostly moves memory, has 0.82. On a Xeon with AMX, where the other layers gain more, ConvNeXt-Atto has 0.83.
MAX_DEPTHWISE_SHARE = {"AVX512-BF16": 0.06, "AMX": 0.025}


def device_type(accelerator: str) -> str:
    """Return the device type for trainer.accelerator: cpu, cuda or mps.

    Raises ConfigError if a GPU is required but missing.
    """
    if accelerator in ("cuda", "gpu", "auto"):
        if torch.cuda.is_available():
            return "cuda"
        if accelerator != "cuda" and torch.backends.mps.is_available():
            return "mps"
        if accelerator == "auto":
            _refuse_missing_gpus()
            return "cpu"
    if accelerator in ("cuda", "gpu") or (accelerator == "mps" and not torch.backends.mps.is_available()):
        built = f"for CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        what = f"trainer.accelerator={accelerator} needs a GPU, but torch finds none (it was built {built})"
        raise ConfigError(Mistake(what, ("trainer.accelerator",), (setting("trainer.accelerator=auto"),)))
    return accelerator


def _refuse_missing_gpus() -> None:
    """Raise ConfigError if the environment assigns GPUs that torch does not find, instead of silently using the CPU.

    Training on the CPU is still possible with trainer.accelerator=cpu.
    """
    name = "CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in os.environ else "SLURM_GPUS_ON_NODE"
    value = os.environ.get(name, "").strip()
    if value not in ("", "-1", "NoDevFiles") and (name, value) != ("SLURM_GPUS_ON_NODE", "0"):
        raise ConfigError(
            f"{name}={value} lists GPUs, but torch finds none. Hint: run `nvidia-smi` to see which GPUs the "
            "driver finds, or set trainer.accelerator=cpu to train without a GPU."
        )


def local_devices(trainer: TrainerConfig, num_ranks: int = 1) -> int | list[int]:
    """Return the devices that this node uses: their number, or a list of GPU numbers.

    num_ranks: processes that a launcher has started on this node. If each of them sees only one GPU (srun
    --gpus-per-task=1), this is the number of devices of this process, 1.
    trainer.devices=auto means all GPUs, or one CPU process if there is no GPU. Raises ConfigError if a GPU is missing.
    """
    kind, requested = device_type(trainer.accelerator), _requested(trainer.devices)
    if kind != "cuda":
        return requested or 1
    available = torch.cuda.device_count()
    if requested is None:
        return available
    if available == 1 and requested == num_ranks:
        return 1
    numbers = requested if isinstance(requested, list) else list(range(requested))
    if not numbers or max(numbers) >= available:
        within = " within CUDA_VISIBLE_DEVICES" if "CUDA_VISIBLE_DEVICES" in os.environ else ""
        what = (
            f"trainer.devices={requested} needs GPUs {numbers}, but torch finds only {count_noun(available, 'GPU')} "
            f"(numbered from 0{within})"
        )
        raise ConfigError(Mistake(what, ("trainer.devices",), (setting(f"trainer.devices={available}"),)))
    return requested


def _requested(devices: Any) -> int | list[int] | None:
    """Return the number of devices, or the list of GPU numbers, that trainer.devices requests; None for all."""
    if isinstance(devices, str) and devices != "auto":
        numbers = [int(part) for part in devices.split(",") if part.strip()]
        devices = numbers if "," in devices else numbers[0]
    if devices in ("auto", -1):
        return None
    return devices if isinstance(devices, int) else [int(number) for number in devices]


def count_devices(devices: int | list[int]) -> int:
    return len(devices) if isinstance(devices, list) else devices


def num_local_processes(config: CommonConfig, num_ranks: int = 1) -> int:
    """Return the number of processes that run on this node. num_ranks: see local_devices."""
    return batch_split.num_processes(config.strategy, count_devices(local_devices(config.trainer, num_ranks)))


def rank_gpus(trainer: TrainerConfig, local_rank: int, num: int = 1) -> list[RankGpu]:
    """Return the GPUs of the process with this local rank; [] if the devices are not CUDA devices.

    num: number of GPUs of the process, which is above 1 if one process uses all devices of its node (strategy=dp).
    Raises ConfigError if a GPU is missing.
    """
    if use_device(trainer, local_rank).type != "cuda":
        return []
    numbers = _own_numbers(trainer, local_rank, num)
    return [RankGpu.from_properties(properties_of(number), number, os.environ) for number in numbers]


def properties_of(gpu: int | None) -> Any:
    """Return the properties of a GPU, a type of torch's C++ code. gpu: torch's index; None means the current GPU."""
    return torch.cuda.get_device_properties(gpu)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def use_device(trainer: TrainerConfig, local_rank: int = 0) -> torch.device:
    """Return the device of the process with this local rank, and make it torch's current device if it is a GPU.

    Call this before anything else that initialises CUDA, which creates a context on the current device: otherwise,
    every process would first create one on GPU 0, each with half a gigabyte of its memory. A command that runs in one
    process has local rank 0. Raises ConfigError if the GPU is missing.
    """
    if (kind := device_type(trainer.accelerator)) != "cuda":
        return torch.device(kind)
    device = torch.device(kind, _own_numbers(trainer, local_rank, 1)[0])
    torch.cuda.set_device(device)
    return device


def _own_numbers(trainer: TrainerConfig, local_rank: int, num: int) -> list[int]:
    if (available := torch.cuda.device_count()) == 1:  # its own; ranks that share one are found by its UUID
        return [0]
    local = local_devices(trainer)
    numbers = local if isinstance(local, list) else list(range(max(local, local_rank + 1)))
    first = local_rank % len(numbers)
    own = numbers[first : first + num]
    if max(own) >= available:
        raise ConfigError(
            f"local rank {local_rank} needs GPU {max(own)}, but torch finds {available} on this machine. "
            "Hint: start as many processes per node as the node has GPUs, and let each process see all of these GPUs "
            "(in SLURM, use --gpus-per-node without --gpus-per-task)."
        )
    return own


def describe_hardware(kind: str, gpu_models: Sequence[str], num_nodes: int) -> str:
    """Return a description such as "8 × NVIDIA H200" or "Intel Xeon 8481C, 2 cores, with bf16 units".

    kind: cpu, cuda or mps. gpu_models: GPU models of all ranks. Only the CPU cores that this node's processes may use
    (their affinity mask) are counted.
    """
    if gpu_models:
        return " + ".join(f"{number} × {model}" for model, number in sorted(Counter(gpu_models).items()))
    if kind == "mps":
        return f"{cpu_model()}, GPU (mps)"
    units = "with" if bf16_units() else "without"
    nodes = f"{num_nodes} × " if num_nodes > 1 else ""
    return f"{nodes}{cpu_model()}, {count_noun(num_cores(), 'core')}, {units} bf16 units"


def choose_precision(
    requested: str | int | None,
    kind: str,
    data: DataConfig,
    depthwise_share: Callable[[], float],
    gpu: int | None = None,
) -> tuple[str, str]:
    """Return (Lightning's precision, the reason for the choice).

    kind: cpu, cuda or mps. data: the data.* options. depthwise_share: returns the share of depthwise convolutions in
    the net's multiplications; called on CPUs only. gpu: torch's index of this process's own GPU, because other GPUs
    of the machine may be older; None if the process has no GPU of its own.
    """
    if requested not in ("auto", None):
        precision = LONG_NAMES.get(str(requested), str(requested))
        if precision == "16-mixed" and kind == "cpu":
            return "bf16-mixed", "in place of 16-mixed, which needs a GPU"
        return precision, "as set"
    if requested is None:
        return "32-true", "Lightning's default"
    if kind == "cuda":
        found = properties_of(gpu)
        if torch.version.hip or found.major >= 8:  # like torch.cuda.is_bf16_supported, which checks the first GPU
            return "bf16-mixed", f"{found.name} computes in bf16"
        # the GTX 16 series has no tensor cores, although its compute capability is that of the RTX 20 series
        if found.major == 7 and "GTX 16" not in found.name:
            return "16-mixed", f"{found.name} has tensor cores for fp16, but none for bf16"
        return "32-true", f"{found.name} has no tensor cores"
    if kind == "cpu" and (units := bf16_units()):
        if is_too_small_for_bf16(data):
            return "32-true", "gradients in bf16 may be wrong on a CPU for images this small"
        if (share := depthwise_share()) > MAX_DEPTHWISE_SHARE[units]:
            of_net = f"depthwise convolutions ({share:.0%} of this net's multiplications)"
            return "32-true", f"CPUs are slower in bf16 for {of_net}"
        return "bf16-mixed", f"this CPU computes in bf16 ({units})"
    return "32-true", "no bf16 units on this device"


def choose_cudnn_benchmark(trainer: TrainerConfig, kind: str) -> bool | None:
    """Return whether cuDNN tries which of its convolution algorithms is fastest, which Lightning's default, None, does
    not do. kind: cpu, cuda or mps."""
    by_default = True if kind == "cuda" and not trainer.deterministic else None
    return by_default if trainer.benchmark is None else trainer.benchmark


def set_up_process(kind: str, num_threads: int) -> None:
    """Set the number of CPU threads and, if the device is the CPU, how its memory is kept. For every process that
    computes with a net. kind: cpu, cuda or mps."""
    set_num_threads(num_threads)
    if kind == "cpu":
        keep_freed_memory()


def set_num_threads(count: int) -> None:
    """Set the number of CPU threads of this process, in torch and in OMP_NUM_THREADS.

    Lightning would otherwise set OMP_NUM_THREADS to a number of its own.
    """
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next tensors, where it is glibc.

    It would otherwise return the memory of each large tensor to the system, which clears its pages again for the next
    one: on two cores, a validation of EfficientNet-Lite0 takes up to three times as long.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(MALLOPT_MMAP_MAX, 0)
        libc.mallopt(MALLOPT_TRIM_THRESHOLD, -1)  # never


def take_cores(kind: str, num: int, num_local: int) -> None:
    """Let the user's other trainings see how many cores this job uses on this machine. kind: cpu, cuda or mps. num:
    threads of all its processes here. num_local: its processes here; each uses about one core to control a GPU."""
    idle_cores.take(num if kind == "cpu" else num_local)


def choose_num_threads(
    requested: int | str, local_world_size: int, cores: Cores | None = None, before: int | None = None
) -> tuple[int, str]:
    """Return the number of CPU threads per process, and the reason for it.

    Not more than the idle cores, because the threads of an operation wait for each other in busy loops: beside other
    programs, two threads on two cores are several times slower than one. The number does not depend on the launcher,
    because another order of summation changes the last bits. By default, torchrun would use one thread, and a process
    without a launcher would use all cores.

    requested: cluster.num_threads. cores: for all processes of this machine, as counted by the command that started
    this process; None if this process counts them. before: the number before the run was resumed on the same number of
    ranks.
    """
    if requested != "auto":
        return int(requested), "cluster.num_threads"
    share = cores_per_process(local_world_size)
    if before is not None and before <= share:
        return before, "as before the resume"
    num_alike = num_sharing(local_world_size)
    cores = cores or idle_cores.count_cores(num_alike)
    together = f" for {count_noun(num_alike, 'process')}" if num_alike > 1 else ""
    return max(1, min(share, cores.num // num_alike)), f"{cores.reason}{together}"
