"""The page for those who know DistributedDataParallel, and combinations that do not work."""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from torch.nn.parallel import DistributedDataParallel

from imagenet_ddp.cli.known_terms import unknown
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.schema.distributed import ClusterConfig, StrategyConfig
from imagenet_ddp.distributed.validate import validate_options


def config(strategy: dict[str, Any] | None = None, **trainer: Any) -> dict[str, Any]:
    return {
        "strategy": vars(StrategyConfig()) | (strategy or {}),
        "trainer": {"accumulate_grad_batches": 1, "precision": "auto"} | trainer,
        "cluster": vars(ClusterConfig()),
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
        ({"comm_hook": "fp8"}, {}, "strategy.comm_hook must be fp16, bf16 or null"),
        ({"timeout_s": 0.0}, {}, "strategy.timeout_s must be a number > 0"),
        ({"bucket_cap_mb": 0.0}, {}, "strategy.bucket_cap_mb must be a number > 0"),
        ({"name": "balanced_dp", "first_device_batch": -1}, {}, "first_device_batch must be an integer ≥ 0 or null"),
        ({"static_graph": True}, {}, None),
        ({"static_graph": True}, {"accumulate_grad_batches": 2}, "static_graph=true does not work with trainer.acc"),
        ({"name": "dp"}, {}, None),
        ({"name": "balanced_dp", "first_device_batch": 2}, {}, None),
    ],
)
def test_validate(strategy: dict[str, Any], trainer: dict[str, Any], message: str | None) -> None:
    found = validate_options(config(strategy, **trainer))
    if message is None:
        assert found == []
    else:
        assert len(found) == 1 and message in found[0], found
