import contextlib
import dataclasses
import os
from pathlib import Path

import pytest
import torch
from helpers.fake_ranks import FakeRanks, call_all, connect, join_all
from helpers.plans import plan_of

from imagenet_ddp.cli.parse import command_line
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch import ranks
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.plan import Choice, Plan, make_plan, trainer_arguments
from imagenet_ddp.launch.world import World
from imagenet_ddp.training import batch_finder, trial_step
from imagenet_ddp.training.batch_finder import MOST, cuda_step, find_batch, largest_batch, smallest

CPU = torch.device("cpu")


@pytest.fixture
def plan(tree: Path) -> Plan:
    """Of a GPU, as far as the search asks."""
    found = plan_of("data=imagefolder", f"data.root={tree}", "data.batch_size=32", "optim.reference_batch=256")
    config = dataclasses.replace(found.config, trainer=dataclasses.replace(found.config.trainer, batch_finder=True))
    return dataclasses.replace(found, config=config, accelerator=Choice("cuda", "the test says so"))


def test_what_is_found_is_as_if_it_was_typed(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_finder, "cuda_step", lambda *_: Device(100))
    alone, job = World(Place(), CPU), Job(plan.config, Path("r"))
    found = find_batch(job, plan, alone)
    assert found.config["data"]["batch_size"] == 96
    assert "trainer.batch_finder: data.batch_size=96 instead of 32." in found.messages[0]
    then = make_plan(found.config, Place(), CPU)
    assert (then.global_batch_size, then.images_per_forward) == (96, 96)
    assert then.learning_rate.value == pytest.approx(plan.learning_rate.value * 3)
    assert "batch_finder" not in trainer_arguments(then), "Lightning knows no such argument"
    assert find_batch(dataclasses.replace(job, checkpoint=Path("last.ckpt")), plan, alone).config == job.config
    monkeypatch.setattr(batch_finder, "cuda_step", lambda *_: Device(7))
    with pytest.raises(ConfigError, match="rank 0 must have enough memory for batches of 8 images"):
        find_batch(job, plan, alone)
    monkeypatch.setattr(batch_finder, "cuda_step", lambda *_: Device(8, RuntimeError("mat1 and mat2")))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        find_batch(job, plan, alone)


def test_the_ranks_agree_on_the_smallest() -> None:
    with FakeRanks(connect(2)) as ranks:
        members = join_all(ranks, 2)
        agreed = call_all(
            ranks, members, lambda group: smallest(World(Place(), CPU, meeting=group), [96, 40][group.number], 60)
        )
        assert [future.result(60) for future in agreed] == [(40, 1), (40, 1)]


def test_without_a_gpu(plan: Plan) -> None:
    on_mps = dataclasses.replace(plan, accelerator=Choice("mps", "an Apple"))
    with pytest.raises(ConfigError, match="needs an NVIDIA or AMD GPU"):
        find_batch(Job(plan.config, Path("r")), on_mps, World(Place(), CPU))
    with pytest.raises(ConfigError) as caught:
        command_line("train", ["trainer.accelerator=cpu", "trainer.batch_finder=true", "++data.batch_size=8"], {})
    assert "trainer.batch_finder=true needs a GPU, whose memory limits the batch, but trainer.accelerator is cpu." in (
        str(caught.value)
    )
    assert any("finds data.batch_size, but ++data.batch_size=8 is set." in str(each) for each in caught.value.mistakes)


def test_cublas_is_deterministic_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    for deterministic, found in (("false", ""), ("true", ":4096:8")):
        for name in ("CUBLAS_WORKSPACE_CONFIG", "OMP_NUM_THREADS"):
            monkeypatch.setenv(name, "")  # and restored at the end
        config = plan_of(f"trainer.deterministic={deterministic}").config
        ranks.plan_process(Job(config, Path()), World(Place(), CPU))
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == found


class Device:
    """A device with memory for so many images."""

    def __init__(self, limit: int, error: Exception | None = None) -> None:
        self.limit, self.tried = limit, list[int]()
        self.error = error or torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")

    def __call__(self, images: int) -> None:
        self.tried.append(images)
        if images > self.limit:
            raise self.error


@pytest.mark.parametrize(("limit", "found"), [(7, 0), (15, 8), (1000, 1000), (10**6, MOST)])
def test_the_largest_multiple_of_8(limit: int, found: int) -> None:
    device = Device(limit)
    assert largest_batch(device) == found
    assert len(device.tried) == len(set(device.tried)) <= 20
    assert all(images % 8 == 0 and 8 <= images <= MOST for images in device.tried)


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


def test_steps_have_the_largest_size_of_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps, and a batch of validation. cuDNN chooses its algorithms as it will in the run. As in Lightning's
    closure, the gradients of a step are in memory until the next loss is computed."""
    seen: list[tuple[int, bool]] = []

    class Seeing(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            seen.append((input.shape[-1], self.weight.grad is not None))
            return super().forward(input.mean((2, 3)))

    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr(trial_step, "create_model", lambda *_: Seeing(3, 10))
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda _: 0)
    sizes = ("data.train_size=64", "data.progressive_start=32", "data.progressive_epochs=[0,2]", "data.image_size=48")
    config = plan_of("data.batch_size=4", "trainer.benchmark=true", *sizes).config
    monkeypatch.setattr(batch_finder, "CLASSES", 10)
    batch_finder._train(config, "32-true", torch.device("cpu"), 0)
    assert seen == [(64, False), (64, True), (48, True)]
    assert torch.backends.cudnn.benchmark
