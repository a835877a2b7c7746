"""What a command is to the shell that started it: its exit code, a pipe that nobody reads, and what Hydra prints."""

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import hydra
from omegaconf import DictConfig

from imagenet_ddp.cli import help, parse
from imagenet_ddp.config.schema import conf_dir
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system import console

T = TypeVar("T")


@contextlib.contextmanager
def run_command(verb: str) -> Iterator[None]:
    """Around a command that is one process with nothing to save: exit code 2 where it is refused, 1 where it fails,
    128 + n where signal n ends it."""
    exit_on_signal()
    with console.exit_on_closed_pipe():
        try:
            yield
        except RunError as error:
            console.print_message(str(error))
            sys.exit(1)
        except ConfigError as error:
            parse.refuse(error, verb)


def planned(
    verb: str,
    read: Callable[[list[str], Mapping[str, str]], T | None],
    for_hydra: Callable[[list[str]], list[str]] = list,
) -> T:
    """What is typed, as the command understands it. read: gives None for --help and --cfg, where Hydra prints, and no
    more. for_hydra: what is typed, as Hydra understands it."""
    plan = read(sys.argv[1:], os.environ)
    if plan is None:
        with_hydra(verb, for_hydra(sys.argv[1:]), lambda config: None)
        sys.exit(0)
    return plan


def with_hydra(verb: str, argv: list[str], task: Callable[[DictConfig], Any]) -> Any:
    """Let Hydra compose and run; the last job's result. Its main() reads sys.argv, gives nothing back, and turns what
    a task raises into a shortened traceback and exit code 1: refusals and failed workers are carried past it."""
    results: list[Any] = [None]
    raised: list[ConfigError | WorkersFailedError] = []

    def main(config: DictConfig) -> Any:
        try:
            results.append(task(config))
        except (ConfigError, WorkersFailedError) as error:
            raised.append(error)
        return results[-1]

    if {"--help", "-h"} & set(argv):
        with console.exit_on_closed_pipe():
            print(help.text(verb))
        return None
    main.__module__ = f"imagenet_ddp.{verb}"  # Hydra names the job after it
    sys.argv = [sys.argv[0], *argv]
    start = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=verb)(main)
    if parse.only_prints(argv):
        printed = io.StringIO()  # Hydra would answer a closed pipe with a traceback
        with console.exit_on_closed_pipe():
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
