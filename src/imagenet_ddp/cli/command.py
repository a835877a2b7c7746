"""Run a command from the shell: print its mistakes, set its exit code, handle a closed pipe, and call Hydra for it."""

import contextlib
import copy
import io
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import configure_log
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import help, overrides
from imagenet_ddp.cli.correct import corrected
from imagenet_ddp.cli.flags import only_prints
from imagenet_ddp.cli.known_terms import term_of
from imagenet_ddp.cli.other_command import leave_reason
from imagenet_ddp.cli.parse import RefusedError, Request, command_line
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.commands import COMMANDS, OF_RANKS
from imagenet_ddp.config.section import without_other_choices
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.detect import with_known_host
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.mistakes import Mistake, key_of, without
from imagenet_ddp.runs.signals import SignalExit, exit_on_signal, raise_on_signal
from imagenet_ddp.system import console
from imagenet_ddp.system.bounded_wait import said_while_slow
from imagenet_ddp.system.process import use_utf8
from imagenet_ddp.system.say_once import say_once
from imagenet_ddp.system.text import count_noun

T = TypeVar("T")
Check = Callable[[list[str]], object]
OTHER_DEFAULTS = (
    "Options that are not typed have this program's defaults, not those of the other program. The settings of "
    "pytorch/examples are experiment=pytorch_example, those of torchvision experiment=torchvision_v1 and "
    "torchvision_v2."
)
MOST_ROUNDS = 3  # of corrections, each of which takes a second


@contextlib.contextmanager
def run_command(verb: str, check: Check | None = None) -> Iterator[None]:
    """Run the block, and exit with code 1 after a failure, 2 for a refused command, 128 + n after signal n. For
    commands that need not save anything when a signal arrives. check: as in exit_codes."""
    use_utf8()
    exit_on_signal()
    with console.exit_on_closed_pipe(), exit_codes(verb, check):
        yield


@contextlib.contextmanager
def exit_codes(verb: str, check: Check | None = None) -> Iterator[None]:
    """Turn the errors that a command explains into its message and exit code: 1 after a failure, 2 if refused. check:
    raises ConfigError for a command line with a mistake, and changes nothing; None: command_line does."""
    try:
        yield
    except RunError as error:
        if not leave_reason(str(error)):
            console.print_message(str(error))
        sys.exit(1)
    except ConfigError as error:
        show(error, verb, check)
        _report_refusal(error)
        sys.exit(2)
    except WorkersFailedError as error:
        leave_reason(error.reason)
        error.exit()


def request(verb: str, argv: list[str] | None = None) -> Request:
    """Return the checked command line. If Hydra only prints something (--help, --cfg), let it print and exit. argv:
    None means sys.argv."""
    with said_while_slow("Checking the options and the images"):
        found = command_line(verb, sys.argv[1:] if argv is None else argv, os.environ)
    if found.only_prints:
        _print_only(found)
        sys.exit(0)
    return found


def _print_only(request: Request) -> None:
    """Answer --help, --version and --cfg, or let Hydra answer."""
    with console.exit_on_closed_pipe():
        if "--version" in request.argv:
            print(help.versions())
        elif {"--help", "-h"} & set(request.argv):
            print(help.text(request.verb))
        elif request.shown:
            print(_yaml(request), end="")
        else:
            printed = io.StringIO()  # Hydra would print a traceback if the pipe is closed
            try:
                with contextlib.redirect_stdout(printed):
                    with_hydra(request, lambda config: None)
            finally:
                print(printed.getvalue(), end="")


def _yaml(request: Request) -> str:
    """Return the YAML of --cfg: job, hydra, or all of both. Raises ConfigError."""
    if request.shown == "job":
        plain: Any = OmegaConf.to_container(request.config)
        config = OmegaConf.create(without_other_choices(plain, COMMANDS[request.verb]))
    else:
        config = _whole(request)
        if request.shown == "hydra":
            config = OmegaConf.masked_copy(config, ["hydra"])
    try:
        return OmegaConf.to_yaml(config, resolve=request.is_resolved)
    except OmegaConfBaseException as error:
        what = f"--resolve must find a value for every key, but {error.full_key} has none before a job starts"
        raise ConfigError(Mistake(what, fixes=(without("--resolve"),))) from error


def _whole(request: Request) -> DictConfig:
    """Return the config of the first job with its hydra node."""
    config = copy.deepcopy(request.config)
    with open_dict(config):
        config.hydra = request.hydra
    return config


def planned(verb: str, argv: list[str], read: Callable[[list[str], Mapping[str, str]], T]) -> T:
    """Return what `read` makes of argv. If Hydra only prints something (--help, --cfg), let it print and exit."""
    if only_prints(argv):
        request(verb, argv)
    return read(argv, os.environ)


