"""Provide the parts that all benchmark modes share: training runs with a probe, result rows and the results file.

Does not import torch.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_ddp.benchmark import picture, result_tables
from imagenet_ddp.benchmark.options import Plan
from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.errors import RunError
from imagenet_ddp.runs import summary
from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.cpu_cores import cpu_model, num_cores
from imagenet_ddp.system.progress_bar import Progress

Found = dict[str, Any]  # the JSON that a Probe or a script wrote
# Options added to each measured run, which switch off validation and whatever would end the run or write files in it.
MEASURED = (
    "trainer.limit_val_batches=0", "trainer.limit_train_batches=null", "trainer.max_epochs=1000",
    "trainer.max_time=null", "trainer.max_steps=-1", "trainer.min_epochs=null", "trainer.min_steps=null",
    "trainer.fast_dev_run=false",
    "trainer.accumulate_grad_batches=1", "++callbacks.checkpoint=null", "++callbacks.batch_sheet=null",
)  # fmt: skip
LAUNCHERS = ("SLURM", "TORCHELASTIC", "OMPI_", "PMI", "MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "NODE_RANK", "GROUP_")


@dataclass
class Results:
    """The results of one mode. rows: the rows of the tables and the picture, each made by row(). figures: all other
    measurements."""

    ratios: dict[str, float | None]
    rows: list[dict[str, Any]]
    conclusion: str
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    extra_collectives_per_step: float | None = None


def row(
    group: str, title: str, unit: str, values: Sequence[float], ratio: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return one row of a table. group: the table's title. values: one per repeat. ratio: relative to the first row of
    the table."""
    rounded = [round(value, 4) for value in values]
    over = None if ratio is None else round(ratio, 3)
    figures = {"median": statistics.median(rounded), "all": rounded, "ratio": over}
    return {"group": group, "title": title, "unit": unit, **figures, **more}


class Trainings:
    """Run training commands and scripts one after the other. work: a folder that is deleted when the benchmark ends."""

    def __init__(self, plan: Plan, work: Path):
        self.work = work
        self._plan, self._number = plan, 0
        self._progress: Progress | None = None

    def expect(self, number: int) -> None:
        """Start a progress bar that expects this number of runs."""
        self._progress = Progress("benchmark", number, "runs", rate=False)

    def close(self) -> None:
        """Remove the progress bar from the screen."""
        if self._progress is not None:
            self._progress.close()

    def train(self, options: Sequence[str] = (), *, typed: Sequence[str] | None = None, **probe: Any) -> Found:
        """Run train with the options of the command line followed by `options`, and return what its Probe measured.
        typed: replaces the options of the command line. probe: arguments of Probe."""
        folder = self.work / str(self._number)
        arguments = {
            "_target_": "imagenet_ddp.benchmark.step_probe.Probe",
            "out": str(folder.with_suffix(".json")),
            **probe,
        }
        lines = [f"+callbacks.benchmark.{key}={json.dumps(value)}" for key, value in arguments.items()]
        typed = self._plan.typed if typed is None else typed
        argv = in_folder([*typed, *options, *lines], "hydra.run.dir", folder)
        return self._run("imagenet_ddp.train", argv, folder)

    def script(self, name: str, like: Found, **arguments: Any) -> Found:
        """Run a script of this package on the same device and with the same number of threads as the measured run
        `like`. Return the JSON that the script wrote."""
        folder = self.work / str(self._number)
        arguments |= {"out": str(folder.with_suffix(".json")), "num_threads": like["num_threads"],
                      "device": "cpu" if like["device"] == "cpu" else "cuda"}  # fmt: skip
        return self._run(f"imagenet_ddp.benchmark.{name}", [json.dumps(arguments)], folder)

    def _run(self, module: str, argv: Sequence[str], folder: Path) -> Found:
        """Run a module in its own process. Return the JSON that it wrote beside the folder, plus started_at. Raises
        RunError with the last lines of its log if it fails."""
        out, log = folder.with_suffix(".json"), folder.with_suffix(".log")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        with log.open("w", encoding="utf-8") as file:
            started_at = time.time()
            # subprocess.run kills the child if this process is stopped
            code = subprocess.run(
                [sys.executable, "-m", module, *argv], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ
            ).returncode
        if code or not out.is_file():
            last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
            hint = f"check whether the disk of {self.work.parent} is full, because the log of that run is empty."
            hint = f"read its last log lines:\n{last}" if last else hint
            raise RunError(f"a measured run ended with exit code {code}. Hint: {hint}")
        self._number += 1
        if self._progress is not None:
            self._progress.add(1)
        return {**json.loads(out.read_text(encoding="utf-8")), "started_at": started_at}


def title(config: Mapping[str, Any]) -> str:
    """Return a title such as "resnet18, 64 px, batch 32"."""
    model, data = config["model"], config["data"]
    return f"{model['_target_'] or model['name']}, {data['image_size']} px, batch {data['batch_size']}"


def powers_of_two(most: int) -> list[int]:
    """Return 1, 2, 4, ... up to `most`."""
    return [2**power for power in range(most.bit_length())]


def smaller_work(device: str) -> str:
    """Return the changes that would help if the device is busy computing all the time."""
    return "a smaller data.image_size, a smaller net or a GPU" if device == "cpu" else "a smaller net or image"


def device_figures(found: Found, images_per_s: float) -> tuple[dict[str, Any], str]:
    """Return the chip's figures at this speed, and a line about them for the report."""
    flops, peak = found["flops_per_image"], found["peak_tflops"]
    tflops = flops * images_per_s / 1e12 if flops else None
    share = tflops / peak if tflops and peak else None
    figures = {
        "device": found["device"], "images_per_s": round(images_per_s, 1), "precision": found["precision"],
        "tflops": tflops and round(tflops, 3), "share_of_peak": share and round(share, 4),
        **{key: found[key] for key in ("flops_per_image", "peak_tflops", "clocks", "first_step_s", "peak_memory_mib")},
    }  # fmt: skip
    line = f"{found['device']}, {found['precision']}: {images_per_s:,.0f} images/s"
    line += f", {tflops:.3g} Tflop/s" if tflops else ""
    if found["device"] != "cpu":
        line += f" ({share:.1%} of the chip's peak)" if share else " (the chip's peak is unknown)"
    return figures, f"{line}, {found['peak_memory_mib']:,.0f} MiB, first step {found['first_step_s']:.2f} s"


def finish(plan: Plan, command: str, results: Results) -> None:
    """Write benchmark.json and benchmark.png, and print the report."""
    shared = {"repeats": plan.options["repeats"], "machine": machine(), **summary.provenance(command)}
    content = {"mode": plan.mode, **vars(results), **results.figures, **shared}
    del content["figures"]
    summary.write_json(plan.folder / "benchmark.json", content)
    atomic_write(plan.folder / "benchmark.png", picture.draw(content))
    print(result_tables.text(content))
    names = sorted(path.name for path in plan.folder.iterdir() if path.is_file())
    print(f"Written to {plan.folder}: {', '.join(names)}")


def machine() -> Mapping[str, Any]:
    return {"cpu": cpu_model(), "num_cores": num_cores(), "system": sys.platform, "load": os.getloadavg()[0]}
