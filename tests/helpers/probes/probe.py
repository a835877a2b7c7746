"""Provide callbacks from outside the package, which allow_targets=[probe] permits. They record the images that each
rank trains on, and cause faults."""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import ThroughputMonitor

from imagenet_ddp.data.sources import image_files as images

COLLECTIVES = ("broadcast", "all_reduce", "all_gather", "barrier", "all_gather_object", "broadcast_object_list")


class Probe(L.Callback):
    """Write the images of each step to folder/seen<RANK>.jsonl, and cause one fault.

    what: nothing, signal, signal_and_error (of on_exception), crash or kill. `rank` causes the fault after training
    step `step` of the run (counted from 1) or, with in_validation, at the first validation batch after that step.
    slow_s: seconds by which each step is prolonged until the file folder/fast exists. Once the file folder/no_answer
    exists, reading an image never ends.
    """

    def __init__(
        self, folder: str, what: str = "nothing", rank: int = 0, step: int = 0, in_validation: bool = False,
        slow_s: float = 0.0,
    ):  # fmt: skip
        self.folder, self.what, self.rank, self.step = Path(folder), what, rank, step
        self.in_validation, self.slow_s = in_validation, slow_s
        self.steps = 0
        self.collectives: list[str] = []

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        pids = {"pid": os.getpid(), "parent": os.getppid(), "threads": torch.get_num_threads()}
        (self.folder / f"pid{trainer.global_rank}.json").write_text(json.dumps(pids))

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        if self.steps == 1:  # from this step on, each call of a collective from Python is counted
            for name in COLLECTIVES:
                self._count(name)
        with (self.folder / f"collectives{trainer.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps([trainer.current_epoch, batch_idx, self.collectives]) + "\n")

    def _count(self, name: str) -> None:
        original = getattr(torch.distributed, name)

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.collectives.append(name)
            return original(*args, **kwargs)

        setattr(torch.distributed, name, counted)

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        counted = batch["index"][: batch["num_counted"]].tolist()
        with (self.folder / f"seen{trainer.global_rank}.jsonl").open("a") as file:
            file.write(json.dumps([trainer.current_epoch, batch_idx, counted]) + "\n")
        self.steps += 1
        if not (self.folder / "fast").exists():
            time.sleep(self.slow_s)
        if (self.folder / "no_answer").exists():
            images.read_file = lambda path: time.sleep(600)
        if not self.in_validation:
            self._trouble(trainer)

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        time.sleep(self.slow_s)
        if self.in_validation and batch_idx == 0:
            self._trouble(trainer)

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        if self.what == "signal_and_error":
            raise OSError("the probe cannot reach its server")

    def _trouble(self, trainer: L.Trainer) -> None:
        if trainer.global_rank != self.rank or self.steps != self.step:
            return
        if self.what.startswith("signal"):
            os.kill(os.getpid(), signal.SIGTERM)
        elif self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.what == "crash":
            raise RuntimeError("the probe crashes on purpose")


def num_images(batch: dict[str, Any]) -> int:
    return len(batch["target"])


def throughput_monitor(window_size: int) -> L.Callback:
    """Return Lightning's ThroughputMonitor with a function as an argument."""
    return ThroughputMonitor(num_images, window_size=window_size)
