"""Choose the precision of a run. Torch is imported only if there is a GPU."""

from collections.abc import Callable, Mapping
from typing import Any

from imagenet_ddp.distributed.validate import is_too_small_for_bf16
from imagenet_ddp.system.cpu_cores import cpuinfo

# Lightning's short names of precisions, and the full names.
LONG_NAMES = {"64": "64-true", "32": "32-true", "16": "16-mixed", "bf16": "bf16-mixed"}


# Share of depthwise convolutions in the multiplications of a net above which a CPU trains it faster in fp32. On one
# core of an AMD EPYC with AVX512-BF16, at 128 pixels, bf16 has 0.72 times the speed of fp32 for ShuffleNet (share
# 0.029), 0.59 for EfficientNet-B0 (0.09), 0.47 for MobileNetV3-small (0.13), but 1.47 for ConvNeXt-Tiny (0.024).
# ConvNeXt-Atto (0.053) has 1.14 there, and 0.83 on a Xeon with AMX.
MAX_DEPTHWISE_SHARE = 0.025


def choose_precision(
    requested: str | int | None,
    kind: str,
    data: Mapping[str, Any],
    depthwise_share: Callable[[], float],
    gpu: int | None = None,
) -> tuple[str, str]:
    """Return (Lightning's precision, the reason for the choice).

    kind: cpu, cuda or mps. data: the data.* options. depthwise_share: returns the share of depthwise convolutions in
    the net's multiplications; called on CPUs only. gpu: torch's index of this process's own GPU, because other GPUs
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
        # the GTX 16 series has no tensor cores, although its compute capability is that of the RTX 20 series
        if found.major == 7 and "GTX 16" not in found.name:
            return "16-mixed", f"{found.name} has tensor cores for fp16, but none for bf16"
        return "32-true", f"{found.name} has no tensor cores"
    if kind == "cpu" and cpu_has_bf16():
        if is_too_small_for_bf16(data):
            return "32-true", "gradients in bf16 may be wrong on a CPU for images this small"
        if (share := depthwise_share()) > MAX_DEPTHWISE_SHARE:
            of_net = f"depthwise convolutions ({share:.0%} of this net's multiplications)"
            return "32-true", f"CPUs are slower in bf16 for {of_net}"
        return "bf16-mixed", "this CPU computes in bf16 (AVX512-BF16 or AMX)"
    return "32-true", "no bf16 units on this device"


def cpu_has_bf16() -> bool:
    """Return whether the kernel's CPU flags contain bf16 units. Without them, bf16 is emulated and slower than fp32."""
    return bool({"avx512_bf16", "amx_bf16"} & set(cpuinfo("flags")))  # only x86 has the field and these flags
