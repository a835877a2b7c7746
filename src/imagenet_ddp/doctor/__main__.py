"""Check everything that train needs with the same options, without training. Continue after a failed check.

Exit codes: 0 if all checks passed, 1 if one failed, 2 if the options cannot be read.
"""

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.cli import command, parse
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.doctor.check_machine import CHECKS
from imagenet_ddp.doctor.diagnose_rank import diagnose
from imagenet_ddp.doctor.run_checks import Check, Machine, failed, inspect_machine, run_checks
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch import processes
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system import console


@dataclass(frozen=True)
class Options:
    request: parse.Request
    config: RunConfig
    run_dir: Path  # the folder that train would create


def main() -> None:
    with command.run_command("doctor", lambda argv: read(argv, os.environ)):
        options = command.planned("doctor", sys.argv[1:], read)
        machine = inspect_machine(options.config, os.environ, options.request.typed, options.run_dir)
        reports = machine.place is None or machine.place.rank == 0  # rank 0 reports for all ranks
        results: list[Check] = []
        for checks in _run_all(machine, options):
            results += checks
            for one in checks if reports else []:
                console.print_message(_line(one), sys.stdout)
        if reports:
            console.print_message(_summary(results, machine), sys.stdout)
            sys.exit(0 if all(one.ok for one in results) else 1)


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Options:
    """Return the request. Raises ConfigError with every error in the options themselves."""
    request = parse.command_line("doctor", argv, environ)
    config = request.values(RunConfig)
    if config.resume not in (None, "auto"):
        what = f"resume={config.resume} loads the options of a run, but doctor checks only typed options"
        raise ConfigError(Mistake(what, ("resume",), hint="type the options of that run, without resume"))
    return Options(request, config, Path(request.hydra.run.dir))


def _run_all(machine: Machine, options: Options) -> Iterator[list[Check]]:
    """Yield the results of each check: first those of this machine, then those of all ranks together."""
    here = () if machine.place is not None and machine.place.local_rank else CHECKS
    results = list[Check]()
    for checks in run_checks(machine, here):
        results += checks
        yield checks
    if machine.place is not None and not machine.no_device:
        num_classes = machine.dataset.num_classes if here else 0
        yield _check_ranks_together(machine, options, (options.config, results, num_classes or 0))


def _check_ranks_together(
    machine: Machine, options: Options, payload: tuple[RunConfig, list[Check], int]
) -> list[Check]:
    """Return the results of the checks of all ranks together, [] on every node but the first."""
    assert machine.place is not None
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return processes.run_ranks(
                diagnose, payload, options.config, *processes.connect(options.request, machine.place)
            )
        except ConfigError as error:
            return failed(error.mistakes, "ranks")
        except WorkersFailedError as error:
            reason = f"the ranks ended with exit code {error.exit_code}"
            return failed([Mistake(reason, hint="look for the reason on standard error")], "ranks")


def _line(one: Check) -> str:
    hint = f"{'' if one.what.endswith('.') else '.'} Hint: {one.hint.removesuffix('.')}." if one.hint else ""
    return f"{one.name:13} {'ok  ' if one.ok else 'FAIL'} {one.what}{hint}"


def _summary(results: list[Check], machine: Machine) -> str:
    failed = list(dict.fromkeys(one.name for one in results if not one.ok))
    said = f"Not ready: {', '.join(failed)}." if failed else "All checks passed: training can start."
    if machine.has_other_nodes and not any(one.name == "ranks" for one in results):
        said += " These are the checks of this machine alone; node 0 shows those of all machines together."
    return said


if __name__ == "__main__":
    main()
