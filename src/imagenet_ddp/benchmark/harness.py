"""Define what all measurements share: training runs with a probe, rows of figures, the file of results. No torch."""

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

Found = dict[str, Any]  # what a Probe, or another script, has written
# Options added to a measured training: no validation, and nothing that ends it or writes files during it.
MEASURED = (
    "trainer.limit_val_batches=0", "trainer.limit_train_batches=null", "trainer.max_epochs=1000",
    "trainer.max_time=null", "trainer.max_steps=-1", "trainer.min_epochs=null", "trainer.min_steps=null",
    "trainer.fast_dev_run=false",
    "trainer.accumulate_grad_batches=1", "++callbacks.checkpoint=null", "++callbacks.batch_sheet=null",
)  # fmt: skip
LAUNCHERS = ("SLURM", "TORCHELASTIC", "OMPI_", "PMI", "MASTER_", "RANK", "LOCAL_", "WORLD_SIZE", "NODE_RANK", "GROUP_")


@dataclass
class Results:
    """rows: those of tables and picture, each made by row(). figures: everything else that was measured."""

    ratios: dict[str, float | None]
    rows: list[dict[str, Any]]
    conclusion: str
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)
    extra_collectives_per_step: float | None = None


def row(
    group: str, title: str, unit: str, values: Sequence[float], ratio: float | None = None, **more: Any
) -> dict[str, Any]:
    """Return one row of a table. values: one per repeat. group: the title of the table. ratio: to the first row."""
    rounded = [round(value, 4) for value in values]
    over = None if ratio is None else round(ratio, 3)
    figures = {"median": statistics.median(rounded), "all": rounded, "ratio": over}
    return {"group": group, "title": title, "unit": unit, **figures, **more}


class Trainings:
    """Run training commands and scripts one after the other. work: a folder that is deleted with the benchmark."""

    def __init__(self, plan: Plan, work: Path):
        self.work = work
        self._plan, self._number = plan, 0
        self._progress: Progress | None = None

    def expect(self, number: int) -> None:
        """Set the number of runs to expect, for the progress bar."""
        self._progress = Progress("benchmark", number, "runs", rate=False)

    def train(self, options: Sequence[str] = (), *, typed: Sequence[str] | None = None, **probe: Any) -> Found:
        """Run train with the options of the command line and these; return what its Probe measured. typed: replaces the
        options of the command line. probe: arguments of Probe."""
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
        """Run a script of this package on the device, and with the threads, of a measured training. Return what it
        wrote."""
        folder = self.work / str(self._number)
        arguments |= {"out": str(folder.with_suffix(".json")), "num_threads": like["num_threads"],
                      "device": "cpu" if like["device"] == "cpu" else "cuda"}  # fmt: skip
        return self._run(f"imagenet_ddp.benchmark.{name}", [json.dumps(arguments)], folder)

    def _run(self, module: str, argv: Sequence[str], folder: Path) -> Found:
        """Run a module in a process; return the JSON that it wrote beside the folder, and started_at. Raises RunError
        with its last lines if it fails."""
        out, log = folder.with_suffix(".json"), folder.with_suffix(".log")
        environ = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
        with log.open("w", encoding="utf-8") as file:
            started_at = time.time()
            # kills the process where this one is stopped
            code = subprocess.run(
                [sys.executable, "-m", module, *argv], stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environ
            ).returncode
        if code or not out.is_file():
            last = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-12:])
            raise RunError(f"a measured run ended with exit code {code}. Hint: its last lines say why.\n{last}")
        self._number += 1
        if self._progress is not None:
            self._progress.add(1)
        return {**json.loads(out.read_text(encoding="utf-8")), "started_at": started_at}


def title(config: Mapping[str, Any]) -> str:
    """Return "resnet18, 64 px, batch 32"."""
    model, data = config["model"], config["data"]
    return f"{model['_target_'] or model['name']}, {data['image_size']} px, batch {data['batch_size']}"


def smaller_work(device: str) -> str:
    """Return what would relieve a device that computes all the time."""
    return "a smaller data.image_size, a smaller net or a GPU" if device == "cpu" else "a smaller net or image"


def device_figures(found: Found, images_per_s: float) -> tuple[dict[str, Any], str]:
    """Return (figures, a line for the report) of the chip at this speed."""
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


def finish(plan: Plan, command: str, results: Results) -> dict[str, Any]:
    """Write benchmark.json and benchmark.png, print the report, and return the file's content."""
    shared = {"repeats": plan.options["repeats"], "machine": machine(), **summary.provenance(command)}
    content = {"mode": plan.mode, **vars(results), **results.figures, **shared}
    del content["figures"]
    summary.write_json(plan.folder / "benchmark.json", content)
    atomic_write(plan.folder / "benchmark.png", picture.draw(content))
    print(result_tables.text(content))
    names = sorted(path.name for path in plan.folder.iterdir() if path.is_file())
    print(f"Written to {plan.folder}: {', '.join(names)}")
    return content


def machine() -> Mapping[str, Any]:
    return {"cpu": cpu_model(), "num_cores": num_cores(), "system": sys.platform, "load": os.getloadavg()[0]}
