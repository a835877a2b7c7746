"""Measure how fast each part of training is on this machine, and find the bottleneck.

    python -m imagenet_ddp.benchmark benchmark=loader|step|train|start|strategies|profile

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
    from imagenet_ddp.benchmark import harness

    with import_torch():  # only some modes import torch
        mode = importlib.import_module(f"imagenet_ddp.benchmark.{plan.mode}")
    with (
        tempfile.TemporaryDirectory(prefix=".work-", dir=plan.folder) as work,
        closing(harness.Trainings(plan, Path(work).absolute())) as trainings,
    ):
        results = mode.run(plan, trainings)
    harness.finish(plan, overrides.shell_line("benchmark", sys.argv[1:]), results)


if __name__ == "__main__":
    main()
