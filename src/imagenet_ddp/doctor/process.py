"""Run doctor's checks in one process of a job."""

from typing import Any

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.engine.worker import joined_ranks
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system.heavy_imports import import_torch


def diagnose(info: WorldInfo, payload: tuple[CommonConfig, list[Any]]) -> list[Any]:
    """Run the checks of all ranks in this process. Return the results on rank 0, [] on the other ranks.

    payload: (the config, the results of this node's own checks).
    """
    config, node_checks = payload
    exit_on_signal()
    with import_torch():
        from imagenet_ddp.doctor.check_ranks import check_world, not_joined
        from imagenet_ddp.engine.world import World, join_world  # torch from here on

    try:
        world = join_world(info, config) if info.world_size > 1 else World(info)
    except ConfigError as error:
        return not_joined(error) if info.rank == 0 else []
    with joined_ranks(info, config, world):
        return check_world(config, world, node_checks)
