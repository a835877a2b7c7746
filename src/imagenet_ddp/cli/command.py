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
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import JobReturn, JobStatus
from hydra.errors import InstantiationException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write

from imagenet_ddp.cli import help, hydra_flags, mistakes
from imagenet_ddp.cli.compose import config_loader, group_values
from imagenet_ddp.cli.overrides import in_folder
from imagenet_ddp.cli.parse import Request, command_line
from imagenet_ddp.config.conf_dir import conf_dir
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system import console
from imagenet_ddp.system.text import first_line

T = TypeVar("T")


@contextlib.contextmanager
def run_command(verb: str) -> Iterator[None]:
    """Run the block, and exit with code 1 after a failure, 2 for a refused command, 128 + n after signal n. For
    commands that need not save anything when a signal arrives."""
    exit_on_signal()
    with console.exit_on_closed_pipe(), exit_codes(verb):
        yield


@contextlib.contextmanager
def exit_codes(verb: str) -> Iterator[None]:
    """Turn the errors that a command explains into its message and exit code: 1 after a failure, 2 if refused."""
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


@contextlib.contextmanager
def hydra_job(request: Request, run_dir: Path) -> Iterator[JobReturn]:
    """Surround a job with what hydra.main does for it. The block sets return_value of what it gets.

    That is job logging, HydraConfig, hydra.job.env_set and hydra.callbacks, and Hydra's files in run_dir if
    hydra.output_subdir is set. The config is the one that was checked: hydra.main would compose it twice more.
    """
    task, config = request.configs[0], copy.deepcopy(request.configs[0])
    with open_dict(config):
        config.hydra = request.hydra
    node = config.hydra
    node.mode, node.run.dir = RunMode.RUN, str(run_dir)
    # unresolved, because an option may refer to what Hydra sets only for the job
    options: Any = OmegaConf.to_container(node.overrides.hydra, resolve=False)
    node.overrides.hydra = in_folder(options, "hydra.run.dir", run_dir)
    with read_write(node.runtime), open_dict(node.runtime):
        node.runtime.output_dir = str(run_dir.absolute())
    sources = {source.provider: source.path for source in node.runtime.config_sources}
    before, name = HydraConfig.instance().cfg, node.job.config_name
    done = JobReturn(overrides=list(node.overrides.task), cfg=task, hydra_cfg=config, working_dir=str(Path.cwd()))
    with config_loader(request.verb, sources.get("command-line")):
        hydra_utils.configure_log(node.hydra_logging, node.verbose)
        try:
            callbacks = hydra._internal.callbacks.Callbacks(config)
        except InstantiationException as error:
            raise ConfigError(
                f"hydra.callbacks must name classes that can be created, but: {first_line(error).rstrip('.')}. "
                "Hint: correct the arguments, or leave the callback out."
            ) from error
        callbacks.on_run_start(config=config, config_name=name)
        HydraConfig.instance().set_config(config)
        try:
            hydra_utils.configure_log(node.job_logging, node.verbose)
            if node.output_subdir is not None:
                _write_hydra_files(run_dir / node.output_subdir, task, config)
            with hydra_utils.env_override(node.job.env_set):
                callbacks.on_job_start(config=config, task_function=lambda _: None)  # the block is no function
                try:
                    yield done
                    done.status = JobStatus.COMPLETED
                except Exception as error:
                    done.return_value, done.status = error, JobStatus.FAILED
                    raise
                finally:
                    if done.status != JobStatus.UNKNOWN:  # else the process is about to exit
                        callbacks.on_job_end(config=config, job_return=done)
                        callbacks.on_run_end(config=config, config_name=name, job_return=done)
        finally:
            HydraConfig.instance().cfg = before


def _write_hydra_files(folder: Path, task: DictConfig, config: DictConfig) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(task, folder / "config.yaml")
    OmegaConf.save(OmegaConf.masked_copy(config, "hydra"), folder / "hydra.yaml")
    OmegaConf.save(config.hydra.overrides.task, folder / "overrides.yaml")


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
        with console.exit_on_closed_pipe():
            print(help.text(verb))
        return None
    main.__module__ = f"imagenet_ddp.{verb}"  # Hydra names the job after this module
    values = group_values(argv, [str(conf_dir())]) if hydra_flags.only_prints(argv) else []  # as Composer does
    sys.argv = [sys.argv[0], *values, *argv]
    start = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=verb)(main)
    if hydra_flags.only_prints(argv):
        printed = io.StringIO()  # Hydra would print a traceback if the pipe is closed
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
