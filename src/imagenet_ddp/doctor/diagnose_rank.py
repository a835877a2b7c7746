"""Run doctor's checks, in the process of one rank. Does not import torch before the ranks meet."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.doctor.run_checks import Check, failed
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.ranks import met_ranks
from imagenet_ddp.runs.signals import exit_on_signal
from imagenet_ddp.system.process import import_torch


def diagnose(place: Place, payload: tuple[CommonConfig, list[Check], int], facts: Mapping[str, Any]) -> list[Check]:
    """Run the checks of all ranks in this process. Return the results on rank 0, [] on the other ranks.

    payload: (the config, this node's own checks, the number of classes that they counted or 0). facts: see meet_ranks.
    """
    config, node_checks, num_classes = payload
    exit_on_signal()
    with import_torch():
        from imagenet_ddp.doctor.check_ranks import check_world
        from imagenet_ddp.launch.world import meet_ranks  # torch from here on

    try:
        world = meet_ranks(place, config, facts)
    except ConfigError as error:
        return failed(error.mistakes, "ranks") if place.rank == 0 else []
    with met_ranks(place, config, world=world):
        return check_world(config, world, node_checks, num_classes)
