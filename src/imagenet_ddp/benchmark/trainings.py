"""Run the trainings and scripts that a benchmark measures, each in a process of its own. Does not import torch."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.config.schema.commands import BenchmarkConfig, BenchmarkOptions, CommonConfig
from imagenet_ddp.errors import RunError
from imagenet_ddp.system.console import Progress

# Options added to each measured run, which switch off validation and whatever would end the run or write files in it.
MEASURED = (
    "trainer.limit_val_batches=0", "trainer.limit_train_batches=null", "trainer.max_epochs=1000",
    "trainer.max_time=null", "trainer.max_steps=-1", "trainer.min_epochs=null", "trainer.min_steps=null",
    "trainer.fast_dev_run=false",
    "trainer.accumulate_grad_batches=1", "++callbacks.checkpoint=null", "++callbacks.batch_sheet=null",
)  # fmt: skip
ONE_DEVICE = (*MEASURED, "trainer.devices=1")
LAUNCHERS = ("SLURM", "TORCHELASTIC", "OMPI_", "PMI", "MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "NODE_RANK", "GROUP_")


@dataclass(frozen=True)
class Plan:
    config: BenchmarkConfig
    folder: Path  # the run folder; it exists
    typed: tuple[str, ...] = ()  # the options that are passed on to train

    @property
    def options(self) -> BenchmarkOptions:
        return self.config.benchmark

    @property
    def mode(self) -> str:
        return self.options.name


@dataclass(frozen=True)
class Measured:
    """What a Probe measured in one training. Times are in seconds; started_at and first_step_at are times of the clock.

    step_s: mean of the steps of each turn. others_s: the same of other loops. batch_size: images per step, on all
    ranks. operations: the longest ones, with name, seconds and calls. collectives: calls of each operation, by loop.
    """

    started_at: float
    first_step_at: float
    first_step_s: float
    step_s: list[float]
    batch_size: int
    data_wait_frac: float | None
    precision: str
    device: str
    num_threads: int
    num_workers: int
    peak_memory_mib: float
    flops_per_image: int | None
    loader_images_per_s: float = 0.0
    others_s: dict[str, list[float]] = field(default_factory=dict)
    operations: list[dict[str, Any]] = field(default_factory=list)
    operations_s: float = 0.0
    operations_on: str = "CPU"
    collectives: dict[str, dict[str, int]] = field(default_factory=dict)

    @property
    def rates(self) -> list[float]:
        """The images per second of each turn."""
        return [self.batch_size / seconds for seconds in self.step_s]

    def line(self, images_per_s: float) -> str:
        """Return what the device did at this speed."""
        tflops = f", {self.flops_per_image * images_per_s / 1e12:.3g} Tflop/s" if self.flops_per_image else ""
        return (
            f"{self.device}, {self.precision}: {images_per_s:,.0f} images/s{tflops}, "
            f"{self.peak_memory_mib:,.0f} MiB, first step {self.first_step_s:.2f} s"
        )


class Trainings:
    """Run training commands and scripts one after the other. typed: options of each training. work: a folder that is
    deleted when the benchmark ends."""

    def __init__(self, typed: Sequence[str], work: Path):
        self.work = work
        self._typed, self._number = tuple(typed), 0
        self._progress: Progress | None = None

    def expect(self, number: int) -> None:
        """Show the progress of this number of runs."""
        self._progress = Progress("benchmark", number, "runs", rate=False)

    def close(self) -> None:
        """Remove the progress bar from the screen."""
        if self._progress is not None:
            self._progress.close()

    def train(
        self,
        options: Sequence[str] = (),
        *,
        typed: Sequence[str] | None = None,
        probe: str = "imagenet_ddp.benchmark.probe.Probe",
        **arguments: Any,
    ) -> Measured:
        """Run train with the typed options followed by `options`, and return what its probe measured. typed: replaces
        the options of the command line. probe: its class. arguments: of the probe."""
        folder = self.work / str(self._number)
        arguments = {"_target_": probe, "out": str(folder.with_suffix(".json")), **arguments}
        lines = [f"+callbacks.benchmark.{key}={json.dumps(value)}" for key, value in arguments.items()]
        argv = in_folder([*(self._typed if typed is None else typed), *options, *lines], "hydra.run.dir", folder)
        return Measured(**self._run(["-m", "imagenet_ddp.train", *argv], folder))

    def script(self, module: str, like: Measured, **arguments: Any) -> dict[str, Any]:
        """Run a module on the same device and with the same number of threads as the measured run `like`. Return the
        JSON that the script wrote, and started_at."""
        folder = self.work / str(self._number)
        arguments |= {"out": str(folder.with_suffix(".json")), "num_threads": like.num_threads,
                      "device": "cpu" if like.device == "cpu" else "cuda"}  # fmt: skip
        return self._run(["-m", module, json.dumps(arguments)], folder)

    def _run(self, argv: Sequence[str], folder: Path) -> dict[str, Any]:
        """Run Python in its own process. Return the JSON that it wrote beside the folder, and started_at. Raises
        RunError with the last lines of its log if it fails. If the first run is refused, ends this process with code 2
        and the same message."""
        out, log = folder.with_suffix(".json"), folder.with_suffix(".log")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        with log.open("w", encoding="utf-8") as file:
            started_at = time.time()
            # subprocess.run kills the child if this process is stopped
            code = subprocess.run(
                [sys.executable, *argv], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ
            ).returncode
        if code == 2 and not self._number:  # mistakes that only the training finds, such as damaged weights
            words = log.read_text(encoding="utf-8", errors="replace").rstrip()
            print(words.replace("imagenet_ddp.train:", "imagenet_ddp.benchmark:"), file=sys.stderr, flush=True)
            sys.exit(2)
        if code or not out.is_file():
            last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
            hint = f"check whether the disk of {self.work.parent} is full, because the log of that run is empty."
            hint = f"read its last log lines:\n{last}" if last else hint
            raise RunError(f"a measured run ended with exit code {code}. Hint: {hint}")
        self._number += 1
        if self._progress is not None:
            self._progress.add(1)
        return {**json.loads(out.read_text(encoding="utf-8")), "started_at": started_at}


def title(config: CommonConfig) -> str:
    """Return a title such as "resnet18, 64 px, batch 32"."""
    model, data = config.model, config.data
    return f"{model.target or model.name}, {data['image_size']} px, batch {data['batch_size']}"


def smaller_work(device: str) -> str:
    """Return the changes that would help if the device is busy computing all the time."""
    return "a smaller data.image_size, a smaller net or a GPU" if device == "cpu" else "a smaller net or image"
