"""Measure how fast each part of training is on this machine, and find the bottleneck.

    python -m imagenet_ddp.benchmark benchmark=loader|train|step|profile

Imports torch only once the command line is valid.

Exit codes: 0 success, 1 failure, 2 refused (ConfigError), 128 + n stopped by signal n.
"""

import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from imagenet_ddp.benchmark import results
from imagenet_ddp.benchmark.trainings import Plan, Trainings
from imagenet_ddp.cli import command, overrides, parse
from imagenet_ddp.config.schema.commands import BENCHMARKS, BenchmarkConfig, CommonConfig
from imagenet_ddp.data import check_data
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.folder import make_given, make_new, remove_refused
from imagenet_ddp.system.process import import_torch

FILE_SOURCES = ("imagefolder", "imagenet", "shapes", "table")
# Modes that need image files, each with the reason.
FILES_FOR = {
    "loader": "benchmark=loader, which compares them with packs",
    "train": "benchmark=train, which links to the images that it trains on",
}
ONLY_FOR = {
    "num_images": ("loader", "train"), "num_workers": ("loader",), "short_side": ("loader",), "quality": ("loader",),
    "model": ("loader",), "num_steps": ("step", "train", "profile"), "repeats": ("loader", "step", "train"),
}  # fmt: skip


def main() -> None:
    with command.run_command("benchmark"):
        plan = command.planned("benchmark", sys.argv[1:], read)
        try:
            _measure(plan)
        except ConfigError as error:
            remove_refused(plan.folder, error)
            raise


def _measure(plan: Plan) -> None:
    with import_torch():
        from imagenet_ddp.benchmark import loader, steps
    modes = {"loader": loader.measure, "train": steps.train, "step": steps.compile_gain, "profile": steps.profile}
    with (
        tempfile.TemporaryDirectory(prefix=".work-", dir=plan.folder) as work,
        closing(Trainings(plan.typed, Path(work).absolute())) as trainings,
    ):
        found = modes[plan.mode](plan, trainings)
    command_line = overrides.shell_line("benchmark", sys.argv[1:])
    results.finish(plan.folder, plan.mode, plan.options.repeats, command_line, found)


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Return the plan, and create the run folder. Raises ConfigError with every mistake."""
    parsed = parse.read_single_process(
        "benchmark", BenchmarkConfig, argv, environ, "a benchmark needs the machine to itself"
    )
    request, mistakes = parsed.request, parsed.found
    options, data = parsed.config.benchmark, parsed.config.data
    mode, typed = options.name, [line for line in request.typed if not line.startswith(("benchmark", "hydra."))]
    mistakes += [
        f"benchmark.{key} must only be set for benchmark={' or benchmark='.join(modes)}, got benchmark={mode}. "
        f"Hint: leave benchmark.{key} out."
        for key, modes in ONLY_FOR.items()
        if mode in BENCHMARKS and mode not in modes and overrides.typed_value(request, f"benchmark.{key}") is not None
    ]
    if mode in FILES_FOR and (data.target or data.name not in FILE_SOURCES):
        mistakes.append(
            f"data must be a source of image files for {FILES_FOR[mode]}, got {data.target or data.name}. "
            "Hint: set data=imagefolder data.root=FOLDER."
        )
    elif mode == "loader":
        mistakes += check_data.validate(data)
    else:
        mistakes += _of_training(parsed.config, typed, parsed.environ)
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    wanted = Path(request.hydra.run.dir)
    folder = make_given(wanted) if overrides.typed_value(request, "hydra.run.dir") else make_new(wanted)
    return Plan(parsed.config, folder, tuple(typed))


def _of_training(config: CommonConfig, typed: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Return the mistakes in the options of the run to measure."""
    found = []
    if config.trainer.num_nodes not in ("auto", 1):
        found.append(
            f"trainer.num_nodes must be 1 in a benchmark, got {config.trainer.num_nodes}. Hint: leave "
            "trainer.num_nodes out. To measure several nodes, run `python -m imagenet_ddp.doctor` on each of them."
        )
    try:
        parse.command_line("train", list(typed), environ)
    except ConfigError as error:
        found += error.mistakes
    return found


if __name__ == "__main__":
    main()
