"""What a check of doctor finds, what it goes by, and how a list of checks is gone through: each whatever the one before
found. The checks themselves are in machine, network, data and world."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_ddp.distributed.launchers.detect import detect, located
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.distributed.validate import no_gpu_reason
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line


@dataclass
class Check:
    """One line of doctor. A check that finds several mistakes gives one of these for each."""

    name: str
    ok: bool
    what: str
    hint: str = ""
    seconds: float = 0.0
    numbers: dict[str, Any] = field(default_factory=dict)  # units in the names


@dataclass
class Machine:
    """What the checks of one machine go by."""

    config: Mapping[str, Any]  # resolved, plain
    environ: Mapping[str, str]
    typed: Sequence[str]  # the options, for a line to type instead
    run_dir: Path
    kind: str = "cpu"  # cpu, cuda, mps
    no_device: list[str] = field(default_factory=list)  # why there is none
    rendezvous: LaunchInfo | None = None
    no_rendezvous: list[str] = field(default_factory=list)  # why there is none
    num_local: int = 1  # processes of this machine

    @property
    def num_workers(self) -> int:
        """Loader processes of each process."""
        from imagenet_ddp.data.loading.worker_processes import choose_num_workers

        return choose_num_workers(self.config["data"]["num_workers"], self.kind == "cpu", self.num_local)[0]

    @property
    def has_other_nodes(self) -> bool:
        """Machines take part that are not this one."""
        return self.rendezvous is not None and self.rendezvous.num_nodes > 1

    @property
    def host(self) -> str | None:
        """Where all meet: a name or a number. None where alone, or at a file."""
        address = self.rendezvous.address if self.rendezvous else None
        return address.host if address else None


def inspect_machine(
    config: Mapping[str, Any], environ: Mapping[str, str], typed: Sequence[str], run_dir: Path
) -> Machine:
    """Imports torch, but makes no CUDA context."""
    from imagenet_ddp.distributed import devices

    machine = Machine(config, environ, typed, run_dir)
    try:
        machine.kind = devices.device_type(config["trainer"]["accelerator"])
        num_devices = devices.count_devices(devices.local_devices(config["trainer"]))
        machine.num_local = batch_split.num_processes(config["strategy"], num_devices)
    except ConfigError as error:
        machine.no_device = error.mistakes
    try:
        cpu = no_gpu_reason(config["trainer"]) is not None
        found = located(detect(config, environ, verb="doctor", typed=typed, cpu=cpu), environ)
        machine.rendezvous = found
        if found.place is not None:
            machine.num_local = found.place.local_world_size or machine.num_local
    except ConfigError as error:
        machine.no_rendezvous = error.mistakes
    return machine


CheckFunction = Callable[[Machine], list[Check]]  # at least one Check; their names are filled in


def run_checks(machine: Machine, functions: Iterable[tuple[str, CheckFunction]]) -> Iterator[list[Check]]:
    """What each look finds, as soon as it has."""
    for name, look in functions:
        begin = time.perf_counter()
        try:
            found = look(machine)
        except ConfigError as error:
            found = failed(error.mistakes)
        except Exception as error:  # one check must not end the others
            reason = f"{type(error).__name__}: {first_line(error)}"
            found = failed([f"could not be looked at: {reason}. Hint: look at the others first."])
        for check in found:
            check.name = name
        found[0].seconds = round(time.perf_counter() - begin, 3)
        yield found


def failed(sentences: Sequence[str]) -> list[Check]:
    """One for each sentence, which may end in a Hint."""
    parts = [text.partition(" Hint: ") for text in sentences]
    return [Check("", False, what, hint) for what, _, hint in parts]


def passed(what: str, **numbers: Any) -> list[Check]:
    return [Check("", True, what, numbers=numbers)]
