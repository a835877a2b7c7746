"""The commands that were typed meet: one per node, or one per rank. After this, who is who is settled for all."""

import contextlib
import ipaddress
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed import PrefixStore, Store

from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.rendezvous import address_file, consistency, store
from imagenet_ddp.distributed.rendezvous.gather_ranks import RankGroup, Roster, gather_ranks
from imagenet_ddp.errors import ConfigError


@dataclass(frozen=True)
class Rendezvous:
    """This command among the others. place: that of its process, or of the first worker it starts."""

    rank_group: RankGroup
    world_info: WorldInfo
    starts_workers: bool

    def leave(self, timeout_s: float = 10.0) -> None:
        """The one that serves the store goes last, or after timeout_s. In a thread, because a store whose machine is
        gone is waited for without a bound."""
        if self.starts_workers:
            _bounded(self._leave, timeout_s)

    def give_up(self, why: str, timeout_s: float = 2.0) -> None:
        """The others' workers may still wait for those of this node."""
        _bounded(lambda: self.rank_group.give_up(ConfigError(why)), timeout_s)

    def _leave(self) -> None:
        self.rank_group.store.add("left", 1)
        while self.rank_group.number == 0 and int(self.rank_group.store.add("left", 0)) < self.rank_group.size:
            time.sleep(0.05)


def _bounded(act: Callable[[], None], timeout_s: float) -> None:
    def run() -> None:
        with contextlib.suppress(Exception):  # the server may be gone
            act()

    thread = threading.Thread(target=run, name="leave", daemon=True)
    thread.start()
    thread.join(timeout_s)


def meet(launch_info: LaunchInfo, config: Mapping[str, Any], num_local: int) -> Rendezvous:
    """config: resolved, as typed on this machine. num_local: workers this command starts where it is no rank itself.
    Raises ConfigError, the same on all where they have met at all."""
    timeout_s = config["cluster"]["timeout_s"]
    world_info = launch_info.world_info
    number = world_info.rank if world_info else launch_info.node_rank
    size = world_info.world_size if world_info else launch_info.num_nodes
    noun = "rank" if world_info else "node"
    who = f"{noun} {number} of {size}" if number is not None else f"one of {size} nodes"
    meeting_store, host, port, leader = _store(launch_info, number, timeout_s, who)
    served_here = world_info is None or not world_info.store_is_served
    roster = Roster(
        size,
        noun,
        _label(world_info),
        _hint(launch_info, host, port),
        launch_info.job_id,
        assigned=world_info is None,
    )
    attempt = world_info.attempt if world_info else 0
    prefixed = PrefixStore(store.commands_prefix(attempt), meeting_store)
    mine = consistency.of_this_command(config, None if world_info else num_local)
    about = {"local_rank": world_info.local_rank} if world_info else {}
    leader = leader if served_here else number == 0

    def judge(members: Sequence[Mapping[str, Any]]) -> list[str]:
        return _misplaced(world_info, members) if world_info is not None else []

    rank_group = gather_ranks(prefixed, roster, number, mine, timeout_s, leader=leader, about=about, judge=judge)
    if world_info is not None:
        world_info = replace(world_info, address=host, port=port)
        if not world_info.local_world_size:
            world_info = _counted(world_info, rank_group)
        return Rendezvous(rank_group, world_info, False)
    first = WorldInfo(
        rank=rank_group.number * num_local,
        node_rank=rank_group.number,
        world_size=size * num_local,
        local_world_size=num_local,
        num_nodes=size,
        address=host,
        port=port,
        source=launch_info.source,
    )
    return Rendezvous(rank_group, first, True)


def _label(world_info: WorldInfo | None) -> Any:
    if world_info is None:
        return lambda number: f"node {number}"
    local = world_info.local_world_size
    if not local:
        return lambda number: f"rank {number}"
    return lambda number: f"rank {number} (node {number // local}, local rank {number % local})"


def _store(launch_info: LaunchInfo, number: int | None, timeout_s: float, who: str) -> tuple[Store, str, int, bool]:
    """(store, its host and port, whether this process serves it)."""
    address, world_info = launch_info.address, launch_info.world_info
    assert address is not None
    if address.file is not None:
        return _by_file(address.file, launch_info, number, timeout_s, who)
    assert address.host
    host, port = address.host, address.port
    if world_info is not None and world_info.store_is_served:
        return store.client(host, port, timeout_s, who, ours=False), host, port, False
    if address.more_ports:
        if number == 0:
            served = store.serve_one_of(host, (port, *address.more_ports), launch_info.job_id)
        else:
            job_id = launch_info.job_id or ""
            served = store.client(host, port, timeout_s, who, more_ports=address.more_ports, job_id=job_id)
        return served, host, served.port, number == 0
    if number == 0 or (number is None and _is_ours(host)):
        try:
            return store.serve(host, port), host, port, True
        except store.PortInUseError:
            if number == 0:
                raise
            # two nodes on one machine: the other one was first, or the port is another program's
            with contextlib.suppress(ConfigError):
                served = store.client(host, port, store.ANSWER_S, who)
                return served, host, port, False
            raise
    return store.client(host, port, timeout_s, who), host, port, False


