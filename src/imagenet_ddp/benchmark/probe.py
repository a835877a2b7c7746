"""Measure a training run from within, with a callback that times its steps and then stops the run."""

import json
import resource
import sys
import time
from collections.abc import Iterator
from itertools import repeat
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch

from imagenet_ddp.callbacks.train_log import find_log
from imagenet_ddp.training.step_timer import device_name, synchronize

NUM_READY = 2  # batches held in memory
SETTLE = 1  # untimed steps at the start of each turn, because the caches may hold the data of other work


class Ready:
    """A loader that cycles through batches held in memory. An epoch has `length` batches."""

    def __init__(self, batches: list[dict[str, Any]], length: int):
        self.batches, self._length = batches, length

    def __len__(self) -> int:
        return self._length

    def __iter__(self):
        return (dict(self.batches[number % len(self.batches)]) for number in range(self._length))


class Probe(L.Callback):
    """Time the steps of a training run. Then stop the run and write what rank 0 measured to a JSON file, as read by
    trainings.Measured. trainings.probed() adds this callback as callbacks.benchmark.

    out: the JSON file. steps: timed steps per turn. turns: number of turns; 0 stops the run after its first step.
    warm_up: steps before the first turn. ready: train on batches held in memory, and time the loader alone beforehand.
    """

    def __init__(self, out: str, *, steps: int = 20, turns: int = 5, warm_up: int = 5, ready: bool = False):
        self.out, self.steps = Path(out), steps
        self._turns, self._warm_up, self._is_ready = turns, warm_up, ready
        self._fit_mark = 0.0
        self._measuring: Iterator[None] = iter(())
        self.batches: list[dict[str, Any]] = []
        self.found: dict[str, Any] = {"step_s": []}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        make_loader = data.train_dataloader
        if self._is_ready:
            length = self._warm_up + self._turns * (SETTLE + self.steps) + 2
            data.train_dataloader = lambda: Ready(self._load(make_loader()), length)

    def _load(self, loader: Any) -> list[dict[str, Any]]:
        """Load a few batches and return them. Also time the loader alone, excluding the batches that its processes load
        in advance."""
        num_images, start = 0, 0.0
        num_early = max(NUM_READY, 2 * getattr(loader, "num_workers", 0) + 1)
        for number, batch in enumerate(loader):
            if number < NUM_READY:
                self.batches.append(dict(batch))
            if number + 1 == num_early:
                start = time.perf_counter()
            elif number >= num_early:
                num_images += len(batch["target"])
            if number + 1 == num_early + self.steps:
                break
        if num_images:
            self.found["loader_images_per_s"] = num_images / (time.perf_counter() - start)
        return self.batches

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._fit_mark = time.perf_counter()
        self._measuring = self._measure(trainer, pl_module.device)

    def _measure(self, trainer: L.Trainer, device: torch.device) -> Iterator[None]:
        """Measure, with one training step at each yield, then stop the run."""
        if self._turns:
            yield from repeat(None, self._warm_up)
        for _ in range(self._turns):
            yield from self.measure_turn(device)
        trainer.should_stop = True

    def measure_turn(self, device: torch.device) -> Iterator[None]:
        yield from repeat(None, SETTLE)
        synchronize(device)
        start = time.perf_counter()
        yield from repeat(None, self.steps)
        synchronize(device)
        self.found["step_s"].append((time.perf_counter() - start) / self.steps)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        next(self._measuring, None)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if "first_step_s" in self.found:
            return
        synchronize(pl_module.device)
        self.found["first_step_s"] = time.perf_counter() - self._fit_mark
        self.found["batch_size"] = int(batch["step_images"])  # summed over all ranks

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        device = pl_module.device
        self.found |= {
            "data_wait_frac": find_log(trainer).train_times.epoch.data_wait_frac,
            "precision": str(trainer.precision),
            "device": device_name(device),
            "num_threads": torch.get_num_threads(),
            "num_workers": data.options.num_workers,
            "peak_memory_mib": round(_peak_memory(device) / 2**20, 1),
        }
        if trainer.is_global_zero:
            self.out.write_text(json.dumps(self.found), encoding="utf-8")


def _peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: allocated on the GPU or, on a CPU, resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
