"""Steps and all-reduces: what is timed, and that all ranks go by the same numbers."""

import time
from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.training import step_timer
from imagenet_ddp.training.trial_step import Training

CPU = torch.device("cpu")
STRATEGY = StrategyConfig(forward_sync_buffers=True)


@pytest.fixture
def group() -> Iterator[None]:
    """A world of one rank."""
    with step_timer.process_group(Place(), dist.HashStore(), CPU, None, 30.0):
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


def test_parts_of_a_step():
    (times,) = step_timer.time_steps(training(net := Slow(), pixels=8), [(net, False)], budget_s=0.5)
    assert times.forward_s >= 0.02 and times.backward_s >= 0.04 and times.optimizer_s < times.backward_s
    assert times.compute_s == times.forward_s + times.backward_s + times.optimizer_s
    assert 3 <= times.num_steps <= 30


def test_gradients_are_sent_in_one_variant_only(group: None):
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    sent = []

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        sent.append(bucket.buffer())
        future: torch.futures.Future[Tensor] = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapper = step_timer.wrap(net, CPU, STRATEGY)
    wrapper.register_comm_hook(None, hook)
    variants = [(wrapper, False), (wrapper, True)]
    alone, together = step_timer.time_steps(training(net, pixels=8), variants, budget_s=0.0)
    assert alone.num_steps == together.num_steps == 3
    assert len(sent) == 5  # with one to warm up, and one that begins a turn
