"""Run doctor's checks in one process of a job."""

import os
from typing import Any

from imagenet_ddp.distributed.launchers.world_info import WorldInfo, spawned_world_info
from imagenet_ddp.engine.worker import join_world, run_in_process
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system.heavy_imports import import_torch


def diagnose(world_info: WorldInfo | None, config: dict[str, Any], found: list[Any]) -> list[Any]:
    """In every process of an examination; rank 0's checks, [] on the others. found: those of the command before."""
    exit_on_signal()
    with import_torch():
        from imagenet_ddp.doctor.check_ranks import examine_world, not_met
        from imagenet_ddp.engine.build import World  # torch from here on

    world_info = world_info or spawned_world_info(os.environ) or WorldInfo()
    if world_info.world_size == 1:
        return examine_world(config, World(world_info), found)
    try:
        world = join_world(world_info, config)
    except ConfigError as error:
        return not_met(error) if world_info.rank == 0 else []
    return run_in_process(lambda _: examine_world(config, world, found), world_info, config, world)
