"""Check the values and combinations of DistributedDataParallel's options before torch is imported."""

from collections.abc import Mapping
from typing import Any

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.validators import integer
from imagenet_ddp.distributed.strategies import batch_split

HALF = ("16-mixed", "16", 16)  # precisions with a GradScaler, which skips steps


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
    on_nan = ((config.get("callbacks") or {}).get("nonfinite_loss") or {}).get("on_nan")
    if strategy["comm_hook"] == "powersgd":
        for is_set, key, other in (
            (trainer.get("precision") in HALF, "trainer.precision=16-mixed", "trainer.precision=bf16-mixed"),
            (on_nan == "skip", "callbacks.nonfinite_loss.on_nan=skip", "callbacks.nonfinite_loss.on_nan=raise"),
        ):
            if is_set:
                found.append(
                    f"strategy.comm_hook=powersgd does not work with {key}, because a step whose gradients are not "
                    "finite is skipped, but the hook stores these gradients and adds them to every later gradient. "
                    f"Hint: set {other}, or set strategy.comm_hook=fp16."
                )
    if strategy["comm_hook"] == "post_local_sgd":
        # otherwise, each process would have its own exponential average, parameters with state and skipped steps
        for key, got, works, needed in (
            ("strategy.static_graph", strategy["static_graph"], [False], "false"),
            ("strategy.find_unused_parameters", strategy["find_unused_parameters"], [False], "false"),
            ("averaging.name", config.get("averaging", {}).get("name"), ["none", None], "none"),
            ("callbacks.nonfinite_loss.on_nan", on_nan, ["raise", None], "raise"),
            ("trainer.precision", None if trainer.get("precision") not in HALF else "16-mixed", [None], "bf16-mixed"),
        ):
            if got not in works:
                found.append(
                    f"strategy.comm_hook=post_local_sgd needs {key}={needed}, got {str(got).lower()}, because the "
                    "weights of the processes differ between two averages. "
                    f"Hint: set {key}={needed}, or set strategy.comm_hook=bf16."
                )
    return found
