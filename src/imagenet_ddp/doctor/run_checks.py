"""Run doctor's checks on one machine, and make one result per line of its report. A failed check does not stop the
others."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_ddp.cli.check_launch import find_place
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.data import dataset_summary
from imagenet_ddp.data.dataset_summary import DatasetSummary
from imagenet_ddp.distributed.launchers.detect import with_known_host
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.text import first_line

if TYPE_CHECKING:
    from imagenet_ddp.launch.plan import Plan


@dataclass
class Check:
    """One line of doctor's report. A check that finds several errors returns one Check for each error."""

    name: str
    ok: bool
    what: str  # the text of the line
    hint: str = ""


@dataclass
class Machine:
    """The input of the checks on one machine."""

    config: CommonConfig
    environ: Mapping[str, str]
    typed: Sequence[str]  # the options as typed, for the commands in hints
    run_dir: Path
    kind: str = "cpu"  # of the device: cpu, cuda or mps
    no_device: list[Mistake] = field(default_factory=list[Mistake])  # reasons why there is no device
    place: Place | None = None  # None if the options or the launcher are refused
    num_local: int = 1  # processes of this machine

    @cached_property
    def plan(self) -> "Plan":
        """Return the plan of each process of this machine, for the CPU if the configured device does not exist."""
        from imagenet_ddp.launch.devices import use_device
        from imagenet_ddp.launch.plan import make_plan

        num_nodes = self.place.num_nodes if self.place else 1
        place = Place(world_size=num_nodes * self.num_local, local_world_size=self.num_local, num_nodes=num_nodes)
        trainer = self.config.trainer
        if self.no_device:
            trainer = replace(trainer, accelerator="cpu", devices=1)
        return make_plan(replace(self.config, trainer=trainer), place, use_device(trainer))

    @cached_property
    def dataset(self) -> DatasetSummary:
        """Return the splits of the images that a source of this project would read; no splits for data._target_."""
        data = self.config.data
        try:
            return DatasetSummary([]) if data.target else dataset_summary.summarise(data, self.config.seed)
        except ConfigError as error:
            return DatasetSummary(error.mistakes)

    @property
    def has_other_nodes(self) -> bool:
        return self.place is not None and self.place.num_nodes > 1

    @property
    def rendezvous_host(self) -> str | None:
        return self.place.host if self.place and self.has_other_nodes else None


def inspect_machine(config: CommonConfig, environ: Mapping[str, str], typed: Sequence[str], run_dir: Path) -> Machine:
    """Detect the devices and the launcher. Imports torch, but does not initialise CUDA."""
    from imagenet_ddp.launch import devices

    machine = Machine(config, environ, typed, run_dir)
    num_ranks = 0  # of this machine, if a launcher has started them
    with suppress(ConfigError):  # the check `rendezvous` reports these mistakes
        machine.place = found = with_known_host(find_place(config, environ, verb="doctor", typed=typed), environ)
        num_ranks = 0 if found.is_node else found.local_world_size
    try:
        machine.kind = devices.device_type(config.trainer.accelerator)
        num_local = devices.num_local_processes(config, num_ranks or 1)
        machine.num_local = num_ranks or num_local
    except ConfigError as error:
        machine.no_device = error.mistakes
    return machine


CheckFunction = Callable[[Machine], list[Check]]  # returns Checks without a name, none if there is nothing to check


def run_checks(machine: Machine, functions: Iterable[tuple[str, CheckFunction]]) -> Iterator[list[Check]]:
    """Run the named checks one after the other, and yield the results of each."""
    for name, function in functions:
        try:
            checks = function(machine)
        except ConfigError as error:
            checks = failed(error.mistakes)
        except Exception as error:  # one check must not end the others
            reason = f"{type(error).__name__}: {first_line(error)}"
            checks = failed([Mistake(f"the check itself failed: {reason}", hint="look at the other checks first")])
        yield [replace(check, name=name) for check in checks]


def failed(mistakes: Iterable[str | Mistake], name: str = "") -> list[Check]:
    """Make a failed check from each mistake."""
    return [Check(name, False, each.what, each.advice) for each in ConfigError(mistakes).mistakes]


def passed(what: str) -> list[Check]:
    return [Check("", True, what)]
