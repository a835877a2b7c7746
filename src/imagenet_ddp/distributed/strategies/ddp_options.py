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
    if strategy["comm_hook"] == "post_local_sgd":
        # an exponential average would differ between the processes; so would the parameters with optimizer state
        wrong = {f"strategy.{key}": "false" for key in ("static_graph", "find_unused_parameters") if strategy[key]}
        if (averaging := config.get("averaging", {}).get("name", "none")) != "none":
            wrong["averaging.name"] = "none"
        for key, needed in wrong.items():
            got = averaging if key == "averaging.name" else "true"
            found.append(
                f"strategy.comm_hook=post_local_sgd needs {key}={needed}, got {got}: between two averages the weights "
                f"of the processes differ. Hint: {key}={needed}, or strategy.comm_hook=bf16."
            )
    return found
