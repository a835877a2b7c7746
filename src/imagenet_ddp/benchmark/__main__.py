"""Measure how fast each part of training is on this machine, and find the bottleneck.

    python -m imagenet_ddp.benchmark benchmark=loader|train|step

Exit codes: 0 success, 1 failure, 2 refused (ConfigError), 128 + n stopped by signal n.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

from imagenet_ddp.benchmark import results, trainings
from imagenet_ddp.cli import command, overrides, parse
from imagenet_ddp.config.schema.benchmark import BenchmarkConfig
from imagenet_ddp.data import check_data
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import must_be, setting
from imagenet_ddp.runs.folder import make_given, make_new, remove_refused
from imagenet_ddp.system.process import import_torch

FILE_SOURCES = ("imagefolder", "imagenet", "shapes", "table")


def main() -> None:
    with command.run_command("benchmark", lambda argv: _checked(argv, os.environ)):
        config, folder, typed = command.planned("benchmark", sys.argv[1:], read)
        try:
            with tempfile.TemporaryDirectory(prefix=".work-", dir=folder) as work:
                found = _measure(config, typed, Path(work).absolute())
        except ConfigError as error:
            remove_refused(folder, error)
            raise
        results.finish(
            folder,
            config.benchmark.name,
            config.benchmark.repeats,
            overrides.shell_line("benchmark", sys.argv[1:]),
            found,
        )


def _measure(config: BenchmarkConfig, typed: Sequence[str], work: Path) -> results.Results:
    options = config.benchmark
    if options.name == "loader":
        with import_torch():
            from imagenet_ddp.benchmark import loader
        return loader.measure(config, work)
    num_runs = {"train": 2 * options.repeats, "step": 2}[options.name]
    with closing(trainings.Trainings(typed, work, num_runs)) as runs:
        return trainings.train(config, runs) if options.name == "train" else trainings.compile_gain(config, runs)


def read(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[BenchmarkConfig, Path, list[str]]:
    """Return (config, run folder, options of each measured training), and create the folder. Raises ConfigError with
    every mistake."""
    request, config, typed = _checked(argv, environ)
    wanted = Path(request.hydra.run.dir)
    return config, make_given(wanted) if request.names_folder else make_new(wanted), typed


def _checked(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[parse.Request, BenchmarkConfig, list[str]]:
    """Return (request, config, options of each measured training). Raises ConfigError with every mistake."""
    request, config, mistakes = parse.read_single_process("benchmark", BenchmarkConfig, argv, environ)
    data = config.data
    typed = [line for line in request.typed if not line.startswith(("benchmark", "hydra."))]
    mode = config.benchmark.name
    if mode in ("loader", "train") and (data.target or data.name not in FILE_SOURCES):
        allowed, got = f"a source of image files for benchmark={mode}", str(data.target or data.name)
        mistakes.append(must_be("data", allowed, got, setting("data=imagefolder", "data.root=FOLDER")))
    elif mode == "loader":
        mistakes += check_data.inspect(data, config.seed, whole=False)[0]
    else:
        try:
            parse.command_line("train", typed, {}, opens=False)
        except ConfigError as error:
            mistakes += error.mistakes
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    return request, config, typed


if __name__ == "__main__":
    main()
