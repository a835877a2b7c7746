"""Decide compile=auto for all ranks: the one value of the plan that needs a measurement."""

import os
from dataclasses import replace
from typing import Any

from imagenet_ddp.distributed import devices
from imagenet_ddp.engine.plan import Choice, Plan
from imagenet_ddp.engine.world import World


def measure_compile(plan: Plan, world: World) -> Plan:
    """Return the plan with compile=auto resolved, by rank 0's measurement, for all ranks."""
    if plan.config["trainer"]["deterministic"]:
        # Lightning sets it, later: but torch looks once, at the first product of matrices, such as here or of the batch
        # finder
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
    if plan.compile.value != "auto":
        return plan
    from imagenet_ddp.performance import compile_choice  # takes time to import

    found: Any = None
    if world.info.rank == 0:
        device = devices.device_of(plan.config["trainer"], world.info.local_rank)
        found = compile_choice.choose(plan.config, plan.precision.value, device)
    if world.rank_group is not None:
        found = world.rank_group.broadcast("compile", found, plan.config["strategy"]["timeout_s"])
    return replace(plan, compile=Choice(*found))
