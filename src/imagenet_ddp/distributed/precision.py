"""Choose the precision of a run. Torch is imported only if there is a GPU."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.distributed.validate import is_too_small_for_bf16
from imagenet_ddp.system.cpu_cores import cpuinfo

# Lightning's short names of precisions, and the full names.
LONG_NAMES = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}


def choose_precision(
    requested: str | int | None, kind: str, data: Mapping[str, Any], gpu: int | None = None
) -> tuple[str, str]:
    """Return (Lightning's precision, the reason for the choice).

    kind: cpu, cuda or mps. data: the data.* options. gpu: torch's index of this process's own GPU, because other GPUs
    of the machine may be older; None if the process has no GPU of its own.
    """
    if requested not in ("auto", None):
        return LONG_NAMES.get(str(requested), str(requested)), "as set"
    if requested is None:
        return "32-true", "Lightning's default"
    if kind == "cuda":
        import torch

        found = torch.cuda.get_device_properties(gpu)
        if torch.version.hip or found.major >= 8:  # like torch.cuda.is_bf16_supported, which checks the first GPU
            return "bf16-mixed", f"{found.name} computes in bf16"
        return "32-true", f"{found.name} has no bf16 units"
    if kind == "cpu" and cpu_has_bf16() and is_too_small_for_bf16(data):
        return "32-true", "gradients in bf16 may be wrong on a CPU for images this small"
    if kind == "cpu" and cpu_has_bf16():
        return "bf16-mixed", "this CPU computes in bf16 (AVX512-BF16 or AMX)"
    return "32-true", "no bf16 units on this device"


def cpu_has_bf16() -> bool:
    """Return whether the kernel's CPU flags contain bf16 units. Without them, bf16 is emulated and slower than fp32."""
    return bool({"avx512_bf16", "amx_bf16"} & set(cpuinfo("flags")))  # only x86 has the field and these flags
