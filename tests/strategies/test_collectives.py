"""Each tensor that the ranks exchange is on the GPU, where NCCL needs it, and a step exchanges nothing but gradients:
whole trainings of rank 0 of two, with validation, on a GPU without values (helpers/fake_cuda.py), in torch's process
group without peers. test_ddp.py counts what DistributedDataParallel itself exchanges, over Gloo."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.fake_cuda import FakeCuda, fake_cuda
from helpers.fake_cuda_runs import gpu_plan, train
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

from imagenet_ddp.callbacks import graceful_stop
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.launch.world import World
from imagenet_ddp.strategies import ddp

# Lightning's, which a command hides: the metrics sum over the ranks by themselves
pytestmark = pytest.mark.filterwarnings("ignore:.*sync_dist=True")

TWO = Place(rank=0, local_rank=0, world_size=2, local_world_size=2)
NUM_BATCHES = 8  # of 29 images, 2 on each rank
NUM_VAL_BATCHES = 3  # of 11 images


class Wrapper(DistributedDataParallel):
    """Stand in for DistributedDataParallel, whose reducer needs values. sends: for each call of the net, whether its
    gradients would be sent."""

    sends: list[bool]

    def __init__(self, module: nn.Module, device_ids: list[int], **_: Any) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids = module, device_ids
        self.require_backward_grad_sync = self.static_graph = True

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.sends.append(self.require_backward_grad_sync)
        return self.module(*args, **kwargs)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    begin, exchange = distributed.init_process_group, graceful_stop._Exchange.highest

    def without_peers(backend: str, *, store: Any, device_id: Any, **arguments: Any) -> None:
        assert (backend, device_id) == ("nccl", torch.device("cuda", 0)), "known before the first collective"
        begin("cpu:fake,cuda:fake", store=FakeStore(), **arguments)

    def once(self: Any, numbers: tuple[int, int], device: torch.device) -> tuple[int, int]:
        exchange(self, numbers, device)
        self._wanted = 10**9  # batches up to the next exchange, which would be read from the GPU, as the numbers are
        return numbers

    monkeypatch.setattr(distributed, "init_process_group", without_peers)
    monkeypatch.setattr(distributed, "broadcast_object_list", lambda *_, **__: None)
    monkeypatch.setattr(ddp, "DistributedDataParallel", Wrapper)
    monkeypatch.setattr(Wrapper, "sends", [], raising=False)
    monkeypatch.setattr(graceful_stop._Exchange, "highest", once)
    with fake_cuda(2) as made:
        yield made


def train_rank_0(
    cuda: FakeCuda, tree: Path, folder: Path, *options: str, change: Callable[[Any], None] = lambda run: None
) -> None:
    """Train for an epoch of two ranks, and validate."""
    plan = gpu_plan(tree, *options, "data.batch_size=2", "trainer.devices=2", "trainer.log_every_n_steps=1",
                    "~callbacks.checkpoint", "~callbacks.batch_sheet", place=TWO)  # fmt: skip
    store: Any = distributed.HashStore()
    train(cuda, plan, folder, World(TWO, plan.device, store=store), change)


def around_the_steps(first: int = 1) -> set[Any]:
    """Return the labels (fake_cuda.Steps) of what may be exchanged: the ranks agree on stops after the first update,
    and on the sums of the epoch at its end; a validation begins with rank 0's buffers, and ends with the sums of all
    ranks. first: the batch of that update."""
    of_epoch = {("train", first), ("train", NUM_BATCHES + 1), "end"}
    return {None, *of_epoch, ("val", 1), ("val", NUM_VAL_BATCHES + 1)}


def not_on_the_gpu(cuda: FakeCuda) -> list[Any]:
    return [each for each in cuda.collectives if each[2] != {"cuda"}]


def steps(cuda: FakeCuda) -> set[Any]:
    return {step for _, step, _ in cuda.collectives}


@pytest.mark.parametrize("accumulated", [1, pytest.param(2, marks=pytest.mark.slow(3))])
def test_a_step_exchanges_nothing_but_gradients(cuda: FakeCuda, accumulated: int, tree: Path, tmp_path: Path) -> None:
    averaging = ["averaging=ema"] if accumulated > 1 else []
    train_rank_0(cuda, tree, tmp_path, f"trainer.accumulate_grad_batches={accumulated}", *averaging)
    assert not_on_the_gpu(cuda) == []
    assert steps(cuda) == around_the_steps(accumulated)
    assert Wrapper.sends == [number % accumulated == 0 for number in range(1, NUM_BATCHES + 1)]


@pytest.mark.slow(2)
def test_a_further_collective_and_a_tensor_of_the_cpu_are_found(cuda: FakeCuda, tree: Path, tmp_path: Path) -> None:
    further = {("train", 3): torch.zeros(3, device="cuda"), ("train", 5): torch.zeros(3)}

    def in_forward(*_: Any) -> None:
        if (value := further.get(cuda.step)) is not None:
            distributed.all_reduce(value)

    def change(run: Any) -> None:
        run.module.net.register_forward_hook(in_forward)

    train_rank_0(cuda, tree, tmp_path, change=change)
    assert not_on_the_gpu(cuda) == [("allreduce_", ("train", 5), {"cpu"})]
    assert steps(cuda) == around_the_steps() | further.keys()
