"""Connect one process of a job to the other processes, and keep the connection."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.distributed import PrefixStore, Store

from imagenet_ddp.distributed import devices, nvidia_gpus
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.network import interfaces, nccl
from imagenet_ddp.distributed.rendezvous import connectivity
from imagenet_ddp.distributed.rendezvous.failure_detector import FailureDetector, end_process
from imagenet_ddp.distributed.rendezvous.gather_ranks import Roster, gather_ranks
from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup, SharedError, abort_mistakes
from imagenet_ddp.distributed.rendezvous.store import COMMANDS, connect
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.errors import ConfigError


@dataclass(frozen=True)
class World:
    """The connection of this process to the others. If there is only one process, only `info` is set."""

    info: WorldInfo
    store: Store | None = None
    store_client: Callable[[], Store] | None = None  # makes a new connection
    rank_group: RankGroup | None = None
    failure_detector: FailureDetector | None = None
    network_notes: tuple[str, ...] = ()  # which interface was chosen and why, for the log
    gpus: tuple[str, ...] = ()  # the GPU of each rank, for the log; only on rank 0 of several ranks
    gpu_models: tuple[str, ...] = ()  # GPU models of all ranks; only on rank 0 of several ranks

    def leave(self) -> None:
        """Mark this process's exit as normal."""
        if self.failure_detector is not None:
            self.failure_detector.end()


def require_equal_devices(plan: Plan, world: World) -> None:
    """Raise SharedError on all ranks if automatic choices differ between unlike machines: ranks with other accelerators
    have other process groups, which wait for each other, and ranks with other precisions compute other gradients."""
    if world.rank_group is not None:
        facts = {"the accelerator": plan.accelerator.value, "the precision": plan.precision.value}
        world.rank_group.check_equal("devices", facts)


def join_world(info: WorldInfo, config: Mapping[str, Any]) -> World:
    """Set the network interfaces, wait until all ranks have joined, and check that each has its own GPU and that all
    can reach each other. Raises ConfigError otherwise."""
    timeout_s = config["cluster"]["timeout_s"]
    several, master = info.num_nodes > 1, info.address if info.num_nodes > 1 else None
    variables, notes = nccl.interface_variables(master, not several, config["nccl"], os.environ)
    os.environ |= {**nccl.configured_variables(config["nccl"], os.environ), **variables}
    store = connect(info, timeout_s)
    local = info.local_world_size

    def label(rank: int) -> str:
        return f"rank {rank} (node {rank // local}, local rank {rank % local})" if several else f"rank {rank}"

    def shared_gpus(gpus_of_ranks: list[Any]) -> list[str]:
        return devices.find_shared_gpus([gpus[0]["uuid"] if gpus else None for gpus in gpus_of_ranks], label)

    roster = Roster(info.world_size, "rank", label, "read that rank's messages, or set a longer cluster.timeout_s.")
    commands = PrefixStore(COMMANDS, store)  # a command may have given up before its workers joined
    rank_group = gather_ranks(
        PrefixStore("ranks", store), roster, info.rank, {}, timeout_s, leader=info.rank == 0,
        aborted=lambda: abort_mistakes(commands),
    )  # fmt: skip
    failure_detector = None
    try:
        here = ["127.0.0.1"]
        if several:
            assert info.address
            here = [connectivity.own_address(os.environ, info.address)]  # the interface to other nodes first
            here += [address for address in interfaces.reachable_addresses() if address not in here]
        failure_detector = FailureDetector(rank_group, here, label, end_process(f"rank {info.rank}"))
        own_gpus = [vars(gpu) for gpu in devices.rank_gpus(config["trainer"], info.local_rank)]
        found = rank_group.check_all("gpus", own_gpus, shared_gpus)
        if several:
            connectivity.check_connectivity(rank_group, here[0])
    except ConfigError as error:
        if not isinstance(error, SharedError):
            rank_group.abort(error)
        if failure_detector is not None:
            failure_detector.end(wait=False)
        raise
    gpus = {rank: [nvidia_gpus.RankGpu(**each) for each in of_rank] for rank, of_rank in enumerate(found)}
    hosts = {rank: str(member["host"]) for rank, member in enumerate(rank_group.members)}
    lines = nvidia_gpus.describe_gpus(gpus, hosts, local)
    models = tuple(gpu.model for of_rank in gpus.values() for gpu in of_rank)
    client = lambda: connect(info, timeout_s)  # noqa: E731
    return World(info, store, client, rank_group, failure_detector, tuple(notes), tuple(lines), models)
