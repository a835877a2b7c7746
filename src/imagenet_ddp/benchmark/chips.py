"""Look up the peak speed of a chip, the operations that a net needs, and the current clocks of a GPU."""

import copy
import subprocess
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

# Dense peaks in Tflop/s: (16-bit tensor cores, TF32 or fp32 where there is none). First match by name counts.
# Source: NVIDIA's data sheets and architecture white papers; without sparsity, 16-bit sums in fp32 where they differ.
PEAKS: tuple[tuple[str, float, float], ...] = (
    ("B200", 2250, 1100),  # nvidia.com/en-us/data-center/dgx-b200: 72 Pflop/s FP8 of 8, halved twice for dense 16-bit
    ("H200", 989, 494),  # nvidia.com/en-us/data-center/h200
    ("H100 PCIe", 756, 378),  # nvidia.com/en-us/data-center/h100
    ("H100", 989, 494),  # the same, SXM
    ("A100", 312, 156),  # nvidia.com/en-us/data-center/a100
    ("L40S", 362, 183),  # nvidia.com/en-us/data-center/l40s
    ("L4", 121, 60),  # nvidia.com/en-us/data-center/l4
    ("A10", 125, 62.5),  # nvidia.com/en-us/data-center/products/a10-gpu
    ("T4", 65, 8.1),  # nvidia.com/en-us/data-center/tesla-t4; fp16, no bf16 units
    ("V100", 125, 15.7),  # nvidia.com/en-us/data-center/v100; fp16, no bf16 units
    ("RTX 5090", 209.5, 104.8),  # RTX Blackwell white paper, appendix A
    ("RTX 4090", 165.2, 82.6),  # Ada white paper, appendix A
    ("RTX 3090", 71, 35.6),  # Ampere GA102 white paper, appendix A; not of the Ti
)
HALF = ("16-mixed", "bf16-mixed", "16-true", "bf16-true")


def peak_tflops(name: str, precision: str) -> float | None:
    """Return the dense peak in Tflop/s of a GPU, given torch's name for it; None if unknown. precision: Lightning's."""
    words = name.split()
    for known, half, single in PEAKS:
        parts = known.split()
        # A10 is not A100; "H100 80GB HBM3" is, "A10G" is not the A10, "RTX 3090 Ti" is not the RTX 3090
        if all(part in words for part in parts) or any(word.startswith(f"{known}-") for word in words):
            if "Ti" in words or "Laptop" in words or "64" in precision:
                return None
            return half if precision in HALF else single
    return None


def flops_per_image(net: nn.Module, image_size: int) -> int | None:
    """Count the floating-point operations of a training step, counting multiplications and additions separately. Traces
    the net on the meta device; None if it cannot be traced."""
    try:
        copied = copy.deepcopy(net).to(device="meta", dtype=torch.float32).train()
        with FlopCounterMode(display=False) as counter:
            copied(torch.empty(2, 3, image_size, image_size, device="meta")).sum().backward()
    except Exception:  # any net of the user's
        return None
    return counter.get_total_flops() // 2


def describe(net: nn.Module, device: torch.device, image_size: int, precision: str) -> dict[str, Any]:
    """Return chip, peak_tflops, flops_per_image and clocks, each None if unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": name or device.type,
        "peak_tflops": peak_tflops(name, precision) if name else None,
        "flops_per_image": flops_per_image(net, image_size),
        "clocks": _clocks(device) if name else None,
    }


def _clocks(device: torch.device) -> dict[str, float] | None:
    """Return the clock in MHz and the power in watts that nvidia-smi reports now; None if it reports none."""
    fields = ("clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    command = ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return {field: float(value) for field, value in zip(fields, done.stdout.split(","), strict=True)}
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
