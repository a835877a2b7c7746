"""Steps and all-reduces as they are timed: what is counted, and that ranks never part ways."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torchvision
from helpers.doctor_ranks import ranks
from torch import Tensor, nn

from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.performance import step_timer
from imagenet_ddp.performance.step_timer import Training

CPU = torch.device("cpu")
STRATEGY = {"static_graph": False, "gradient_as_bucket_view": True, "init_sync": True, "find_unused_parameters": False,
            "bucket_cap_mb": 25.0, "forward_sync_buffers": True, "comm_hook": None, "powersgd_rank": 1,
            "powersgd_start_step": 1000}  # fmt: skip


@pytest.fixture
def group(one_thread: None) -> Iterator[None]:
    """A world of one rank."""
    with step_timer.process_group(WorldInfo(), dist.HashStore(), CPU, None, 30.0):
        yield


def training(net: nn.Module, num_images: int = 4, pixels: int = 32) -> Training:
    images = torch.randint(0, 256, (num_images, 3, pixels, pixels), dtype=torch.uint8)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-6)
    return Training(net, optimizer, images, torch.zeros(num_images, dtype=torch.int64), lambda x: x.float() / 255)


class Slow(nn.Module):
    """20 ms in each forward pass, 40 ms in each backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3 * 8 * 8, 2)

    def forward(self, images: Tensor) -> Tensor:
        time.sleep(0.02)
        logits = self.linear(images.flatten(1))
        logits.register_hook(lambda gradient: time.sleep(0.04))
        return logits


@pytest.mark.parametrize("cap_mb", [25.0, 5.0])
def test_buckets_are_those_of_ddp(cap_mb: float, group: None):
    strategy = {**STRATEGY, "bucket_cap_mb": cap_mb}
    net = torchvision.models.resnet18(num_classes=10)
    work, wrapper = training(net), step_timer.wrapped(net, CPU, strategy)
    step_timer.steps(work, [(wrapper, True)], budget_s=0.0)
    sizes = wrapper._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    assert step_timer.bucket_bytes(net, strategy) == [int(size) for size in sizes.split(",")]


def test_frozen_parameters_do_not_travel():
    net = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 2))
    net[0].requires_grad_(False)
    assert step_timer.bucket_bytes(net, STRATEGY) == [4 * (20 + 2)]


def test_parts_of_a_step(one_thread: None):
    (times,) = step_timer.steps(training(net := Slow(), pixels=8), [(net, False)], budget_s=0.5)
    assert times.forward_s >= 0.02 and times.backward_s >= 0.04 and times.optimizer_s < times.backward_s
    assert times.compute_s == times.forward_s + times.backward_s + times.optimizer_s
    assert 2 <= times.num_steps <= 8


def test_there_are_two_steps_at_least_and_thirty_at_most(one_thread: None):
    net = Slow()
    assert step_timer.steps(training(net, pixels=8), [(net, False)], budget_s=0.0)[0].num_steps == 2
    quick = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    assert step_timer.steps(training(quick, pixels=8), [(quick, False)], budget_s=5.0)[0].num_steps in range(25, 31)


def test_gradients_travel_in_one_way_only(group: None):
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    sent = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        sent.append(bucket.buffer())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapper = step_timer.wrapped(net, CPU, STRATEGY)
    wrapper.register_comm_hook(None, hook)
    alone, together = step_timer.steps(training(net, pixels=8), [(wrapper, False), (wrapper, True)], budget_s=0.0)
    assert alone.num_steps == together.num_steps == 2
    assert len(sent) == 4  # with one to warm up, and one that begins a turn


def test_powersgd_compresses_from_the_second_step(group: None):
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 64))
    wrapper = step_timer.wrapped(net, CPU, {**STRATEGY, "comm_hook": "powersgd"})
    step_timer.steps(training(net, pixels=8), [(wrapper, True)], budget_s=0.0, warm_up=3)


@pytest.mark.slow
@pytest.mark.alone
def test_rings(tmp_path: Path):
    found = ranks("rings", 4, 2, folder=tmp_path)
    whole, part, inside = found[0]
    assert whole["num_bytes"] == whole["measured_bytes"] == part["num_bytes"] == 4_000_000
    assert whole["num_ranks"] == 4 and inside["num_ranks"] == 2
    assert part["measured_bytes"] == step_timer.MIB
    assert 0 < whole["small_s"] < whole["seconds"] < 5
    for rank in range(4):  # all go by the same numbers
        assert found[rank][:2] == found[0][:2]
