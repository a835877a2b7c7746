"""Check the values and combinations of DistributedDataParallel's options before torch is imported."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.validators import integer
from imagenet_ddp.distributed.strategies import batch_split


def validate(config: Mapping[str, Any]) -> list[str]:
    """Return the errors in strategy.*."""
    strategy, trainer = config["strategy"], config["trainer"]
    found = validate_group("strategy", strategy)
    if strategy["name"] in batch_split.DATA_PARALLEL:
        return found  # batch_split.py reports which of these keys have no effect
    if strategy["static_graph"] and integer(2).accepts(trainer.get("accumulate_grad_batches")):
        found.append(
            f"strategy.static_graph=true does not work with trainer.accumulate_grad_batches="
            f"{trainer['accumulate_grad_batches']}, because torch's DistributedDataParallel stops in the first step "
            "(expect_autograd_hooks_ INTERNAL ASSERT FAILED, pytorch issue 143580). Hint: set "
            "strategy.static_graph=false, with strategy.find_unused_parameters=true if there are unused parameters."
        )
    return found
