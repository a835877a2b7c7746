"""Find out whether there may be a GPU, and identify NVIDIA GPUs without creating a CUDA context.

GPUs are identified by the driver's numbers and by labels for the log. This module needs neither torch nor a GPU.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Paths that indicate a GPU, for use without torch: NVIDIA (two paths), WSL 2, AMD, NVIDIA's small boards. On macOS, a
# GPU is always assumed.
GPU_PATHS = ("/proc/driver/nvidia", "/dev/nvidia0", "/dev/dxg", "/dev/kfd", "/dev/nvmap")


def no_gpu_reason(accelerator: str) -> str | None:
    """Return the reason why only CPUs are used with this trainer.accelerator; None if there may be a GPU."""
    if accelerator == "cpu":
        return "trainer.accelerator is cpu"
    may_have_one = sys.platform == "darwin" or any(Path(path).exists() for path in GPU_PATHS)
    if accelerator == "auto" and not may_have_one:
        return "this machine has no GPU"
    return None


def query_gpus() -> list[tuple[str, str]]:
    """Return (UUID, model) of all GPUs, regardless of CUDA_VISIBLE_DEVICES; [] if nvidia-smi lists none."""
    command = ["nvidia-smi", "--query-gpu=uuid,name", "--format=csv,noheader"]
    environ = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, env=environ, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    parts = [line.partition(", ") for line in done.stdout.splitlines() if line.startswith("GPU-")]
    return [(uuid, model.strip()) for uuid, _, model in parts]


@dataclass(frozen=True)
class RankGpu:
    """GPU that a process uses.

    number: index of the GPU in torch. visible: value of CUDA_VISIBLE_DEVICES; None if the variable is not set.
    """

    number: int
    model: str
    uuid: str  # as nvidia-smi -L shows it
    visible: str | None = None

    @classmethod
    def from_properties(cls, properties: Any, number: int, environ: Mapping[str, str]) -> "RankGpu":
        """Describe the GPU of torch.cuda.get_device_properties(number)."""
        uuid = str(properties.uuid)
        uuid = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        return cls(number, str(properties.name), uuid, environ.get("CUDA_VISIBLE_DEVICES"))

    @property
    def words(self) -> str:
        """Return a label such as "cuda:1 = GPU 3 (NVIDIA H200, GPU-8c5f1f2a)", with as many digits of the UUID as
        CUDA_VISIBLE_DEVICES needs."""
        entries = dict(enumerate((self.visible or "").split(",")))
        of_driver = str(self.number) if self.visible is None else entries.get(self.number, "").strip()
        # if CUDA_VISIBLE_DEVICES contains UUIDs, the driver's number is not known
        name = f"cuda:{self.number}" + f" = GPU {of_driver}" * of_driver.isdecimal()
        return f"{name} ({self.model}, {self.uuid if self.uuid.startswith('MIG') else self.uuid[:12]})"


def describe_gpus(gpus_of_ranks: Mapping[int, Sequence[RankGpu]], hosts: Mapping[int, str], per_node: int) -> list[str]:
    """Format one log line for each node that has GPUs.

    hosts: host name of each rank. per_node: number of ranks per node.
    """
    lines: list[str] = []
    for first in range(0, len(hosts), per_node):
        own = {rank: gpus for rank in range(first, first + per_node) if (gpus := gpus_of_ranks.get(rank))}
        if own:
            of_node = f" of node {first // per_node} ({hosts[first]})" if len(hosts) > per_node else ""
            each = [f"rank {rank} {' and '.join(gpu.words for gpu in gpus)}" for rank, gpus in own.items()]
            lines.append(f"GPUs{of_node}: {', '.join(each)}.")
    return lines
