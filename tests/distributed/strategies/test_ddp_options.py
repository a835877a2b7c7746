"""Answers to those who know DistributedDataParallel, and combinations that do not work."""

import inspect
from typing import Any

import pytest
from lightning.pytorch.strategies import DDPStrategy
from torch.nn.parallel import DistributedDataParallel

from imagenet_ddp.cli.suggest import unknown
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.schema import StrategyConfig
from imagenet_ddp.distributed.strategies.ddp_options import DDP_ANSWERS, answer, validate


def config(strategy: dict[str, Any] | None = None, **trainer: Any) -> dict[str, Any]:
    return {
        "strategy": vars(StrategyConfig()) | (strategy or {}),
        "trainer": {"accumulate_grad_batches": 1, "precision": "auto"} | trainer,
    }


def test_every_argument_is_a_key_or_has_an_answer() -> None:
    keys = set(vars(StrategyConfig()))
    arguments = set(inspect.signature(DistributedDataParallel).parameters)
    assert arguments - keys <= DDP_ANSWERS.keys(), "a new argument of torch needs an answer"
    lightning = {"ddp_comm_state", "ddp_comm_hook", "ddp_comm_wrapper", "model_averaging_period", "start_method"}
    lightning |= {"timeout"}
    assert lightning <= inspect.signature(DDPStrategy).parameters.keys()
    assert DDP_ANSWERS.keys() - arguments <= lightning | {
        "bucket_cap_mb_list", "batched_grad_copy", "lazy_bucket_allocation",  # newer than the oldest torch
        "broadcast_buffers", "check_reduction",  # deprecated
    }  # fmt: skip
    assert not DDP_ANSWERS.keys() & keys


@pytest.mark.parametrize("name", DDP_ANSWERS)
def test_answers_are_sentences_with_a_hint_of_known_keys(name: str) -> None:
    text = answer(f"strategy.{name}") or ""
    assert text.startswith(f"strategy.{name} is not a key") and text.endswith(".")
    assert text.count("Hint: ") == 1
    known = declared("train")
    for word in text.replace("'", " ").replace(",", " ").split():
        if word.startswith(("strategy.", "trainer.")) and not word.startswith(f"strategy.{name}"):
            assert word.partition("=")[0].rstrip(".;") in known, word


def test_an_unknown_key_is_answered() -> None:
    keys = declared("train")
    message = unknown("strategy.broadcast_buffers", keys)
    assert "False does not mean the same" in message and message.endswith("Hint: strategy.forward_sync_buffers=false.")
    assert unknown("device_ids", keys).startswith("device_ids is not a key: Lightning gives")
    assert " (in experiment/mine.yaml): " in unknown("strategy.dim", keys, " (in experiment/mine.yaml)")
    assert "did you mean strategy.bucket_cap_mb?" in unknown("strategy.bucket_cap", keys)
    assert answer("optim.dim") is None


@pytest.mark.parametrize(
    ("strategy", "trainer", "message"),
    [
        ({}, {}, None),
        ({"process_group_backend": "mpi"}, {}, None),
        ({"process_group_backend": "ucc"}, {}, "process_group_backend must be nccl, gloo, mpi or null, got"),
        ({"comm_hook": "fp8"}, {}, "strategy.comm_hook must be fp16, bf16, powersgd or null, got fp8"),
        ({"powersgd_rank": 0}, {}, "strategy.powersgd_rank must be an integer ≥ 1"),
        ({"powersgd_start_step": 1}, {}, "strategy.powersgd_start_step must be an integer ≥ 2"),
        ({"timeout_s": 0.0}, {}, "strategy.timeout_s must be a number > 0"),
        ({"bucket_cap_mb": 0.0}, {}, "strategy.bucket_cap_mb must be a number > 0"),
        ({"name": "balanced_dp", "first_device_batch": -1}, {}, "first_device_batch must be auto or an integer ≥ 0"),
        ({"static_graph": True}, {}, None),
        ({"static_graph": True}, {"accumulate_grad_batches": 2}, "static_graph=true does not work with trainer.acc"),
        ({"comm_hook": "powersgd"}, {"precision": "bf16-mixed"}, None),
        ({"comm_hook": "powersgd"}, {"precision": "16-mixed"}, "stores the overflow"),
        ({"comm_hook": "bf16", "process_group_backend": "mpi"}, {}, "has no 16-bit floats"),
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
