"""Check DistributedDataParallel's options before torch is imported: values, and combinations that do not work."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.validators import integer


def validate(config: Mapping[str, Any]) -> list[str]:
    """Return the errors in strategy.*."""
    strategy, trainer = config["strategy"], config["trainer"]
    found = validate_group("strategy", strategy)
    if strategy["name"] in ("dp", "balanced_dp"):
        return found  # batch_split.py says which of these keys have no effect
    if strategy["static_graph"] and integer(2).accepts(trainer.get("accumulate_grad_batches")):
        found.append(
            f"strategy.static_graph=true does not work with trainer.accumulate_grad_batches="
            f"{trainer['accumulate_grad_batches']}: torch's DistributedDataParallel stops in the first step "
            "(expect_autograd_hooks_ INTERNAL ASSERT FAILED, pytorch issue 143580). "
            "Hint: strategy.static_graph=false, with strategy.find_unused_parameters=true where it is needed."
        )
    if strategy["comm_hook"] == "powersgd" and trainer.get("precision") in ("16-mixed", "16", 16):
        found.append(
            "strategy.comm_hook=powersgd does not work with trainer.precision=16-mixed: where the scaled loss "
            "overflows, that step is skipped, but the hook stores the overflow and adds it to every later gradient. "
            "Hint: trainer.precision=bf16-mixed, or strategy.comm_hook=fp16."
        )
    if strategy["comm_hook"] in ("fp16", "bf16") and strategy["process_group_backend"] == "mpi":
        found.append(
            f"strategy.comm_hook={strategy['comm_hook']} does not work with strategy.process_group_backend=mpi: "
            "torch's MPI backend has no 16-bit floats. Hint: strategy.comm_hook=null or powersgd."
        )
    return found
