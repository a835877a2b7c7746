"""Check how this machine finds the others: interfaces, variables, rendezvous."""

from typing import Any

import psutil

from imagenet_ddp.distributed import validate as distributed_check
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.network import interfaces, nccl
from imagenet_ddp.doctor.checks import Check, CheckFunction, Machine, failed, passed
from imagenet_ddp.system.text import count_noun


def _interfaces(machine: Machine) -> list[Check]:
    known = [each for each in interfaces.interfaces() if each.is_up and each.addresses]
    words = [f"{each.name} {each.addresses[0]}" for each in known]
    numbers: dict[str, Any] = {"interfaces": {each.name: list(each.addresses) for each in known}}
    host = machine.host
    if host is None:
        return passed(", ".join(words) or "none known", **numbers)
    try:
        interface = interfaces.route_to(interfaces.resolve(host))
    except OSError:
        return passed(f"{', '.join(words)}; none is chosen, because {host} does not resolve", **numbers)
    if interface is None:
        return failed([f"no interface of this machine ({', '.join(words)}) reaches {host}. "
                       "Hint: check that the address is right and belongs to a network of this machine."])  # fmt: skip
    card = psutil.net_if_stats().get(interface.name)
    link_mbit_per_s = card.speed or None if card else None  # most clouds report no speed
    numbers |= {"to_meeting_place": interface.name, "link_mbit_per_s": link_mbit_per_s}
    return passed(f"{', '.join(words)}; to {host} through {interface.name}", **numbers)


def _variables(machine: Machine) -> list[Check]:
    if mistakes := _variable_mistakes(machine):
        return failed(mistakes)
    keys, environ = machine.config["nccl"], machine.environ
    meets = machine.host if machine.has_other_nodes else None
    there = {name: value for name, value in environ.items() if name.startswith(nccl.PREFIXES)}
    made = nccl.configured_variables(keys, environ)
    chosen, why = nccl.interface_variables(meets, not machine.has_other_nodes, keys, environ)
    words = [f"{name}={value} (environment)" for name, value in sorted(there.items())]
    words += [f"{name}={value} (nccl=)" for name, value in made.items() if name not in there]
    words += why if machine.num_local > 1 or machine.has_other_nodes else []
    return passed("; ".join(words) or "none set, none needed",
               environment=there, set_by_options=made, chosen=chosen)  # fmt: skip


def _variable_mistakes(machine: Machine) -> list[str]:
    return nccl.validate(machine.config["nccl"], machine.environ, machine.host if machine.has_other_nodes else None)


def _rendezvous(machine: Machine) -> list[Check]:
    mistakes, _ = distributed_check.validate(machine.config, machine.environ, verb="doctor", typed=machine.typed)
    # the check `variables` reports its own mistakes
    mistakes = [text for text in mistakes if text not in _variable_mistakes(machine)]
    if mistakes:
        return failed(mistakes)
    found = machine.launch_info
    assert found is not None  # otherwise, validate() has reported why
    # In SLURM's list of nodes, a loopback address is right: it appears only if all nodes are on this machine.
    is_listed = found.source.startswith(slurm.SOURCE)
    if machine.host and machine.has_other_nodes and not is_listed and interfaces.is_loopback(machine.host):
        what = (
            f"{machine.host}, where all nodes meet, is the loopback address, with which each node reaches only itself"
        )
        return failed([f"{what}. Hint: type the address at which the other nodes reach node 0."])
    numbers = {
        "source": found.source,
        "address": str(found.address) if found.address else None,
        "num_nodes": found.num_nodes,
        "node_rank": found.node_rank,
        "num_local_processes": machine.num_local,
    }
    if found.world_info is not None:
        return passed(found.world_info.sentence().removeprefix("Rendezvous: ").rstrip("."), **numbers)
    if found.standalone:
        return passed(f"none needed: this machine alone, {count_noun(machine.num_local, 'process')}", **numbers)
    which = "numbered in order of arrival" if found.node_rank is None else f"this is node {found.node_rank}"
    what = f"{found.source}: {found.num_nodes} nodes meet at {found.address}, {which}"
    return passed(f"{what}, {count_noun(machine.num_local, 'process')} each", **numbers)


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("interfaces", _interfaces),
    ("variables", _variables),
    ("rendezvous", _rendezvous),
)
