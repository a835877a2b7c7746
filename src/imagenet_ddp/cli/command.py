"""Run a command from the shell: set its exit code, handle a closed pipe, and run its job with Hydra."""

import contextlib
import copy
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import hydra
import hydra._internal.callbacks
from hydra.core import utils as hydra_utils
from hydra.errors import InstantiationException
from hydra.types import HydraContext, RunMode
from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_ddp.cli import help, hydra_flags, mistakes
from imagenet_ddp.cli.compose import config_loader, group_values
from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.cli.parse import Request, command_line
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system import closed_pipe, console
from imagenet_ddp.system.text import first_line

T = TypeVar("T")


@contextlib.contextmanager
def run_command(verb: str) -> Iterator[None]:
    """Run the block, and exit with code 1 after a failure, 2 for a refused command, 128 + n after signal n. For
    commands that need not save anything when a signal arrives."""
    exit_on_signal()
    with closed_pipe.exit_on_closed_pipe():
        try:
            yield
        except RunError as error:
            console.print_message(str(error))
            sys.exit(1)
        except ConfigError as error:
            mistakes.refuse(error, verb)
        except WorkersFailedError as error:
            error.exit()


def request(verb: str, argv: list[str] | None = None) -> Request:
    """Return the checked command line. If Hydra only prints something (--help, --cfg), let it print and exit. argv:
    None means sys.argv."""
    found = command_line(verb, sys.argv[1:] if argv is None else argv, os.environ)
    if found.passthrough:
        with_hydra(verb, found.argv, lambda config: None)
        sys.exit(0)
    return found


def planned(verb: str, argv: list[str], read: Callable[[list[str], Mapping[str, str]], T]) -> T:
    """Return the plan that `read` makes from argv. If Hydra only prints something (--help, --cfg), let it print and
    exit."""
    if hydra_flags.only_prints(argv):
        request(verb, argv)
    return read(argv, os.environ)


def run_job(request: Request, run_dir: Path, task: Callable[[], T]) -> T:
    """Run the task as Hydra runs a job, and return its result.

    Hydra sets up job logging, HydraConfig and hydra.job.env_set, calls hydra.callbacks, and writes its files into
    run_dir if hydra.output_subdir is set. The config is the one that was checked: hydra.main would compose it twice
    more.
    """
    config = copy.deepcopy(request.configs[0])
    with open_dict(config):
        config.hydra = request.hydra
    config.hydra.mode, config.hydra.run.dir = RunMode.RUN, str(run_dir)
    # unresolved, because an option may refer to what Hydra sets only for the job
    options: Any = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
    config.hydra.overrides.hydra = in_folder(options, "hydra.run.dir", run_dir)
    raised: list[Exception] = []

    def job(_: DictConfig) -> T:
        try:
            return task()
        except Exception as error:  # kept, because done.return_value prints a line of its own before it raises
            raised.append(error)
            raise

    name = config.hydra.job.config_name
    sources = {source.provider: source.path for source in config.hydra.runtime.config_sources}
    with config_loader(request.verb, sources.get("command-line")) as loader:
        hydra_utils.configure_log(config.hydra.hydra_logging, config.hydra.verbose)
        try:
            callbacks = hydra._internal.callbacks.Callbacks(config)
        except InstantiationException as error:
            raise ConfigError(
                f"hydra.callbacks must name classes that can be created, but: {first_line(error).rstrip('.')}. "
                "Hint: correct the arguments, or leave the callback out."
            ) from error
        context = HydraContext(config_loader=loader, callbacks=callbacks)
        callbacks.on_run_start(config=config, config_name=name)
        done = hydra_utils.run_job(job, config, "hydra.run.dir", None, context)
        callbacks.on_run_end(config=config, config_name=name, job_return=done)
    if raised:
        raise raised[0]
    return done.return_value


def with_hydra(verb: str, argv: list[str], task: Callable[[DictConfig], Any]) -> Any:
    """Let hydra.main print (--help, --cfg, --info) or run the jobs of a sweep, and return the last job's result.

    hydra.main composes the configs again, for its launcher and sweeper plugins. It reads sys.argv, returns nothing, and
    turns every exception of a task into exit code 1 with a shortened traceback. A ConfigError or WorkersFailedError is
    therefore raised only after hydra.main has returned.
    """
    results: list[Any] = [None]
    raised: list[ConfigError | WorkersFailedError] = []

    def main(config: DictConfig) -> Any:
        try:
            results.append(task(config))
        except (ConfigError, WorkersFailedError) as error:
            raised.append(error)
        return results[-1]

    if {"--help", "-h"} & set(argv):
        with closed_pipe.exit_on_closed_pipe():
            print(help.text(verb))
        return None
    main.__module__ = f"imagenet_ddp.{verb}"  # Hydra names the job after this module
    values = group_values(argv, [str(conf_dir())]) if hydra_flags.only_prints(argv) else []  # as Composer does
    sys.argv = [sys.argv[0], *values, *argv]
    start = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=verb)(main)
    if hydra_flags.only_prints(argv):
        printed = io.StringIO()  # Hydra would print a traceback if the pipe is closed
        with closed_pipe.exit_on_closed_pipe():
            try:
                with contextlib.redirect_stdout(printed):
                    start()
            finally:
                print(printed.getvalue(), end="")
    else:
        start()
    if raised:
        raise raised[0]
    return results[-1]
