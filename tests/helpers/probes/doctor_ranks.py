"""Run one rank of a world, to test the joint measurements of ranks.

python doctor_ranks.py WHAT PORT RANK WORLD_SIZE NUM_NODES [OPTION ...] prints the checks as JSON in its last line.
"""

import json
import os
import sys
from dataclasses import asdict
from typing import Any

import torch
import torch.distributed as dist

from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.doctor.__main__ import read
from imagenet_ddp.doctor.check_ranks import check_world
from imagenet_ddp.doctor.checks import Check
from imagenet_ddp.engine.world import World


def main(what: str, port: str, *numbers_and_options: str) -> Any:
    rank, world_size, num_nodes = map(int, numbers_and_options[:3])
    store = dist.TCPStore("127.0.0.1", int(port), None, is_master=rank == 0, wait_for_workers=False)
    local = world_size // num_nodes
    world_info = WorldInfo(rank, rank % local, rank // local, world_size, local, num_nodes, "127.0.0.1", int(port))
    torch.set_num_threads(1)
    options = read(list(numbers_and_options[3:]), os.environ)
    if what == "failing" and rank == 1:
        options.config.data.image_size = 8  # too small for the net
    node_checks = [Check("data", world_info.node_rank != 1, "no val/", "make one")]
    checks = check_world(options.config, World(world_info, store), node_checks)
    return [asdict(check) for check in checks]


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
