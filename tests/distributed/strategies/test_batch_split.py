from dataclasses import asdict
from typing import Any

import pytest
import torch

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.errors import ConfigError


def strategy(name: str, **keys: Any) -> dict[str, Any]:
    return {**asdict(StrategyConfig(name=name)), **keys}


# ---- sizes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_devices", range(1, 9))
def test_dp_cuts_as_torch_chunk(num_devices: int):
    for num_images in range(1, 40):
        chunks = [len(chunk) for chunk in torch.arange(num_images).chunk(num_devices)]
        expected = chunks + [0] * (num_devices - len(chunks))
        assert batch_split.split_batch(num_images, num_devices, None, num_devices * 8) == expected
    assert batch_split.split_batch(5, 4, None, 32) == [2, 2, 1, 0]


@pytest.mark.parametrize(
    ("num_images", "sizes"),
    [(8, [2, 3, 3]), (7, [2, 3, 2]), (6, [2, 2, 2]), (5, [1, 2, 2]), (4, [1, 2, 1]), (3, [1, 1, 1]), (2, [1, 1, 0]),
     (1, [0, 1, 0]), (16, [4, 6, 6])],
)  # fmt: skip
def test_a_smaller_batch_keeps_the_proportion_of_2_3_3(num_images: int, sizes: list[int]):
    assert batch_split.split_batch(num_images, 3, 2, 8) == sizes


@pytest.mark.parametrize("num_devices", range(2, 7))
@pytest.mark.parametrize(("first", "batch_size"), [(0, 3), (1, 4), (2, 3), (7, 8), (8, 8), (12, 5)])
def test_balanced_shares(num_devices: int, first: int, batch_size: int):
    full = first + (num_devices - 1) * batch_size
    assert batch_split.split_batch(full, num_devices, first, full) == [first] + (num_devices - 1) * [batch_size]
    for num_images in range(full):
        own, *others = batch_split.split_batch(num_images, num_devices, first, full)
        assert own + sum(others) == num_images
        assert abs(own - first * num_images / full) <= 0.5
        assert own <= first
        assert min(others) >= 0
        assert max(others) - min(others) <= 1
        assert max(others) <= batch_size


def test_one_device_takes_all():
    assert batch_split.split_batch(7, 1, None, 8) == batch_split.split_batch(7, 1, 2, 2) == [7]


def test_images_per_forward():
    assert [batch_split.num_processes(strategy(name), 4) for name in ("auto", "ddp", "dp", "balanced_dp")] == [
        4,
        4,
        1,
        1,
    ]
    assert batch_split.images_per_forward(strategy("ddp"), 32, 4) == 32
    assert batch_split.images_per_forward(strategy("auto"), 32, 4) == 32
    assert batch_split.images_per_forward(strategy("dp"), 32, 4) == 128
    assert batch_split.images_per_forward(strategy("balanced_dp", first_device_batch=2), 3, 3) == 8
    assert batch_split.images_per_forward(strategy("balanced_dp", first_device_batch=0), 3, 3) == 6
    assert batch_split.images_per_forward(strategy("balanced_dp"), 32, 4) == 112  # half on the first device
    assert batch_split.images_per_forward(strategy("balanced_dp"), 1, 4) == 4
    assert batch_split.images_per_forward(strategy("balanced_dp"), 32, 1) == 32
    with pytest.raises(ConfigError, match="needs two devices or more, and there is 1"):
        batch_split.images_per_forward(strategy("balanced_dp", first_device_batch=0), 3, 1)


# ---- sentences -----------------------------------------------------------------------------------------------------


def test_the_arithmetic_of_the_two_examples():
    two_three_three = strategy("balanced_dp", first_device_batch=2)
    assert batch_split.describe(two_three_three, 3, 3, 1, False)[0] == "Split: 2 + 3 + 3 = 8 images per forward."
    assert batch_split.describe(two_three_three, 3, 3, 2, False)[0] == (
        "Split: 2 + 3 + 3 = 8 images per forward; with accumulation 2 twice that: 4 + 6 + 6 = 16 per step."
    )
    assert batch_split.split_sentence([2, 3], 3) == (
        "Split: 2 + 3 = 5 images per forward; with accumulation 3 3 times that: 6 + 9 = 15 per step."
    )
    assert batch_split.split_sentence([2]) == "Split: none, one device."


def test_the_start_says_that_ddp_is_faster_and_what_speaks_for_dp():
    lines = " ".join(batch_split.describe(strategy("dp"), 32, 2, 1, False))
    assert "ddp is usually faster" in lines
    assert "one copy of the data" in lines
    assert "On a CPU" not in lines
    assert batch_split.describe(strategy("ddp"), 32, 2, 1, False) == []


def test_the_default_share_is_half():
    (line, *_) = batch_split.describe(strategy("balanced_dp"), 4, 3, 1, True)
    assert line == "Split: 2 + 4 + 4 = 10 images per forward."


# ---- mistakes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "trainer", "num_devices"),
    [
        ({"name": "dp"}, {"num_nodes": 1, "sync_batchnorm": False}, 2),
        ({"name": "dp"}, {"num_nodes": "auto"}, None),
        ({"name": "balanced_dp", "first_device_batch": 0}, {}, None),
        ({"name": "balanced_dp", "first_device_batch": 0}, {}, 2),
        ({"name": "balanced_dp", "first_device_batch": 64}, {}, 2),  # a first device with more memory
        ({"name": "ddp", "comm_hook": "fp16"}, {"num_nodes": 2}, 2),
    ],
)
def test_no_mistake(keys: dict[str, Any], trainer: dict[str, Any], num_devices: int | None):
    assert batch_split.validate(strategy(**keys), trainer, num_devices) == []


@pytest.mark.parametrize(
    ("keys", "trainer", "lines"),
    [
        ({"name": "dp"}, {"num_nodes": 2},
         "strategy=dp runs in one process, but trainer.num_nodes is 2. Hint: strategy=ddp, or trainer.num_nodes=1."),
        ({"name": "dp"}, {"sync_batchnorm": True},
         "trainer.sync_batchnorm=true is for strategy=ddp, but the strategy is dp: of its batch-norm statistics,"
         " those of the first replica count. Hint: trainer.sync_batchnorm=false, or strategy=ddp."),
        ({"name": "dp", "comm_hook": "fp16"}, {},
         "strategy.comm_hook=fp16 is for strategy=ddp, but the strategy is dp, which has no process group."
         " Hint: leave it out, or strategy=ddp."),
        ({"name": "balanced_dp", "process_group_backend": "nccl", "static_graph": True}, {},
         "strategy.process_group_backend=nccl, strategy.static_graph=true are for strategy=ddp, but the strategy is"
         " balanced_dp, which has no process group. Hint: leave them out, or strategy=ddp."),
        ({"name": "ddp", "first_device_batch": 2}, {},
         "strategy.first_device_batch=2 is for strategy=balanced_dp, but the strategy is ddp."
         " Hint: strategy=balanced_dp, or leave it out."),
        ({"name": "balanced_dp", "first_device_batch": 0}, {},
         "strategy.first_device_batch=0 keeps the first device for gathering, which needs two devices or more, and"
         " there is 1. Hint: trainer.devices=2, or leave strategy.first_device_batch out."),
    ],
)  # fmt: skip
def test_each_mistake_has_its_sentence(keys: dict[str, Any], trainer: dict[str, Any], lines: str):
    assert batch_split.validate(strategy(**keys), trainer, 1) == [lines]
