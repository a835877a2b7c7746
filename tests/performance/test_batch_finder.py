import contextlib
import weakref
from typing import Any

import pytest
import torch
from helpers.plans import plan_of

from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.performance import batch_finder, train_step
from imagenet_ddp.performance.batch_finder import MOST, cuda_step, largest_batch


class Device:
    """A device with memory for so many images."""

    def __init__(self, limit: int, error: Exception | None = None) -> None:
        self.limit, self.tried = limit, list[int]()
        self.error = error or torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    def __call__(self, images: int) -> None:
        self.tried.append(images)
        if images > self.limit:
            raise self.error


@pytest.mark.parametrize(
    ("limit", "found"), [(0, 0), (7, 0), (8, 8), (15, 8), (16, 16), (100, 96), (256, 256), (1000, 1000), (10**6, MOST)]
)
def test_the_largest_multiple_of_8(limit: int, found: int) -> None:
    device = Device(limit)
    assert largest_batch(device) == found
    assert len(device.tried) == len(set(device.tried)) <= 20
    assert all(images % 8 == 0 and 8 <= images <= MOST for images in device.tried)


def test_no_more_than_asked_for() -> None:
    device = Device(10**6)
    assert largest_batch(device, most=100) == 96
    assert max(device.tried) <= 100


@pytest.mark.parametrize("error", [RuntimeError("mat1 and mat2 cannot be multiplied"), ConfigError("no such net")])
def test_any_other_error_is_raised(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        largest_batch(Device(8, error))


def test_a_step_that_failed_holds_no_memory_when_it_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """What its frames still held would be cached, and count as memory of the next step."""
    activations: list[weakref.ref[torch.Tensor]] = []
    held: list[int] = []

    def forward(images: int) -> None:
        activation = torch.zeros(images)
        activations.append(weakref.ref(activation))
        if images > 40:
            raise torch.OutOfMemoryError

    def train(config: Any, *_: Any) -> float:
        try:
            forward(config["data"]["batch_size"])
        except torch.OutOfMemoryError as error:
            raise ConfigError("does not fit") from error
        return 0.0

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: contextlib.nullcontext())
    monkeypatch.setattr(
        batch_finder, "_release", lambda _: held.append(sum(each() is not None for each in activations))
    )
    monkeypatch.setattr(batch_finder, "_train", train)
    config = CommonConfig(data=DataConfig(batch_size=4))
    assert largest_batch(cuda_step(config, "32-true", torch.device("cuda", 0), copies=0)) == 40
    assert len(held) > 5 and not any(held)


def test_a_tenth_of_the_free_memory_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """10 bytes an image, of 1000 that are free. Each step is cleared away, also one that fails."""
    released: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 2000))
    monkeypatch.setattr(torch.random, "fork_rng", lambda devices: contextlib.nullcontext())
    monkeypatch.setattr(batch_finder, "_release", released.append)
    monkeypatch.setattr(batch_finder, "_train", lambda config, *_: 10 * config["data"]["batch_size"])
    config = CommonConfig(data=DataConfig(batch_size=4))
    step = cuda_step(config, "32-true", torch.device("cuda", 0), copies=0)
    assert largest_batch(step) == 88
    assert len(released) > 5
    assert config["data"]["batch_size"] == 4


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ((), [48, 48, 48]),
        (("data.train_size=32",), [32, 32, 48]),
        (("data.train_size=64", "data.progressive_start=32", "data.progressive_epochs=[0,2]"), [64, 64, 48]),
    ],
)
def test_steps_have_the_largest_size_of_training(
    options: tuple[str, ...], sizes: list[int], monkeypatch: pytest.MonkeyPatch, one_thread: None
) -> None:
    """Two steps, and a batch of validation. cuDNN chooses its algorithms as it will in the run."""
    seen: list[int] = []

    class Seeing(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            seen.append(input.shape[-1])
            return super().forward(input.mean((2, 3)))

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(train_step, "create_model", lambda *_: Seeing(3, 10))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 0)
    config = plan_of("data.image_size=48", "data.batch_size=4", "trainer.benchmark=true", *options).config
    monkeypatch.setattr(batch_finder, "CLASSES", 10)
    batch_finder._train(config, "32-true", torch.device("cpu"), 0)
    assert seen == sizes
    assert torch.backends.cudnn.benchmark
