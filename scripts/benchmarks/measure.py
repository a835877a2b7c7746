"""What the scripts of this folder share: python scripts/benchmarks/NAME.py FOLDER [repeats=N] [steps=N] [OPTION ...]

FOLDER gets benchmark.json. repeats, steps: of each measurement. OPTION: as for train.
"""

import contextlib
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_ddp.benchmark import results
from imagenet_ddp.benchmark.trainings import Measured, Trainings, probed
from imagenet_ddp.cli.parse import composed
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.section import typed_config

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Job:
    config: RunConfig  # of train, with the typed options
    typed: list[str]
    trainings: Trainings
    repeats: int
    steps: int


@dataclass(frozen=True)
class Compared(Measured):
    """What a probe of loops.py measured. first_step_at: time of the clock. others_s: step_s of each other loop.
    collectives: calls of each operation, by loop."""

    first_step_at: float = 0.0
    others_s: dict[str, list[float]] = field(default_factory=dict)
    collectives: dict[str, dict[str, int]] = field(default_factory=dict)


def train(job: Job, probe: str, typed: list[str], **arguments: Any) -> Compared:
    """Run train with the typed options, and return what a probe of loops.py measured. arguments: of the probe."""
    allowed = f"allow_targets=[{','.join([*job.config['allow_targets'], 'loops'])}]"
    argv = probed([*typed, allowed], job.trainings.out, f"loops.{probe}", **arguments)
    return Compared(**job.trainings.run("imagenet_ddp.train", argv))


def run_script(job: Job, module: str, like: Measured, **arguments: Any) -> dict[str, Any]:
    """Run a module of this folder on the same device and with the same number of threads as the measured run `like`.
    Return the JSON that it wrote."""
    arguments |= {"out": str(job.trainings.out), "num_threads": like.num_threads,
                  "device": "cpu" if like.device == "cpu" else "cuda"}  # fmt: skip
    return job.trainings.run(module, [json.dumps(arguments)])


def main(name: str, run: Callable[[Job], results.Results], num_runs: Callable[[int], int]) -> None:
    """Measure, and write and print the results. num_runs: the runs to expect for this number of repeats."""
    searched = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, [str(HERE), *searched])))
    folder, *words = sys.argv[1:]
    own = dict(word.split("=") for word in words if word.startswith(("repeats=", "steps=")))
    typed = [word for word in words if word.partition("=")[0] not in own]
    config = typed_config(composed("train", typed).configs[0], RunConfig)
    repeats, steps = int(own.get("repeats", 5)), int(own.get("steps", 20))
    Path(folder).mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as work,
        contextlib.closing(Trainings(typed, Path(work), num_runs(repeats))) as trainings,
    ):
        found = run(Job(config, typed, trainings, repeats, steps))
    command = shlex.join(["python", f"scripts/benchmarks/{name}.py", *sys.argv[1:]])
    results.finish(Path(folder), name, repeats, command, found)
