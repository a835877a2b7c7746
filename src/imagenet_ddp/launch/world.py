"""Connect one process of a job to the other processes, and keep the connection."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.distributed.connection import FailureWatch, Meeting, Messages, connect_ranks
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.spawn import GONE
from imagenet_ddp.launch import devices
from imagenet_ddp.launch.plan import Choice, Plan
from imagenet_ddp.system import nvidia_gpus


@dataclass(frozen=True)
class World:
    """This process's device, and its connection to the others. If there is only one process, only `place` and `device`
    are set."""

    place: Place
    device: torch.device  # with strategy=dp, the first one
    store: Store | None = None  # for the process group
    store_client: Callable[[], Messages] | None = None  # makes a new connection
    meeting: Meeting | None = None
    watch: FailureWatch | None = None
    network_notes: tuple[str, ...] = ()  # which interface was chosen and why, for the log
    gpus: tuple[str, ...] = ()  # the GPU of each rank, for the log; only on rank 0 of several ranks
    gpu_models: tuple[str, ...] = ()  # GPU models of all ranks; only on rank 0 of several ranks

    def command_gone(self, node: int) -> str:
        """Return the reason of an end for which the command of a node is gone, of which all its workers are told."""
        return f"{self.meeting.command(node) if self.meeting else 'the command of this run'} {GONE}"

    def leave(self) -> None:
        """Mark this process's exit as normal."""
        if self.watch is not None:
            self.watch.end()


def agree_on_devices(plan: Plan, world: World) -> Plan:
    """Return the plan with the lowest number of threads of all ranks, because each step waits for the slowest rank.

    Raises SharedError on all ranks if other automatic choices differ between unlike machines: ranks with other
    accelerators have other process groups, which wait for each other, and ranks with other precisions compute other
    gradients.
    """
    if world.meeting is None:
        return plan
    facts = {"the accelerator": plan.accelerator.value, "the precision": plan.precision.value}
    num_threads = min(world.meeting.require_equal("devices", facts, value=plan.num_threads))
    return replace(plan, num_threads=Choice(*num_threads))


def meet_ranks(place: Place, config: CommonConfig, facts: Mapping[str, Any]) -> World:
    """Wait until all ranks have met, choose this process's device, set the network interfaces, and check that each rank
    has its own GPU and that all can reach each other. Raises ConfigError otherwise.

    facts: of the command of this rank, which must be equal in all commands.
    """
    if place.world_size == 1:
        return World(place, devices.use_device(config.trainer, place.local_rank))
    connection = connect_ranks(place, facts, config.nccl.env, config.cluster.timeout_s)
    meeting, place = connection.meeting, connection.meeting.place
    with connection.refusals_told():
        device = devices.use_device(config.trainer, place.local_rank)
        found = connection.check([vars(gpu) for gpu in devices.rank_gpus(config.trainer, place.local_rank)])
    gpus = {rank: [nvidia_gpus.RankGpu(**each) for each in of_rank] for rank, of_rank in enumerate(found)}
    hosts = {rank: member.host for rank, member in enumerate(meeting.members)}
    lines = nvidia_gpus.describe_gpus(gpus, hosts, place.local_world_size)
    models = tuple(gpu.model for of_rank in gpus.values() for gpu in of_rank)
    return World(
        place, device, meeting.root.store, connection.new_client, meeting, connection.watch, tuple(connection.notes),
        tuple(lines), models,
    )  # fmt: skip