def _is_ours(host: str) -> bool:
    try:
        return interfaces.is_local(interfaces.resolve(host))
    except OSError as error:
        raise ConfigError(store.unknown_name(host, error)) from error


def _by_file(
    file: str, launch_info: LaunchInfo, number: int | None, timeout_s: float, who: str
) -> tuple[Store, str, int, bool]:
    served: list[Store] = []

    def serve() -> tuple[list[str], int]:
        if not served:
            served.append(store.serve("127.0.0.1", 0))
        return [*interfaces.reachable_addresses(), "127.0.0.1"], served[0].port  # type: ignore[attr-defined]

    found = address_file.find(
        file, launch_info.job_id, timeout_s, may_own=number in (0, None), must_own=number == 0, serve=serve
    )
    if found.owned:
        return served[0], found.hosts[0], found.port, True
    reasons = []
    for host in found.hosts:
        try:
            return store.client(host, found.port, store.ANSWER_S, who), host, found.port, False
        except ConfigError as error:
            reasons += error.mistakes
    raise ConfigError(
        f"{file} leads to {', '.join(found.hosts)} at port {found.port}, but none can be reached: {reasons[0]}"
    )


def _counted(world_info: WorldInfo, rank_group: RankGroup) -> WorldInfo:
    """Nodes as the ranks' machines show them, where nobody said how many processes each has."""
    machines = [str(each["machine"]) for each in rank_group.members]
    nodes = list(dict.fromkeys(machines))
    return replace(
        world_info,
        local_world_size=len(machines) // len(nodes),
        num_nodes=len(nodes),
        node_rank=nodes.index(machines[world_info.rank]),
    )


def _misplaced(world_info: WorldInfo, members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ranks that do not lie on the machines as their numbers say. place: of one of them."""
    if world_info.local_world_size:
        return _scattered(world_info.local_world_size, members)
    machines = [str(each["machine"]) for each in members]
    counts = {str(each["host"]): machines.count(str(each["machine"])) for each in members}
    if len(set(counts.values())) > 1:
        whose = ", ".join(f"{count} on {host}" for host, count in counts.items())
        return [
            f"every node must have as many processes as the others, but there are {whose}. "
            "Hint: as many commands on each."
        ]
    local = len(machines) // len(set(machines))
    return _scattered(local, members) or _misnumbered(world_info.source, local, members)


def _misnumbered(source: str, local: int, members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Local ranks that do not count from 0 on each machine, whose ranks are neighbours."""
    given = [int(each["local_rank"]) for each in members]
    wrong = [rank for rank, local_rank in enumerate(given) if local_rank != rank % local]
    if not wrong:
        return []
    first = wrong[0] // local * local
    host = members[first]["host"]
    key, name = ("cluster.rank", "cluster.local_rank") if source == "cluster.rank" else ("RANK", "LOCAL_RANK")
    hint = ", ".join(f"{name}={rank % local} where {key}={rank}" for rank in wrong[:8]) + (", ..." if wrong[8:] else "")
    per_node = next((n for n in range(1, local) if given == [rank % n for rank in range(len(given))]), None)
    if per_node is not None and local % per_node == 0:
        num_nodes = len(given) // per_node
        hint += f"; or trainer.num_nodes={num_nodes} on each, where {num_nodes} nodes of {per_node} shall share {host}"
    return [
        f"{name} must count from 0 on each machine, {', '.join(map(str, range(local)))} for ranks {first} to "
        f"{first + local - 1} on {host}, got {', '.join(map(str, given[first : first + local]))}. Hint: {hint}."
    ]


def _scattered(local: int, members: Sequence[Mapping[str, Any]]) -> list[str]:
    """Ranks of one node that are not on one machine: then somebody counted machines, not processes."""
    for first in range(0, len(members), local):
        away = next(
            (n for n in range(first, first + local) if members[n]["machine"] != members[first]["machine"]), None
        )
        if away is not None:
            return [
                f"ranks {first} and {away} must be on one machine ({local} processes per node), but are on "
                f"{members[first]['host']} and {members[away]['host']}. Hint: trainer.devices=1 where each machine has "
                f"one process; cluster.node_rank and trainer.num_nodes={len(members)} where RANK or cluster.rank "
                "counts machines."
            ]
    return []


def _hint(launch_info: LaunchInfo, host: str, port: int) -> str:
    """Why somebody may be missing."""
    address = launch_info.address
    if address is not None and address.file is not None:
        reach = f"does that machine reach {host}:{port}, and is {address.file} on the same disk there?"
    elif launch_info.world_info is None and _is_loopback(host):
        reach = f"{host} is this machine itself on every node: give the address of node 0 that the others see."
    else:
        reach = f"does that machine reach {host}:{port}?"
    return f"start the command there too; look at its own message; {reach} cluster.timeout_s sets how long is waited."


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return ipaddress.ip_address(interfaces.resolve(host).partition("%")[0]).is_loopback
    return False
