"""Each tensor that two ranks exchange is on the GPU, where NCCL needs it, and a step exchanges nothing but gradients:
whole trainings of rank 0 on a GPU without values, in torch's process group without peers."""

from collections.abc import Iterator
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

TWO = Place(rank=0, local_rank=0, world_size=2, local_world_size=2)


class Wrapper(DistributedDataParallel):
    """Without the reducer, which reads values. sends: for each call of the net, whether its gradients are sent."""

    sends: list[bool]

    def __init__(self, module: nn.Module, device_ids: list[int], **_: Any) -> None:
        nn.Module.__init__(self)
        self.module, self.device_ids, self.require_backward_grad_sync = module, device_ids, True
        type(self).sends = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        self.sends.append(self.require_backward_grad_sync)
        return self.module(*args, **kwargs)


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch, one_thread: None) -> Iterator[tuple[FakeCuda, list[Any]]]:
    """Yield the GPU, and the arguments of init_process_group."""
    begin, asked = distributed.init_process_group, list[Any]()

    def without_peers(backend: str, *, store: Any, device_id: Any, **arguments: Any) -> None:
        asked.append((backend, device_id))
        begin("cpu:fake,cuda:fake", store=FakeStore(), **arguments)

    monkeypatch.setattr(distributed, "init_process_group", without_peers)
    monkeypatch.setattr(distributed, "broadcast_object_list", lambda *_, **__: None)
    monkeypatch.setattr(ddp, "DistributedDataParallel", Wrapper)
    monkeypatch.setattr(graceful_stop, "EXCHANGE_S", 1e9)  # after the first batch, and then hardly ever
    try:
        with fake_cuda(2) as cuda:
            yield cuda, asked
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


@pytest.mark.parametrize("options", [[], ["trainer.accumulate_grad_batches=2", "averaging=ema"]], ids=["plain", "both"])
def test_a_step_exchanges_nothing_but_gradients(
    group: tuple[FakeCuda, list[Any]], options: list[str], tree: Path, tmp_path: Path
) -> None:
    cuda, asked = group
    plan = gpu_plan(tree, *options, "~callbacks.checkpoint", "~callbacks.batch_sheet", "trainer.devices=2",
                    "trainer.log_every_n_steps=1", place=TWO)  # fmt: skip
    store: Any = distributed.HashStore()
    train(cuda, plan, tmp_path, World(TWO, plan.device, store=store))
    assert asked == [("nccl", torch.device("cuda", 0))], "the device is known before the first collective"
    assert {name: devices for name, _, devices in cuda.collectives if devices != {"cuda"}} == {}
    labels = {step for _, step, _ in cuda.collectives if step}
    steps = {step[1] for step in labels if step[0] == "train"}
    last = len(Wrapper.sends) + 1
    assert steps <= {1, last}, "the stop is agreed on after the first batch, and the means of the epoch at its end"
    assert ("val", 2) not in labels, "a validation exchanges its sums at its end"
    accumulates = "trainer.accumulate_grad_batches=2" in options
    assert Wrapper.sends == [number % 2 == 1 or not accumulates for number in range(len(Wrapper.sends))]
