"""The page for those who know DistributedDataParallel, and combinations that do not work."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

from imagenet_ddp.cli.suggest import unknown
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.distributed.strategies.validate_ddp import validate


def config(strategy: dict[str, Any] | None = None, **trainer: Any) -> dict[str, Any]:
    return {
        "strategy": vars(StrategyConfig()) | (strategy or {}),
        "trainer": {"accumulate_grad_batches": 1, "precision": "auto"} | trainer,
    }


def test_the_page_explains_every_argument() -> None:
    """The error for an unknown strategy.* key refers to it."""
    page = (Path(__file__).parents[3] / "docs" / "strategies.md").read_text()
    named = set(re.findall(r"`(\w+)`", "".join(line for line in page.splitlines() if line.startswith("| `"))))
    assert inspect.signature(DistributedDataParallel).parameters.keys() <= named


def test_an_unknown_key_leads_to_the_page() -> None:
    keys = declared("train")
    page = "docs/strategies.md lists DistributedDataParallel's arguments."
    assert unknown("strategy.output_device", keys) == f"strategy.output_device is not a known key. Hint: {page}"
    assert unknown("strategy.bucket_cap", keys).endswith(f"Hint: did you mean strategy.bucket_cap_mb? {page}")


@pytest.mark.parametrize(
    ("strategy", "trainer", "message"),
    [
        ({}, {}, None),
        ({"process_group_backend": "gloo"}, {}, None),
        ({"process_group_backend": "ucc"}, {}, "process_group_backend must be nccl, gloo or null, got"),
        ({"comm_hook": "fp8"}, {}, "strategy.comm_hook must be fp16, bf16, powersgd, post_local_sgd or null"),
        ({"powersgd_rank": 0}, {}, "strategy.powersgd_rank must be an integer ≥ 1"),
        ({"powersgd_start_step": 1}, {}, "strategy.powersgd_start_step must be an integer ≥ 2"),
        ({"timeout_s": 0.0}, {}, "strategy.timeout_s must be a number > 0"),
        ({"bucket_cap_mb": 0.0}, {}, "strategy.bucket_cap_mb must be a number > 0"),
        ({"name": "balanced_dp", "first_device_batch": -1}, {}, "first_device_batch must be an integer ≥ 0 or null"),
        ({"static_graph": True}, {}, None),
        ({"static_graph": True}, {"accumulate_grad_batches": 2}, "static_graph=true does not work with trainer.acc"),
        ({"comm_hook": "powersgd"}, {"precision": "bf16-mixed"}, None),
        ({"comm_hook": "powersgd"}, {"precision": "16-mixed"}, "but the hook stores these gradients"),
        ({"comm_hook": "post_local_sgd"}, {"accumulate_grad_batches": 2, "precision": "bf16-mixed"}, None),
        (
            {"comm_hook": "post_local_sgd"},
            {"precision": "16-mixed"},
            "needs trainer.precision=bf16-mixed, got 16-mixed",
        ),
        ({"comm_hook": "post_local_sgd", "static_graph": True}, {}, "needs strategy.static_graph=false, got true"),
        ({"comm_hook": "post_local_sgd", "local_sgd_every": 0}, {}, "local_sgd_every must be an integer ≥ 1"),
        ({"name": "dp"}, {}, None),
        ({"name": "balanced_dp", "first_device_batch": 2}, {}, None),
    ],
)
def test_validate(strategy: dict[str, Any], trainer: dict[str, Any], message: str | None) -> None:
    found = validate(config(strategy, **trainer))
    if message is None:
        assert found == []
    else:
        assert len(found) == 1 and message in found[0], found


def test_a_gradient_that_is_not_finite_stays_in_powersgd() -> None:
    found = validate(config({"comm_hook": "powersgd"}) | {"callbacks": {"nonfinite_loss": {"on_nan": "skip"}}})
    assert len(found) == 1 and "powersgd does not work with callbacks.nonfinite_loss.on_nan=skip, because" in found[0]


def test_an_average_of_each_rank_s_own_weights_is_refused() -> None:
    found = validate(config({"comm_hook": "post_local_sgd"}) | {"averaging": {"name": "ema"}})
    assert len(found) == 1 and "needs averaging.name=none, got ema" in found[0]
