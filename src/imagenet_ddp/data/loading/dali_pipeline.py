"""Decode and crop JPEGs with NVIDIA DALI: choose its device and its number of threads, and run its pipeline.

The pipelines for CPU and GPU differ only in DALI's name for the device.
"""

import importlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.data.loading.sampler import Key
from imagenet_ddp.data.transforms import Box
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun, install


def load() -> Any:
    """Return the module nvidia.dali. Raises ConfigError if it is not installed."""
    try:
        for part in ("fn", "pipeline", "types"):
            importlib.import_module(f"nvidia.dali.{part}")
        return importlib.import_module("nvidia.dali")
    except (ImportError, OSError) as error:
        raise ConfigError(
            f"loader=dali needs NVIDIA DALI, which cannot be used here ({error}). "
            f"Hint: run `{install('imagenet_ddp[dali]')}`, or set loader=default."
        ) from error


def choose_device(option: str, root_device: torch.device) -> torch.device:
    """Return the device on which DALI decodes. option: loader.device (auto, cpu or gpu). root_device: the device of the
    model. Raises ConfigError for gpu if the model is not on a CUDA device."""
    if option == "gpu" and root_device.type != "cuda":
        raise ConfigError(
            f"loader.device=gpu needs training on a CUDA device, got {root_device.type}. Hint: set loader.device=auto."
        )
    return root_device if option != "cpu" and root_device.type == "cuda" else torch.device("cpu")


def choose_num_threads(option: int | str, num_workers: int) -> int:
    """Return the number of CPU threads for DALI. option: loader.num_threads; auto: num_workers, but at least one.
    num_workers: number of processes that the ordinary loader would use."""
    return max(num_workers, 1) if option == "auto" else int(option)


def describe(device: torch.device, num_threads: int) -> str:
    where = "CPU" if device.type == "cpu" else "GPU"
    threads = count_noun(num_threads, "thread")
    return f"DALI {load().__version__}, decoding on the {where}, {threads} (loader.num_threads)"


class Crop(NamedTuple):
    """One image for DALI to decode."""

    key: Key
    encoded: bytes
    box: Box
    flipped: bool


class Pipeline:
    """DALI pipeline that decodes JPEGs and returns crops of the output size, in the order of the requests. It cannot be
    used again after an error."""

    def __init__(self, batch_size: int, num_threads: int, device: torch.device):
        dali = load()
        fn, types = dali.fn, dali.types
        on_gpu = device.type == "cuda"
        self._pipeline = dali.pipeline.Pipeline(
            batch_size=batch_size,
            num_threads=num_threads,
            device_id=(device.index or 0) if on_gpu else None,
            prefetch_queue_depth=1,  # with a larger depth, the first call runs the pipeline several times without input
        )
        with self._pipeline:
            encoded = fn.external_source(name="encoded", dtype=types.UINT8, ndim=1)
            anchor = fn.external_source(name="anchor", dtype=types.INT32, ndim=1)
            shape = fn.external_source(name="shape", dtype=types.INT32, ndim=1)
            size = fn.external_source(name="size", dtype=types.FLOAT, ndim=1)
            crops = fn.decoders.image_slice(
                encoded,
                anchor,
                shape,
                axes=(0, 1),
                normalized_anchor=False,
                normalized_shape=False,
                adjust_orientation=False,
                output_type=types.RGB,
                device="mixed" if on_gpu else "cpu",
            )
            images = fn.resize(crops, size=size, antialias=True, interp_type=types.INTERP_LINEAR, dtype=types.UINT8)
            self._pipeline.set_outputs(images)
        self._pipeline.build()
        self.num_pending = 0
        self.is_broken = False

    def schedule(self, crops: Sequence[Crop], size: int) -> None:
        feed = self._pipeline.feed_input
        feed("encoded", [np.frombuffer(each.encoded, dtype=np.uint8) for each in crops])
        feed("anchor", np.array([(each.box.top, each.box.left) for each in crops], dtype=np.int32))
        feed("shape", np.array([(each.box.height, each.box.width) for each in crops], dtype=np.int32))
        feed("size", np.full((len(crops), 2), size, dtype=np.float32))
        self._pipeline.schedule_run()
        self.num_pending += 1

    def take(self) -> Tensor:
        """Return the oldest scheduled batch, uint8 (B, 3, size, size), channels last. Raises RuntimeError and DALI's
        own exceptions."""
        (images,) = self._pipeline.outputs()
        self.num_pending -= 1
        return torch.from_dlpack(images.as_tensor()).permute(0, 3, 1, 2)
