"""What run.py lets other processes do, because it does not import torch itself:
python on_device.py machine | images FOLDER NUMBER | peak SIZE SECONDS | flops PIXELS | same FILE FILE

Each prints one JSON object.
"""

import json
import os
import platform
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

CLASSES = 10
HEIGHT, WIDTH = 375, 500  # the median of ImageNet's photographs


def machine() -> dict[str, Any]:
    """Return the versions and the devices of this machine."""
    import torch
    from torch.cuda import nccl

    gpus: list[Any] = []
    if torch.cuda.is_available():
        gpus = [torch.cuda.get_device_properties(number) for number in range(torch.cuda.device_count())]
    return {
        "gpus": [gpu.name for gpu in gpus],
        "gpu_memory_gib": round(min(gpu.total_memory for gpu in gpus) / 2**30, 1) if gpus else None,
        "cuda": torch.version.cuda,
        "driver": _driver() if gpus else None,
        "cudnn": torch.backends.cudnn.version() if gpus else None,
        "nccl": ".".join(map(str, nccl.version())) if gpus else None,
        "cpu": _cpu_model(),
        "num_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _driver() -> str:
    query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
    return subprocess.run(query, capture_output=True, text=True).stdout.strip() if shutil.which(query[0]) else ""


def _cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.machine())


def images(folder: str, number: str) -> dict[str, Any]:
    """Write FOLDER/train and FOLDER/val, the latter with a quarter as many JPEGs: noise on all scales, as photographs
    have it, in a colour of the class."""
    jobs = [(split, index) for split, count in (("train", int(number)), ("val", int(number) // 4))
            for index in range(count)]  # fmt: skip
    start = time.perf_counter()
    with ProcessPoolExecutor() as pool:
        sizes = list(pool.map(partial(_write_image, Path(folder)), jobs, chunksize=8))
    return {"num_images": len(jobs), "kib": sum(sizes) / len(sizes) / 1024, "seconds": time.perf_counter() - start}


def _write_image(folder: Path, job: tuple[str, int]) -> int:
    import numpy as np
    from PIL import Image

    split, index = job
    generator = np.random.default_rng([split == "val", index])
    target = index % CLASSES
    pixels = np.full((HEIGHT, WIDTH, 3), 90.0) + 60 * np.cos(target + np.arange(3) * 2.1)
    for scale, strength in ((125, 45.0), (25, 22.0), (5, 14.0), (1, 13.0)):
        noise = generator.normal(0, strength, (HEIGHT // scale + 1, WIDTH // scale + 1, 3))
        planes = [Image.fromarray(plane.astype(np.float32)) for plane in noise.transpose(2, 0, 1)]
        pixels += np.stack([np.asarray(plane.resize((WIDTH, HEIGHT))) for plane in planes], axis=-1)
    path = folder / split / f"class{target}" / f"{index:05}.jpg"
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(path, quality=90)
    return path.stat().st_size


def peak(size: str, seconds: str) -> dict[str, Any]:
    """Time products of two size × size matrices, and a copy within the device's memory."""
    import torch

    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True  # as in cuDNN's convolutions, by torch's default
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def rate(work: Any) -> float:
        """Return the calls per second, of the fastest of five turns."""
        work()
        wait()
        best, turn_s = 0.0, float(seconds) / 5
        for _ in range(5):
            start, calls = time.perf_counter(), 0
            while time.perf_counter() - start < turn_s:
                for _ in range(10):
                    work()
                wait()
                calls += 10
            best = max(best, calls / (time.perf_counter() - start))
        return best

    found: dict[str, Any] = {}
    for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        if device.type == "cpu" and name == "fp16":
            continue
        one, other = (torch.randn(int(size), int(size), device=device).to(dtype) for _ in range(2))
        found[name] = rate(lambda one=one, other=other: one @ other) * 2 * int(size) ** 3 / 1e12
    source = torch.zeros(int(size) ** 2 * 8, device=device)
    target = torch.empty_like(source)
    found["copied_bytes_per_s"] = rate(lambda: target.copy_(source)) * 2 * source.nbytes
    return found


def flops(pixels: str) -> dict[str, Any]:
    """Count the floating-point operations of a training step per image, three times those of a forward pass, for each
    net that this machine can make."""
    import torch
    from checks import NETS
    from torch.utils.flop_counter import FlopCounterMode

    found: dict[str, Any] = {}
    for title, (library, name) in NETS.items():
        try:
            if library == "timm":
                import timm

                size = int(pixels)
                with torch.device("meta"):
                    net = timm.create_model(name, num_classes=CLASSES, img_size=size)
            else:
                import torchvision

                with torch.device("meta"):
                    net = torchvision.models.get_model(name, num_classes=CLASSES)
        except ImportError:
            continue
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            net.eval()(torch.empty(1, 3, int(pixels), int(pixels), device="meta"))
        found[title] = 3 * counter.get_total_flops()  # torch counts too many for backward passes of depthwise layers
    return found


def same(one: str, other: str) -> dict[str, Any]:
    """Compare the weights of two checkpoints to the bit."""
    import torch

    weights = [torch.load(path, map_location="cpu", weights_only=True)["state_dict"] for path in (one, other)]
    different = [name for name, value in weights[0].items() if not torch.equal(value, weights[1][name])]
    largest = max((float((weights[0][name] - weights[1][name]).abs().max()) for name in different), default=0.0)
    return {"num_tensors": len(weights[0]), "num_different": len(different), "largest_difference": largest}


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(globals()[name](*arguments)))
