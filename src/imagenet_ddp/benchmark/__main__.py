"""Measure how fast each part of training is on this machine, and find the bottleneck.

    python -m imagenet_ddp.benchmark benchmark=loader|train|step|profile

Imports torch only once the command line is valid.

Exit codes: 0 success, 1 failure, 2 refused (ConfigError), 128 + n stopped by signal n.
"""

import importlib
import sys
import tempfile
from contextlib import closing
from pathlib import Path

from imagenet_ddp.benchmark import options
from imagenet_ddp.cli import command, overrides
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.system.heavy_imports import import_torch


def main() -> None:
    with command.run_command("benchmark"):
        plan = command.planned("benchmark", sys.argv[1:], options.read)
        try:
            _measure(plan)
        except ConfigError as error:
            folder.remove_refused(plan.folder, error)
            raise


def _measure(plan: options.Plan) -> None:
    from imagenet_ddp.benchmark import results
    from imagenet_ddp.benchmark.trainings import Trainings

    with import_torch():  # only some modes import torch
        mode = importlib.import_module(f"imagenet_ddp.benchmark.{plan.mode}")
    with (
        tempfile.TemporaryDirectory(prefix=".work-", dir=plan.folder) as work,
        closing(Trainings(plan.typed, Path(work).absolute(), mode.num_runs(plan))) as trainings,
    ):
        found = mode.run(plan, trainings)
    command_line = overrides.shell_line("benchmark", sys.argv[1:])
    results.finish(plan.folder, plan.mode, plan.options["repeats"], command_line, found)


if __name__ == "__main__":
    main()
