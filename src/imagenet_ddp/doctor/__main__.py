"""python -m imagenet_ddp.doctor: train's own options, checked without training. Goes on after a failure.

Exit codes: 0 all ok; 1 something is not; 2 options that cannot be read.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator
from typing import Any

from imagenet_ddp.cli import command, hydra_flags
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.doctor import check_data, check_network, process
from imagenet_ddp.doctor import check_machine as this_machine
from imagenet_ddp.doctor.checks import Check, Machine, examine, survey
from imagenet_ddp.doctor.options import Options, read
from imagenet_ddp.engine import coordinate
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import console

WIDTH = 80  # columns on a terminal; elsewhere a line is a check


def main() -> None:
    with command.run_command("doctor"):
        _doctor()


def _doctor() -> None:
    options = command.planned("doctor", read, hydra_flags.without_local_rank)
    machine = survey(options.config, os.environ, options.request.typed, options.run_dir)
    place = machine.rendezvous.place if machine.rendezvous else None
    speaks = place is None or place.rank == 0  # a launcher's other ranks are heard through rank 0
    found: list[Check] = []
    for number, total, checks in _examined(machine, options):
        found += checks
        for one in checks if speaks and options.format == "text" else []:
            print(line(number, total, one), flush=True)
    if speaks:
        print(json.dumps(document(found), indent=2) if options.format == "json" else _summary(found, machine))
        sys.exit(0 if all(one.ok for one in found) else 1)


def _examined(machine: Machine, options: Options) -> Iterator[tuple[int, int, list[Check]]]:
    """(number, how many there are, what was found): first this machine by itself, then all ranks together."""
    from imagenet_ddp.doctor import check_ranks

    here = [*this_machine.CHECKS, *check_network.CHECKS, *check_data.checks()]
    place = machine.rendezvous.place if machine.rendezvous else None
    if place is not None and place.local_rank:
        here = []
    names = check_ranks.names(machine)
    total, found = len(here) + len(names), []
    for number, checks in enumerate(examine(machine, here), 1):
        found += checks
        yield number, total, checks
    if names:
        together = _together(machine, options, found)
        for number, name in enumerate(names, len(here) + 1):
            if checks := [one for one in together if one.name == name]:
                yield number, total, checks


def _together(machine: Machine, options: Options, found: list[Check]) -> list[Check]:
    """What all ranks find together; [] on every node but the first."""
    from imagenet_ddp.doctor.check_ranks import not_met  # torch

    assert machine.rendezvous is not None
    config, rendezvous = options.config, machine.rendezvous
    with contextlib.redirect_stdout(sys.stderr):
        try:
            met = coordinate.meet(options.request, rendezvous)
            return coordinate.run(process.diagnose, (config, found), config, met, rendezvous, own_processes=False)
        except ConfigError as error:
            return not_met(error)
        except WorkersFailedError as error:
            said = f"the ranks ended with exit code {error.exit_code}, and said why on standard error"
            return not_met(ConfigError(f"{said}. Hint: look there."))


def line(number: int, total: int, one: Check, width: int | None = None) -> str:
    """width: None for one line, or that of the terminal."""
    width = width or (WIDTH if sys.stdout.isatty() else None)
    hint = f" Hint: {one.hint}" if one.hint else ""
    text = f"[{number:{len(str(total))}}/{total}] {one.name:13} {'ok  ' if one.ok else 'FAIL'} {one.what}{hint}"
    return "\n".join(console.wrapped(text, width, indent=" " * (2 * len(str(total)) + 4))) if width else text


def document(found: list[Check]) -> dict[str, Any]:
    """The numbers of scaling are the prediction."""
    prediction = next((one.numbers for one in found if one.name == "scaling" and one.numbers), None)
    return {
        "ok": all(one.ok for one in found),
        "checks": [
            {**dataclasses.asdict(one), "numbers": {} if one.name == "scaling" else one.numbers} for one in found
        ],
        "prediction": prediction,
    }


def _summary(found: list[Check], machine: Machine) -> str:
    failed = list(dict.fromkeys(one.name for one in found if not one.ok))
    elsewhere = machine.meets_others and not machine.no_rendezvous and not any(one.name == "ranks" for one in found)
    rest = " That is this machine alone: what all found together, node 0 shows." if elsewhere else ""
    if not failed:
        return f"All is well: nothing stands in the way of training.{rest}"
    return f"Not ready: {', '.join(failed)}.{rest}"


if __name__ == "__main__":
    main()
