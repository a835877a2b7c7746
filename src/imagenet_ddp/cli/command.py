"""Run a command from the shell: set its exit code, handle a closed pipe, and call hydra.main."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import hydra
from omegaconf import DictConfig

from imagenet_ddp.cli import help, hydra_flags, mistakes
from imagenet_ddp.cli.compose import group_values
from imagenet_ddp.cli.parse import Request, command_line
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system import closed_pipe, console

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


def planned(
    verb: str,
    read: Callable[[list[str], Mapping[str, str]], T | None],
    for_hydra: Callable[[list[str]], list[str]] = list,
) -> T:
    """Return the plan that `read` makes from the command line. If `read` returns None (--help, --cfg), let Hydra print
    and exit. for_hydra: rewrites argv into options that Hydra accepts."""
    plan = read(sys.argv[1:], os.environ)
    if plan is None:
        with_hydra(verb, for_hydra(sys.argv[1:]), lambda config: None)
        sys.exit(0)
    return plan


def with_hydra(verb: str, argv: list[str], task: Callable[[DictConfig], Any]) -> Any:
    """Run task in hydra.main and return the last job's result.

    Hydra composes the config a second time here, although the tasks of train and evaluate use the one that was checked.
    Hydra's own composition is needed for the files in .hydra/, job logging, hydra.callbacks, HydraConfig, launcher and
    sweeper plugins, and the output of --cfg and --info. hydra.main reads sys.argv, returns nothing, and turns every
    exception of a task into exit code 1 with a shortened traceback. A ConfigError or WorkersFailedError is therefore
    raised only after hydra.main has returned.
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
