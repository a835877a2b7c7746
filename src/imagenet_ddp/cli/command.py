"""Run a command for the shell: exit codes, a closed pipe, and hydra.main."""

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
    """Exit with code 2 on a refusal, 1 on a failure, 128 + n on signal n. For commands that have nothing to save."""
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
    """Return the plan that `read` makes from the command line. If it returns None (--help, --cfg), let Hydra print and
    exit. for_hydra: rewrites argv into what Hydra understands."""
    plan = read(sys.argv[1:], os.environ)
    if plan is None:
        with_hydra(verb, for_hydra(sys.argv[1:]), lambda config: None)
        sys.exit(0)
    return plan


def with_hydra(verb: str, argv: list[str], task: Callable[[DictConfig], Any]) -> Any:
    """Run task in hydra.main and return the last job's result.

    Hydra composes a second time here; the tasks of train and evaluate use the config that was checked. Its own
    composition is needed for the files in .hydra/, job logging, hydra.callbacks, HydraConfig, launcher and sweeper
    plugins, and for what it prints (--cfg, --info). hydra.main reads sys.argv, returns nothing, and turns whatever a
    task raises into exit code 1 with a shortened traceback, so refusals and failed workers are raised after it has
    returned.
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
    main.__module__ = f"imagenet_ddp.{verb}"  # Hydra names the job after it
    values = group_values(argv, [str(conf_dir())]) if hydra_flags.only_prints(argv) else []  # as Composer does
    sys.argv = [sys.argv[0], *values, *argv]
    start = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=verb)(main)
    if hydra_flags.only_prints(argv):
        printed = io.StringIO()  # Hydra would answer a closed pipe with a traceback
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