def _report_refusal(error: ConfigError) -> None:
    """Report the mistakes to the nodes that wait for this command."""
    if not isinstance(error, RefusedError) or error.request.verb not in OF_RANKS or error.request.multirun:
        return
    # the mistakes are printed already; they may also be the reason why this fails
    with contextlib.suppress(SignalExit, Exception), raise_on_signal():
        refused = error.request.place
        if refused is not None and refused.others_wait:
            sys.stderr.flush()
            from imagenet_ddp.distributed.commands import report_refusal

            report_refusal(with_known_host(refused, os.environ), list(map(str, error.mistakes)))


def _corrected(argv: list[str], mistakes: Sequence[Mistake], check: Check) -> tuple[list[str] | None, str]:
    """Return (the command line with the first fix of each mistake, and of those that only then are found; the path
    that must exist before it has no mistake). The line is [] if the fixes do not lead to one."""
    words = argv
    for _ in range(MOST_ROUNDS):
        left = [each for each in mistakes if not each.missing or corrected(words, [each])]
        if not left:
            return (words, mistakes[0].missing) if words != argv else (None, "")
        more = corrected(words, left)
        if more is None:
            break
        try:
            check(more)
            return more, ""
        except ConfigError as error:
            words, mistakes = more, error.mistakes
    return None, ""


def show(error: ConfigError, verb: str, check: Check | None = None) -> None:
    """Print the mistakes, unless the command that has started this one does, with the traceback if HYDRA_FULL_ERROR=1
    is set. check: as in exit_codes."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        traceback.print_exception(error)
    if leave_reason(str(error)):
        return
    lines = [f"imagenet_ddp.{verb}: {count_noun(len(error.mistakes), 'mistake')}, nothing was started"]
    for number, mistake in enumerate(error.mistakes, 1):
        head = f"{number:2}. "
        lines += ["", *console.wrap_text(str(mistake), 80, head, " " * len(head))]
    check = check or (lambda argv: command_line(verb, argv, os.environ, opens=False))
    argv, missing = _corrected(sys.argv[1:], error.mistakes, check)
    if argv is not None:
        batch = slurm.sbatch_words(sys.argv[1:], os.environ)
        others = " (with your other options of sbatch before the script)" if batch else ""
        others += f" (once {missing} exists)" if missing else ""
        typed = [each.typed[0].partition("=")[0] for each in error.mistakes if each.typed]
        if verb == "train" and "experiment" not in map(key_of, argv) and any(term_of(name, verb) for name in typed):
            lines += ["", *console.wrap_text(OTHER_DEFAULTS, 80, indent="")]
        lines += ["", f"Corrected command{others}:", overrides.shell_line(verb, argv, shlex.join(batch))]
    say_once("\n".join(lines))


@contextlib.contextmanager
def hydra_job(request: Request, run_dir: Path) -> Iterator[None]:
    """Set up for the block what hydra.main sets up for a job: logging and HydraConfig. The config is the one that was
    checked: hydra.main would compose it twice more."""
    config = _whole(request)
    node, before = config.hydra, HydraConfig.instance().cfg
    node.mode, node.run.dir = RunMode.RUN, str(run_dir)
    with read_write(node.runtime), open_dict(node.runtime):
        node.runtime.output_dir = str(run_dir.absolute())
    HydraConfig.instance().set_config(config)
    try:
        configure_log(node.hydra_logging, node.verbose)
        configure_log(node.job_logging, node.verbose)
        yield
    finally:
        HydraConfig.instance().cfg = before


def with_hydra(request: Request, task: Callable[[DictConfig], Any], more: Sequence[str] = ()) -> Any:
    """Let hydra.main answer --info and the like, or call the task for each job of a sweep, and return the last result.

    Only for its launcher plugins. hydra.main gets the options that choose files, and those of hydra.*; a job is known
    by its number, and its options are those of the request. It reads sys.argv, returns nothing, and turns every
    exception of a task into exit code 1 with a shortened traceback. A ConfigError or WorkersFailedError is therefore
    raised only after hydra.main has returned. more: further options.
    """
    results: list[Any] = [None]
    raised: list[ConfigError | WorkersFailedError] = []
    typed = sys.argv

    def main(config: DictConfig) -> Any:
        sys.argv = typed  # also in another process: what messages correct, and what a run stores as its command
        try:
            results.append(task(config))
        except (ConfigError, WorkersFailedError) as error:
            raised.append(error)
        return results[-1]

    main.__module__ = f"imagenet_ddp.{request.verb}"  # Hydra names the job after this module
    chosen = [option.for_hydra for option in request.options if option.for_hydra and not option.jobs]
    sys.argv = [sys.argv[0], *chosen, *more, *request.flags]
    hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name=request.verb)(main)()
    if raised:
        raise raised[0]
    return results[-1]
