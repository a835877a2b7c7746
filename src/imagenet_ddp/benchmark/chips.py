"""Look up a chip's peak speed, count the operations of a net, and read a GPU's current clocks."""

import copy
import subprocess
from typing import Any

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

# (name, peak of the 16-bit tensor cores, peak of TF32, or of fp32 on chips without TF32), in Tflop/s without sparsity.
# The first matching name is used. Source: NVIDIA's data sheets and architecture white papers. Where the 16-bit peak
# depends on the accumulator, the value is for fp32 accumulation.
PEAKS: tuple[tuple[str, float, float], ...] = (
    # nvidia.com/en-us/data-center/dgx-b200: 8 chips reach 72 Pflop/s in FP8, which is halved twice for dense 16-bit
    ("B200", 2250, 1100),
    ("H200", 989, 494),  # nvidia.com/en-us/data-center/h200
    ("H100 PCIe", 756, 378),  # nvidia.com/en-us/data-center/h100
    ("H100", 989, 494),  # same page, SXM
    ("A100", 312, 156),  # nvidia.com/en-us/data-center/a100
    ("L40S", 362, 183),  # nvidia.com/en-us/data-center/l40s
    ("L4", 121, 60),  # nvidia.com/en-us/data-center/l4
    ("A10", 125, 62.5),  # nvidia.com/en-us/data-center/products/a10-gpu
    ("T4", 65, 8.1),  # nvidia.com/en-us/data-center/tesla-t4; fp16, no bf16 units
    ("V100", 125, 15.7),  # nvidia.com/en-us/data-center/v100; fp16, no bf16 units
    ("RTX 5090", 209.5, 104.8),  # RTX Blackwell white paper, appendix A
    ("RTX 4090", 165.2, 82.6),  # Ada white paper, appendix A
    ("RTX 3090", 71, 35.6),  # Ampere GA102 white paper, appendix A; not for the Ti
)
HALF = ("16-mixed", "bf16-mixed", "16-true", "bf16-true")


def peak_tflops(name: str, precision: str) -> float | None:
    """Return a GPU's dense peak in Tflop/s, or None if it is unknown. name: as torch reports it. precision: as in
    Lightning."""
    words = name.split()
    for known, half, single in PEAKS:
        parts = known.split()
        # whole words: "H100 80GB HBM3" is an H100, but "A100" and "A10G" are not an A10; "Ti" and "Laptop" are excluded
        if all(part in words for part in parts) or any(word.startswith(f"{known}-") for word in words):
            if "Ti" in words or "Laptop" in words or "64" in precision:
                return None
            return half if precision in HALF else single
    return None


def flops_per_image(net: nn.Module, image_size: int) -> int | None:
    """Return the floating-point operations of a training step per image, with multiplications and additions counted
    separately. Traces the net on the meta device and returns None if that fails."""
    try:
        copied = copy.deepcopy(net).to(device="meta", dtype=torch.float32).train()
        with FlopCounterMode(display=False) as counter:
            copied(torch.empty(2, 3, image_size, image_size, device="meta")).sum().backward()
    except Exception:  # a user's own net may raise anything
        return None
    return counter.get_total_flops() // 2


def describe(net: nn.Module, device: torch.device, image_size: int, precision: str) -> dict[str, Any]:
    """Return device, peak_tflops, flops_per_image and clocks. All but device are None if they are unknown."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
    return {
        "device": name or device.type,
        "peak_tflops": peak_tflops(name, precision) if name else None,
        "flops_per_image": flops_per_image(net, image_size),
        "clocks": _clocks(device) if name else None,
    }


def _clocks(device: torch.device) -> dict[str, float] | None:
    """Return the current clocks (MHz), power (W) and temperature (°C) from nvidia-smi, or None if nvidia-smi fails."""
    fields = ("clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "temperature.gpu")
    uuid = str(torch.cuda.get_device_properties(device).uuid)
    command = ["nvidia-smi", f"--id=GPU-{uuid}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return {field: float(value) for field, value in zip(fields, done.stdout.split(","), strict=True)}
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
