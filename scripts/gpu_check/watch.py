"""Callbacks of the trainings that checks.py starts. They raise an error where a rule does not hold, or write what they
saw to a JSON file."""

import contextlib
import json
import os
import re
import signal
import subprocess
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch

from imagenet_ddp.runs.log import HARMLESS


class Strict(L.Callback):
    """Turn the warnings that a log shows into errors in the first steps, and waits for the GPU in the steps from
    sync_from to sync_until - 1, which must not be the last one, after which figures are read. Steps count from 1."""

    def __init__(self, warnings_until: int = 0, sync_from: int = 0, sync_until: int = 0):
        self._warnings_until, self._sync_from, self._sync_until = warnings_until, sync_from, sync_until
        self._warnings = contextlib.ExitStack()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        step = batch_idx + 1
        if step == 1 and self._warnings_until:
            self._warnings.enter_context(warnings.catch_warnings())
            warnings.simplefilter("error")
            for kind in (DeprecationWarning, FutureWarning):
                warnings.simplefilter("ignore", kind)
            for text in HARMLESS:
                warnings.filterwarnings("ignore", f"(?s).*{re.escape(text)}")
        if step == self._warnings_until + 1:
            self._warnings.close()
        if pl_module.device.type == "cuda" and step in (self._sync_from, self._sync_until):
            torch.cuda.set_sync_debug_mode("error" if step == self._sync_from else "default")


class StopAt(L.Callback):
    """Send SIGTERM to this process after so many steps, as a cluster does before it ends a job."""

    def __init__(self, step: int):
        self._step = step

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if trainer.global_step == self._step:
            os.kill(os.getpid(), signal.SIGTERM)


class Overflow(L.Callback):
    """Put an infinite gradient into the first of the batches of the third update, and write what GradScaler made of it.
    The update must be left out, and the scale halved."""

    def __init__(self, out: str, accumulate: int):
        self._out, self._first = Path(out), 2 * accumulate
        self._last = self._first + accumulate - 1
        self._before: list[Any] = []
        self._scale, self._batch = 0.0, 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self._batch = batch_idx
        if batch_idx == self._first:
            self._scale = trainer.precision_plugin.scaler.get_scale()
            self._before = [weight.detach().clone() for weight in pl_module.net.parameters()]

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if self._batch == self._first:
            gradient = next(pl_module.net.parameters()).grad
            gradient[(0,) * gradient.dim()] = float("inf")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self._last:
            kept = all(map(torch.equal, self._before, pl_module.net.parameters()))
            after = trainer.precision_plugin.scaler.get_scale()
            self._out.write_text(json.dumps({"weights_kept": kept, "scale": [self._scale, after]}))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        found = json.loads(self._out.read_text())
        found["weights_finite"] = all(bool(weight.isfinite().all()) for weight in pl_module.net.parameters())
        found["moved_on"] = not all(map(torch.equal, self._before, pl_module.net.parameters()))
        self._out.write_text(json.dumps(found))


class GpusOfRanks(L.Callback):
    """Write which processes nvidia-smi shows on which GPU in the fifth step, with the MiB of each."""

    def __init__(self, out: str):
        self._out = Path(out)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx != 4:
            return
        gathered: list[Any] = [None] * trainer.world_size
        if trainer.world_size > 1:
            torch.distributed.all_gather_object(gathered, os.getpid())
        if trainer.is_global_zero:
            query = ["nvidia-smi", "--query-compute-apps=pid,gpu_uuid,used_memory", "--format=csv,noheader,nounits"]
            shown = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout
            rows = [line.split(", ") for line in shown.splitlines() if line]
            self._out.write_text(json.dumps({"ranks": gathered, "processes": rows}))
