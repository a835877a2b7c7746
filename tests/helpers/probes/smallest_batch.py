"""Let two ranks find different batches and agree on one: python smallest_batch.py CONFIG LIMITS, both JSON."""

import json
import sys
from typing import Any

import torch

from imagenet_ddp.config.schema.commands import TrainConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.spawn import Workers
from imagenet_ddp.engine import batch_finder
from imagenet_ddp.engine.batch_finder import smallest
from imagenet_ddp.engine.world import join_world
from imagenet_ddp.errors import ConfigError


def search(info: WorldInfo, config: dict[str, Any], limits: list[int]) -> tuple[int, tuple[int, int], bool]:
    """Return (what this rank finds alone, what all have agreed on, whether the others have the same)."""
    world = join_world(info, to_config(config, TrainConfig))

    def step(images: int) -> None:
        if images > limits[info.rank]:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    alone = batch_finder.largest_batch(step)
    found = smallest(world, alone, 60.0)
    same = True
    try:
        assert world.meeting is not None
        world.meeting.check_equal("found", {"the batch": found[0]}, 60.0)
    except ConfigError:
        same = False
    world.leave()
    return alone, found, same


if __name__ == "__main__":
    print(json.dumps(Workers(search, (json.loads(sys.argv[1]), json.loads(sys.argv[2])), 2).run()))
