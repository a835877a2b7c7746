"""Join the rendezvous of a run's commands, one per node or one per rank. Afterwards, each command knows all ranks."""

import functools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch.distributed import PrefixStore

from imagenet_ddp.distributed.launchers.world_info import LaunchInfo, WorldInfo
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.rendezvous import consistency, rank_layout, store
from imagenet_ddp.distributed.rendezvous.bounded_wait import run_bounded
from imagenet_ddp.distributed.rendezvous.find_store import find_store
from imagenet_ddp.distributed.rendezvous.gather_ranks import Roster, gather_ranks
from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup
from imagenet_ddp.errors import ConfigError

ABORT_S = 2.0  # longest wait for a store that may not answer any more


@dataclass(frozen=True)
class Rendezvous:
    """Group of commands, as seen by this command.

    world_info: ranks of this process, or of the first worker that this command starts.
    """

    rank_group: RankGroup
    world_info: WorldInfo
    starts_workers: bool

    def leave(self, timeout_s: float = 10.0) -> None:
        """Leave the group.

        If this command serves the store, wait up to timeout_s seconds until all other nodes have left.
        """
        group = self.rank_group

        def leave() -> None:
            group.store.add("num_left", 1)
            while group.number == 0 and int(group.store.add("num_left", 0)) < group.size:
                time.sleep(0.05)

        if self.starts_workers:
            run_bounded(leave, timeout_s)

    def abort(self, reason: str) -> None:
        """End the workers of the other nodes, which may still be waiting for the workers of this node."""
        run_bounded(lambda: self.rank_group.abort(ConfigError(reason)), ABORT_S)


def join_rendezvous(launch_info: LaunchInfo, config: Mapping[str, Any], num_local: int) -> Rendezvous:
    """Wait for the other commands, and check that all commands agree.

    config: the resolved config, as typed on this machine. num_local: number of workers that this command starts if it
    is not itself a rank. Raises ConfigError, with the same error on all commands once they have joined.
    """
    timeout_s, world_info = config["cluster"]["timeout_s"], launch_info.world_info
    number, size = launch_info.number, launch_info.size
    who = f"{launch_info.noun} {number} of {size}" if number is not None else f"one of {size} nodes"
    found = find_store(launch_info, timeout_s, who)
    prefixed = PrefixStore(store.commands_prefix(world_info.attempt if world_info else 0), found.store)
    roster = Roster(
        size, launch_info.noun, _label(world_info), _hint(launch_info, found.host, found.port), launch_info.job_id
    )
    if world_info is not None:
        group = gather_ranks(
            prefixed, roster, number, consistency.facts_of_command(config, None), timeout_s, leader=number == 0,
            details={"local_rank": world_info.local_rank},
            find_mistakes=functools.partial(rank_layout.validate, world_info),
        )  # fmt: skip
        world_info = replace(world_info, address=found.host, port=found.port)
        if not world_info.local_world_size:
            world_info = rank_layout.infer_nodes(world_info, group)
        return Rendezvous(group, world_info, starts_workers=False)
    facts = consistency.facts_of_command(config, num_local)
    group = gather_ranks(prefixed, roster, number, facts, timeout_s, leader=found.is_server)
    first_worker = WorldInfo(
        rank=group.number * num_local,
        node_rank=group.number,
        world_size=size * num_local,
        local_world_size=num_local,
        num_nodes=size,
        address=found.host,
        port=found.port,
        source=launch_info.source,
    )
    return Rendezvous(group, first_worker, starts_workers=True)


def _label(world_info: WorldInfo | None) -> Callable[[int], str]:
    if world_info is None:
        return lambda number: f"node {number}"
    local = world_info.local_world_size
    if not local:
        return lambda number: f"rank {number}"
    return lambda number: f"rank {number} (node {number // local}, local rank {number % local})"


def _hint(launch_info: LaunchInfo, host: str, port: int) -> str:
    """Return a hint about the likely causes of a missing rank."""
    address = launch_info.address
    if address is not None and address.file is not None:
        reach = f"Check that the missing machine reaches {host}:{port}, and has {address.file} on the same disk."
    elif launch_info.world_info is None and interfaces.is_loopback(host):
        reach = f"On every node, {host} is the node itself, so set the address at which the others reach node 0."
    else:
        reach = f"Check that the missing machine reaches {host}:{port}."
    return (
        "start the command on the missing machine, too, or read the message there. "
        f"{reach} To wait longer, set cluster.timeout_s."
    )
