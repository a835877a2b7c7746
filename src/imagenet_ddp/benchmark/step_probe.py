"""Measure a training run from within, with a callback that times its steps in alternation with other loops."""

import json
import resource
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from torch.profiler import ProfilerActivity, profile

from imagenet_ddp.benchmark import chips
from imagenet_ddp.benchmark.bare import SETTLE, BareLoop, NaiveLightning, Ready
from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.callbacks.train_log import TrainLog
from imagenet_ddp.performance.step_timer import synchronize

NUM_READY = 2  # batches held in memory
OURS = "ours"


class Probe(L.Callback):
    """Time the steps of a training run in alternation with other loops. Then stop the run and write the figures of rank
    0 to a JSON file. The harness adds this callback as callbacks.benchmark.

    out: the JSON file. steps: timed steps per turn. turns: number of turns of each loop; 0 stops the run after its
    first step. warm_up: steps before the first turn. ready: train on batches held in memory, and time the loader alone
    beforehand. against: the other loops, which are "bare" (BareLoop), "naive" (NaiveLightning) and "loop"
    (NaiveLightning that logs nothing). profiled: steps of a last turn of the run and of the bare loop, under torch's
    profiler. trace: file for the profiler's trace of the run.
    """

    def __init__(
        self,
        out: str,
        *,
        steps: int = 20,
        turns: int = 5,
        warm_up: int = 5,
        ready: bool = False,
        against: Sequence[str] = (),
        profiled: int = 0,
        trace: str | None = None,
    ):
        self._out, self._steps, self._turns, self._warm_up = Path(out), steps, turns, warm_up
        self._is_ready, self._against, self._profiled, self._trace = ready, tuple(against), profiled, trace
        self._num_begun = 0
        self._mark = self._fit_mark = 0.0
        self._others: dict[str, Any] = {}
        self._batches: list[dict[str, Any]] = []
        self._seconds: dict[str, list[float]] = {name: [] for name in (OURS, *self._against)}
        self._profile: profile | None = None
        self._found: dict[str, Any] = {}

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        make_loader = data.train_dataloader
        if self._is_ready:
            data.train_dataloader = lambda: Ready(self._load(make_loader()), self._num_batches)

    @property
    def _num_batches(self) -> int:
        return self._warm_up + self._turns * (SETTLE + self._steps) + SETTLE + self._profiled + 2

    def _load(self, loader: Any) -> list[dict[str, Any]]:
        """Load a few batches and return them. Also time the loader alone, excluding the batches that its processes load
        in advance."""
        batches, num_images, start = iter(loader), 0, 0.0
        num_early = max(NUM_READY, 2 * getattr(loader, "num_workers", 0) + 1)
        for number, batch in enumerate(batches):
            if number < NUM_READY:
                self._batches.append(dict(batch))
            if number + 1 == num_early:
                start = time.perf_counter()
            elif number >= num_early:
                num_images += len(batch["target"])
            if number + 1 == num_early + self._steps:
                break
        if num_images:
            self._found["loader_images_per_s"] = num_images / (time.perf_counter() - start)
        self._found["num_workers"] = getattr(loader, "num_workers", 0)
        return self._batches

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        for name in self._against:
            loop: Any = BareLoop(trainer, pl_module, self._batches)
            if name != "bare":
                loop = NaiveLightning(trainer, pl_module, loop, self._out.parent, logs=name == "naive")
            self._others[name] = loop
        self._fit_mark = time.perf_counter()

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        number = self._num_begun - self._warm_up
        self._num_begun += 1
        turn, step = divmod(number, SETTLE + self._steps)
        if number < 0:
            return
        if turn >= self._turns:
            self._finish(trainer, pl_module, number - self._turns * (SETTLE + self._steps))
        elif step == 0:
            self._end_turn(pl_module)
            for name, other in self._others.items():
                self._seconds[name].append(other.turn(self._steps))
        if step == SETTLE and turn < self._turns:
            synchronize(pl_module.device)
            self._mark = time.perf_counter()

    def _end_turn(self, module: L.LightningModule) -> None:
        if self._mark:
            synchronize(module.device)
            self._seconds[OURS].append((time.perf_counter() - self._mark) / self._steps)
            self._mark = 0.0

    def _finish(self, trainer: L.Trainer, module: L.LightningModule, step: int) -> None:
        """Profile a last turn, then stop the run. step: number of steps since the end of the timed turns."""
        if step == 0:
            self._end_turn(module)
        if self._profiled and step == SETTLE:
            self._profile = _profiler().__enter__()
        if step == (SETTLE + self._profiled if self._profiled else 0):
            if self._profile is not None:
                synchronize(module.device)
                self._profile.__exit__(None, None, None)
                self._found |= {"collectives": {OURS: _collectives(self._profile)}, **_operations(self._profile)}
                if self._trace is not None:
                    self._profile.export_chrome_trace(self._trace)
                self._profile = None
                if bare := self._others.get("bare"):
                    with _profiler() as profiled:
                        for number in range(self._profiled):
                            bare.step(number)
                    self._found["collectives"]["bare"] = _collectives(profiled)
            trainer.should_stop = True

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if "first_step_at" in self._found:
            return
        synchronize(pl_module.device)
        self._found |= {"first_step_at": time.time(), "first_step_s": time.perf_counter() - self._fit_mark}
        self._found["batch_size"] = int(batch["step_images"])  # summed over all ranks
        if not self._turns and not self._profiled:
            trainer.should_stop = True

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics, data = find_callback(trainer, TrainLog), trainer.datamodule  # type: ignore[attr-defined]
        net: Any = pl_module.net
        found = {
            "step_s": self._seconds,
            "data_wait_frac": metrics.train_times.epoch.data_wait_frac if metrics else None,
            "num_steps": self._steps,
            "precision": str(trainer.precision),
            "num_threads": torch.get_num_threads(),
            "peak_memory_mib": round(_peak_memory(pl_module.device) / 2**20, 1),
            **chips.describe(net, pl_module.device, data.options["image_size"], str(trainer.precision)),
            "num_workers": data.options["num_workers"],
            **self._found,
        }
        if trainer.is_global_zero:
            self._out.write_text(json.dumps(found), encoding="utf-8")


def _profiler() -> profile:
    cuda = [ProfilerActivity.CUDA] if torch.cuda.is_available() else []
    return profile(activities=[ProfilerActivity.CPU, *cuda], acc_events=True)


def _collectives(profiled: profile) -> dict[str, int]:
    """Count the calls of each collective operation in torch's dispatcher, which also sees the calls from
    DistributedDataParallel's C++ code."""
    names = [event.name for event in profiled.events() or () if event.name.startswith("c10d::")]
    return dict(Counter(names))


def _operations(profiled: profile) -> dict[str, Any]:
    """Return the operations that take longest, in descending order of their own time, without the operations they call.
    The times are GPU times if the profiler recorded any, else CPU times."""
    averages = list(profiled.key_averages())
    by_device = any(each.self_device_time_total for each in averages)
    seconds = [(each.self_device_time_total if by_device else each.self_cpu_time_total) / 1e6 for each in averages]
    rows = sorted(zip(seconds, averages, strict=True), key=lambda row: -row[0])
    rows = [{"name": each.key, "seconds": own, "calls": each.count} for own, each in rows if own > 0]
    return {"operations": rows[:15], "operations_s": sum(seconds), "operations_on": "gpu" if by_device else "cpu"}


def _peak_memory(device: torch.device) -> int:
    """Return the peak memory in bytes: allocated on the GPU or, on a CPU, resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
