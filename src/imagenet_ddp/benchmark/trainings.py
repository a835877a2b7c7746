"""Run benchmark=train and step: time training runs, each in a process of its own. Does not import torch."""

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.benchmark.results import Results, ratio, row
from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.config.schema.benchmark import BenchmarkConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import RunError
from imagenet_ddp.system.console import Progress, print_message
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.text import count_noun, percent

# Options added to each measured run, which switch off validation and whatever would end the run or write files in it.
MEASURED = (
    "trainer.limit_val_batches=0", "trainer.limit_train_batches=null", "trainer.max_epochs=1000",
    "trainer.max_time=null", "trainer.max_steps=-1", "trainer.min_epochs=null", "trainer.min_steps=null",
    "trainer.fast_dev_run=false", "trainer.num_nodes=1",
    "trainer.accumulate_grad_batches=1", "++callbacks.checkpoint=null", "++callbacks.batch_sheet=null",
)  # fmt: skip
ONE_DEVICE = (*MEASURED, "trainer.devices=1")
LAUNCHERS = ("SLURM", "TORCHELASTIC", "OMPI_", "PMI", "MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "NODE_RANK", "GROUP_")
WARM_UP = 5  # steps that are not timed
WAITS = 0.1  # the loader is part of the bottleneck if at least this share of the time is spent waiting for data
GAP = 0.9  # loader and step compete for cores if end-to-end training is slower than this share of the slower one
PAYS = 1.05  # compiling pays from this speed-up


@dataclass(frozen=True)
class Measured:
    """What a Probe measured in one training. Times are in seconds.

    step_s: mean of the steps of each turn. batch_size: images per step, on all ranks.
    """

    first_step_s: float
    step_s: list[float]
    batch_size: int
    data_wait_frac: float | None
    precision: str
    device: str
    num_threads: int
    num_workers: int
    peak_memory_mib: float
    loader_images_per_s: float = 0.0

    @property
    def rates(self) -> list[float]:
        """The images per second of each turn."""
        return [self.batch_size / seconds for seconds in self.step_s]

    def line(self, images_per_s: float) -> str:
        """Return what the device did at this speed."""
        return (
            f"{self.device}, {self.precision}: {images_per_s:,.0f} images/s, {self.peak_memory_mib:,.0f} MiB, "
            f"first step {self.first_step_s:.2f} s"
        )


class Trainings:
    """Run training commands one after the other. typed: options of each training. work: a folder that is deleted when
    the benchmark ends. num_runs: the number of runs to expect."""

    def __init__(self, typed: Sequence[str], work: Path, num_runs: int):
        self.work = work
        self._typed, self._number = tuple(typed), 0
        self._progress = Progress("benchmark", num_runs, "runs", rate=False)

    def close(self) -> None:
        """Remove the progress bar from the screen."""
        self._progress.close()

    def train(self, options: Sequence[str] = (), **arguments: Any) -> Measured:
        """Run train with the typed options followed by `options`, and return what its probe measured. arguments: of the
        probe."""
        argv = probed([*self._typed, *options], self.out, "imagenet_ddp.benchmark.probe.Probe", **arguments)
        return Measured(**self.run("imagenet_ddp.train", argv))

    @property
    def out(self) -> Path:
        """The JSON file that the next run must write."""
        return self.work / f"{self._number}.json"

    def run(self, module: str, argv: Sequence[str]) -> dict[str, Any]:
        """Run a module in its own process, and return the JSON that it wrote to self.out. Raises RunError with the last
        lines of its log if it fails. If the first run is refused, ends this process with code 2 and the same
        message."""
        out, log = self.out, self.out.with_suffix(".log")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        with log.open("w", encoding="utf-8") as file:
            # subprocess.run kills the child if this process is stopped
            code = subprocess.run(
                [sys.executable, "-m", module, *argv], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ
            ).returncode
        said = log.read_text(encoding="utf-8", errors="replace").rstrip()
        if code == 2 and not self._number:  # mistakes that only the training finds, such as damaged weights
            print_message(said.replace("imagenet_ddp.train:", "imagenet_ddp.benchmark:"))
            sys.exit(2)
        if code or not out.is_file():
            last = "\n".join(said.splitlines()[-12:])
            raise RunError(f"a measured run ended with exit code {code}. Hint: read its last log lines:\n{last}")
        self._number += 1
        self._progress.add(1)
        return json.loads(out.read_text(encoding="utf-8"))


def probed(argv: Sequence[str], out: Path, probe: str, **arguments: Any) -> list[str]:
    """Return the options of a training that a probe measures. out: the JSON file that it writes. probe: its class.
    arguments: of the probe."""
    lines = [f"+callbacks.benchmark.{key}={json.dumps(value)}" for key, value in arguments.items()]
    lines += [f"+callbacks.benchmark._target_={probe}", f"+callbacks.benchmark.out={json.dumps(str(out))}"]
    return in_folder([*argv, *lines], "hydra.run.dir", out.with_suffix(""))


def title(config: CommonConfig) -> str:
    """Return a title such as "resnet18, 64 px, batch 32"."""
    model, data = config.model, config.data
    return f"{model.target or model.name}, {data.image_size} px, batch {data.batch_size}"


def train(config: BenchmarkConfig, trainings: Trainings) -> Results:
    """Compare training from files with its loader alone and its step alone."""
    options, steps = config.benchmark, config.benchmark.num_steps
    files = link_files(config, options.num_images, steps, trainings.work / "files")
    ends, parts = [], []
    for _ in range(options.repeats):
        ends.append(trainings.train(files, steps=steps, turns=1, warm_up=WARM_UP))
        parts.append(trainings.train(files, steps=steps, turns=1, warm_up=WARM_UP, ready=True))
    rates = {
        "end to end": [each.rates[0] for each in ends],
        "the step alone": [each.rates[0] for each in parts],
        "the loader alone": [each.loader_images_per_s for each in parts],
    }
    rows = [
        row(title(config), name, "images/s", values, ratio(values, rates["end to end"]))
        for name, values in rates.items()
    ]
    ours, step, loader = map(statistics.median, rates.values())
    wait, workers = statistics.median(each.data_wait_frac or 0.0 for each in ends), ends[0].num_workers
    notes = [
        ends[-1].line(ours),
        f"Waiting for data: {percent(wait, 0)} of the time, with "
        f"{count_noun(workers, 'loader process') if workers else 'no loader processes'}",
    ]
    least = [min(pair) for pair in zip(*list(rates.values())[1:], strict=True)]
    return Results(
        {"end_to_end": round(ratio(rates["end to end"], least), 3)},
        rows,
        bottleneck(ours, step, loader, wait, workers),
        notes,
        {"data_wait_frac": wait, "num_workers": workers, "num_steps": steps,
         "runs": [asdict(each) for each in ends], "parts": [asdict(each) for each in parts]},
    )  # fmt: skip


def link_files(config: CommonConfig, num_images: int, steps: int, tree: Path) -> tuple[str, ...]:
    """Link the images of the measured steps into a folder, and return the options that train on them."""
    # enough images that the first batches, which loader processes load in advance, are not among those timed
    link_images(config, num_images, tree, at_least=(WARM_UP + steps + 2) * config.data.batch_size + 8)
    return (
        "data.name=imagefolder", f"data.root={json.dumps(str(tree))}", "data.train_dir=train", "data.val_dir=val",
        "data.val_fraction=null", *ONE_DEVICE,
    )  # fmt: skip


def link_images(config: CommonConfig, num_images: int, tree: Path, at_least: int = 0) -> None:
    """Link evenly spaced images into tree/train, and one per class into tree/val, because a pack needs both splits.

    at_least: minimum number of links in tree/train. If there are fewer images, each is linked several times.
    """
    source = open_source(config.data, config.seed)
    images = source.train
    assert isinstance(images, FileImages)
    chosen = np.linspace(0, len(images) - 1, min(num_images, len(images)), dtype=np.int64)
    seen: set[int] = set()
    for number in range(max(len(chosen), at_least)):
        index = int(chosen[number % len(chosen)])
        path, target = Path(images.path(index)).absolute(), int(images.targets[index])
        for split in ["train"] if target in seen else ["train", "val"]:
            folder = tree / split / source.classes[target]
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{number:06}{path.suffix}").symlink_to(path)
        seen.add(target)


def bottleneck(ours: float, step: float, loader: float, wait: float, workers: int) -> str:
    """Return what limits training, and what would help. ours, step, loader: images per second. wait: share of the time
    spent waiting for data. workers: the number of loader processes."""
    start = f"The loader alone reaches {loader:,.0f} images/s, the step alone {step:,.0f}: "
    # a wait that slows nothing down is no bottleneck: the device was still busy with steps that were queued before
    if wait >= WAITS and ours < GAP * step:
        more = min(max(1, math.ceil(1.1 * step / loader * max(workers, 1))), max(num_cores() - 1, 1))
        count = f"data.num_workers={more} or " if workers < more else ""
        part = "the bottleneck is" if loader < step else "part of the bottleneck is"
        return f"{start}{part} the loader. This would help: {count}`prepare=pack`; benchmark=loader shows how much."
    if ours < GAP * min(loader, step) and workers:
        return f"{start}the bottleneck is the cores, which they share. `prepare=pack` would relieve it."
    return (
        f"{start}the bottleneck is the training step, which a smaller image or net, or a faster device, would relieve."
    )


def compile_gain(config: BenchmarkConfig, trainings: Trainings) -> Results:
    """Time the training step on batches in memory, to see whether compiling pays."""
    ready: dict[str, Any] = {"ready": True, "turns": config.benchmark.repeats, "steps": config.benchmark.num_steps}
    mode = "default" if config.compile.name == "off" else config.compile.name
    eager, compiled = (trainings.train((*ONE_DEVICE, f"compile.name={name}"), **ready) for name in ("off", mode))
    gain = ratio(compiled.rates, eager.rates)
    extra_s = max(compiled.first_step_s - eager.first_step_s, 0)
    notes = [eager.line(statistics.median(eager.rates)), f"compile={mode} delays the first step by {extra_s:.0f} s"]
    conclusion = "The bottleneck is the computation itself, and compiling does not relieve it: leave compile=off."
    if gain >= PAYS:
        saved_s = statistics.median(eager.step_s) - statistics.median(compiled.step_s)
        conclusion = (
            f"The bottleneck is the computation itself: compile={mode} makes it {gain:.2f} times as fast, and pays "
            f"after {extra_s / saved_s:,.0f} steps."
        )
    rows = [
        row(title(config), "compile=off", "images/s", eager.rates, 1.0),
        row(title(config), f"compile={mode}", "images/s", compiled.rates, gain),
    ]
    return Results({"compile": round(gain, 3)}, rows, conclusion, notes, {"compile_s": round(extra_s, 1)})
