"""Connect one process of a job to the other processes, and keep the connection."""

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.distributed import Store  # pyright: ignore[reportPrivateImportUsage]

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.distributed.compare_members import Member, differences, shared_gpus, this_process
from imagenet_ddp.distributed.failure_watch import FailureWatch
from imagenet_ddp.distributed.meet import Expected, Meeting, SharedError, meet
from imagenet_ddp.distributed.messages import Messages
from imagenet_ddp.distributed.network import connectivity, nccl
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.store import connect
from imagenet_ddp.errors import ConfigError
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

    def decide(of_ranks: list[Any]) -> list[Any]:
        if mistakes := differences([facts for facts, _ in of_ranks], "rank"):
            raise ConfigError(mistakes)
        return min(threads for _, threads in of_ranks)

    return replace(plan, num_threads=Choice(*world.meeting.agree("devices", [facts, plan.num_threads], decide)))


def _who_can_post(place: Place) -> str:
    if place.secret is not None:
        return "the nodes sign their messages with the secret of cluster.secret_file"
    return (
        f"the nodes do not sign their messages, so whoever reaches {place.address} can change this run "
        "(cluster.secret_file)"
    )


def meet_ranks(place: Place, config: CommonConfig, meeting: Meeting | None = None) -> World:
    """Choose this process's device, set the network interfaces, wait until all ranks have met, and check that each
    has its own GPU and that all can reach each other. Raises ConfigError otherwise. meeting: of the ranks, if they have
    met as commands."""
    if place.world_size == 1:
        return World(place, devices.use_device(config.trainer, place.local_rank))
    timeout_s = config.cluster.timeout_s
    several, master = place.num_nodes > 1, place.host if place.num_nodes > 1 else None
    variables, notes = nccl.interface_variables(master, not several, config.nccl.env, os.environ)
    os.environ |= {**nccl.configured_variables(config.nccl.env, os.environ), **variables}
    if several:
        notes = [*notes, _who_can_post(place)]
    root = connect(place, timeout_s)

    found: list[Any] = []  # GPUs of each rank, on rank 0

    def check_gpus(gpus_of_ranks: list[Any]) -> None:
        found.extend(gpus_of_ranks)
        uuids = [gpus[0]["uuid"] if gpus else None for gpus in found]
        if mistakes := shared_gpus(uuids, place.label):
            raise ConfigError(mistakes)

    if meeting is None:
        own = Member(**vars(this_process()), number=place.rank, size=place.world_size)
        hint = "read that rank's messages, or set a longer cluster.timeout_s."
        meeting = meet(root, own, Expected(place.world_size, "rank", place.label, hint), timeout_s)
    client = lambda: connect(place, timeout_s)  # noqa: E731
    watch = None
    try:
        watch = FailureWatch(meeting, client, place.label)
        device = devices.use_device(config.trainer, place.local_rank)
        own_gpus = [vars(gpu) for gpu in devices.rank_gpus(config.trainer, place.local_rank)]
        meeting.agree("gpus", own_gpus, check_gpus)
        if several:
            assert place.host
            connectivity.check_connectivity(meeting, connectivity.own_address(os.environ, place.host))
    except ConfigError as error:
        if not isinstance(error, SharedError):
            meeting.refuse(error)
        if watch is not None:
            watch.end(wait=False)
        raise
    gpus = {rank: [nvidia_gpus.RankGpu(**each) for each in of_rank] for rank, of_rank in enumerate(found)}
    hosts = {rank: member.host for rank, member in enumerate(meeting.members)}
    lines = nvidia_gpus.describe_gpus(gpus, hosts, place.local_world_size)
    models = tuple(gpu.model for of_rank in gpus.values() for gpu in of_rank)
    return World(place, device, root.store, client, meeting, watch, tuple(notes), tuple(lines), models)
