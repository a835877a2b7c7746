"""Check how this machine finds the others: interfaces, variables, rendezvous, host names, port."""

import errno
import ipaddress
import os
import socket
from pathlib import Path
from typing import Any

from imagenet_ddp.distributed import validate as distributed_check
from imagenet_ddp.distributed.launchers.address import Address
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
        return passed(f"{', '.join(words)}; none chosen, as {host} does not resolve", **numbers)
    if interface is None:
        return failed([f"no interface of this machine ({', '.join(words)}) leads to {host}. "
                                     "Hint: is the address right, and in a network this machine is in?"])  # fmt: skip
    numbers |= {"to_meeting_place": interface.name, "link_mbit_per_s": link_mbit_per_s(interface.name)}
    return passed(f"{', '.join(words)}; to {host} through {interface.name}", **numbers)


def link_mbit_per_s(name: str) -> int | None:
    """Return the rate that the network card reports; None where it reports none (most clouds)."""
    try:
        speed = int(Path(f"/sys/class/net/{name}/speed").read_text())
    except (OSError, ValueError):
        return None
    return speed if speed > 0 else None


def _variables(machine: Machine) -> list[Check]:
    if mistakes := _variable_mistakes(machine):
        return failed(mistakes)
    keys, environ = machine.config["nccl"], machine.environ
    meets = machine.host if machine.has_other_nodes else None
    there = {
        name: value for name, value in environ.items() if name.startswith(("NCCL_", "GLOO_", "TORCH_NCCL_", "FI_"))
    }
    made = nccl.configured_variables(keys, environ)
    chosen, why = nccl.interface_variables(meets, not machine.has_other_nodes, keys, environ)
    notes = nccl.notes(environ, keys, meets)
    words = [f"{name}={value} (environment)" for name, value in sorted(there.items())]
    words += [f"{name}={value} (nccl=)" for name, value in made.items() if name not in there]
    words += why if machine.num_local > 1 or machine.has_other_nodes else []
    return passed("; ".join([*words, *(note.rstrip(".") for note in notes)]) or "none set, none needed",
               environment=there, set_by_options=made, chosen=chosen)  # fmt: skip


def _variable_mistakes(machine: Machine) -> list[str]:
    return nccl.validate(machine.config["nccl"], machine.environ, machine.host if machine.has_other_nodes else None)


def _rendezvous(machine: Machine) -> list[Check]:
    mistakes, _ = distributed_check.validate(machine.config, machine.environ, verb="doctor", typed=machine.typed)
    mistakes += [text for text in machine.no_rendezvous if text not in mistakes]
    # except those of the check `variables`
    mistakes = [text for text in mistakes if text not in _variable_mistakes(machine)]
    if mistakes:
        return failed(mistakes)
    found = machine.launch_info
    if found is None:
        return passed("none: the variables are wrong")
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
    which = "numbered as they come" if found.node_rank is None else f"this is node {found.node_rank}"
    what = f"{found.source}: {found.num_nodes} nodes meet at {found.address}, {which}"
    return passed(f"{what}, {count_noun(machine.num_local, 'process')} each", **numbers)


def _names(machine: Machine) -> list[Check]:
    own, host = socket.gethostname(), machine.host
    try:
        own_address = interfaces.resolve(own)
    except OSError:
        own_address = None
    words = f"{own} (this machine) is {own_address or 'not resolvable by name, which does no harm here'}"
    if host is None:
        return passed(words, host_name=own, own_address=own_address)
    try:
        number = interfaces.resolve(host)
    except OSError as error:
        what = f"the host name {host}, where all meet, cannot be resolved on this machine: {error.strerror}"
        return failed([f"{what}. Hint: give the numeric address of node 0, or add the name to /etc/hosts."])
    # SLURM's list of nodes is trusted: it names this machine only where all nodes are on it
    by_slurm = machine.launch_info is not None and machine.launch_info.source.startswith("slurm")
    if ipaddress.ip_address(number.partition("%")[0]).is_loopback and machine.has_other_nodes and not by_slurm:
        what = f"{host}, where all nodes meet, is {number}: on every node that is the node itself"
        return failed([f"{what}. Hint: the address of node 0 that the other nodes see."])
    where = "this machine" if interfaces.is_local(number) else "another machine"
    return passed(f"{host} is {number}, {where}; {words}", host_name=own, own_address=own_address, address=number)


def _port(machine: Machine) -> list[Check]:
    found = machine.launch_info
    address = found.address if found else None
    if found is None or address is None or address.host is None:
        return _file(address) if address is not None and address.file else passed("none needed")
    if found.world_info is not None and (found.world_info.store_is_served or found.world_info.rank):
        return passed(f"{address.port} is used by {'the launcher' if found.world_info.store_is_served else 'rank 0'}")
    try:
        number = interfaces.resolve(address.host)
    except OSError:
        return passed(f"{address.port}: not tried, as {address.host} does not resolve")
    if not interfaces.is_local(number):
        return passed(f"{address.port} of {address.host} is tried when all meet")
    refused: OSError | None = None
    for port in (address.port, *address.more_ports):
        with socket.socket(socket.AF_INET6 if ":" in number else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((number, port))
                probe.listen(1)
            except OSError as error:
                refused = refused or error
                continue
            return passed(f"{port} is free", port=port)
    assert refused is not None
    if refused.errno == errno.EADDRINUSE and found.num_nodes > 1 and found.node_rank is None:
        return passed(f"{address.port} is in use, perhaps by another node on this machine: tried when all meet")
    hint = f"another port, the same on every node: cluster.address={address.host}:{address.port + 1}"
    return failed([f"port {address.port} of this machine cannot be taken: {refused.strerror}. Hint: {hint}."])


def _file(address: Address) -> list[Check]:
    folder = Path(address.file or "/").parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        what = "cannot be written to" if folder.is_dir() else "does not exist"
        return failed([f"cluster.address={address} must lie in a folder that every node shares and may "
                               f"write to, but {folder} {what} here. Hint: mount it, or another path."])  # fmt: skip
    return passed(f"none: all meet through {address.file}, in a folder that can be written to")


CHECKS: tuple[tuple[str, CheckFunction], ...] = (
    ("interfaces", _interfaces),
    ("variables", _variables),
    ("rendezvous", _rendezvous),
    ("names", _names),
    ("port", _port),
)
