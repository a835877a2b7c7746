"""On the CPU everywhere; where two GPUs or more are there, the same numbers against nn.DataParallel itself."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import lightning.pytorch as L
import pytest
import torch
import torch.nn.functional as F
from helpers.in_memory import Images
from torch import Tensor, nn

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.models.lightning_module import ImageClassifier
from imagenet_ddp.strategies import batch_split, data_parallel
from imagenet_ddp.strategies.data_parallel import DataParallelStrategy, Replicas, make_data_parallel
from imagenet_ddp.strategies.ddp import DetectedEnvironment

CPU = torch.device("cpu")
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")


def make_net() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))


def replicas_of(net: nn.Module, num_devices: int, first: int | None = None, full: int = 8) -> Replicas:
    return Replicas(net, [CPU] * num_devices, first, full)


def images_of(num_images: int, seed: int = 0) -> Tensor:
    return torch.randn(num_images, 3, 6, 6, generator=torch.Generator().manual_seed(seed))


# ---- the replicas --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_images", [1, 29])
@pytest.mark.parametrize(("num_devices", "first", "full"), [(3, None, 0), (3, 2, 8), (3, 0, 6)])
def test_gradients_are_those_of_one_device(num_images: int, num_devices: int, first: int | None, full: int):
    """Batch norm in eval mode, where no image's result depends on another's."""
    images, target = images_of(num_images), torch.arange(num_images) % 5
    net = make_net().eval()
    parameters = list(net.parameters())
    expected = torch.autograd.grad(F.cross_entropy(net(images), target), parameters)
    replicas = replicas_of(net, num_devices, first, full)
    logits = replicas(images)
    torch.testing.assert_close(logits, net(images), rtol=0, atol=1e-6)
    found = torch.autograd.grad(F.cross_entropy(logits, target), parameters)
    for mine, its in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, its, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("first", "kept"), [(None, slice(0, 3)), (2, slice(0, 2)), (0, slice(0, 4))])
def test_running_statistics_are_those_of_the_first_replica_called(first: int | None, kept: slice):
    """By hand: running = 0.9 of itself + 0.1 of the part's mean and unbiased variance, over images and pixels."""
    net = make_net().train()
    norm: Any = net[1]  # type: ignore[index]
    full = {None: 0, 2: 8, 0: 8}[first]
    replicas = replicas_of(net, 3, first, full)
    mean, var = torch.zeros(4), torch.ones(4)
    for step in range(3):
        images = images_of(8, seed=step)
        with torch.no_grad():
            maps = net[0](images[kept])  # type: ignore[index]
        mean = 0.9 * mean + 0.1 * maps.mean((0, 2, 3))
        var = 0.9 * var + 0.1 * maps.transpose(0, 1).flatten(1).var(1)
        replicas(images)
        torch.testing.assert_close(norm.running_mean, mean)
        torch.testing.assert_close(norm.running_var, var)
        assert norm.num_batches_tracked.item() == step + 1


class StateProbe(nn.Module):
    """Record the dtype that each call computes in, and the modes that surround it."""

    calls: ClassVar[list[tuple[Any, ...]]] = []  # of all replicas

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.calls.clear()

    def forward(self, images: Tensor) -> Tensor:
        logits = self.linear(images)
        self.calls.append((logits.dtype, torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return logits


@pytest.mark.parametrize(("dtype", "inference"), [(torch.bfloat16, False), (None, True)])
@pytest.mark.parametrize("threaded", [False, True])
def test_every_replica_computes_in_the_mode_of_the_caller(dtype: torch.dtype | None, inference: bool, threaded: bool):
    """threaded: calls as torch's parallel_apply makes them on GPUs, which sets autocast's default dtype."""
    net = StateProbe()

    def in_thread(call: Callable[[Tensor], Tensor]) -> Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            return call(torch.rand(2, 2))

    mode = torch.inference_mode(inference)
    with mode, torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        if threaded:
            with ThreadPoolExecutor(3) as pool:
                list(pool.map(in_thread, [data_parallel._in_this_state(net, "cpu")] * 3))
        else:
            logits = replicas_of(net, 3)(torch.rand(6, 2))
            assert logits.dtype == (dtype or torch.float32)
    assert net.calls == [(dtype or torch.float32, not inference, inference)] * 3


# ---- in Lightning's hands ------------------------------------------------------------------------------------------


class Fixed(nn.BatchNorm2d):
    """Batch norm in eval mode all along: no image's result depends on another's."""

    def forward(self, input: Tensor) -> Tensor:
        return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias)


@pytest.mark.parametrize(
    ("num_train", "name", "first", "precision", "tolerance"),
    [(29, "dp", None, "bf16-mixed", 5e-2), (31, "balanced_dp", 1, "32-true", 1e-5)],
)
def test_training_is_that_of_one_device(num_train: int, name: str, first: int | None, precision: Any, tolerance: float):
    """With last batches that do not divide, and are smaller than the devices are many."""
    num_devices, found, config = 4, [], StrategyConfig(name, first_device_batch=first)
    loaded = batch_split.images_per_forward(config, 2, num_devices)
    strategy: Any
    for strategy in ("auto", make_data_parallel(config, "cpu", num_devices, 2)):
        net: Any = make_net()
        net[1] = Fixed(4)
        classifier = ImageClassifier(
            net, 5, 11, make_optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9), seed=0
        )
        trainer = L.Trainer(
            accelerator="cpu", devices=1, max_epochs=2, strategy=strategy, precision=precision, logger=False,
            plugins=[DetectedEnvironment(Place())], use_distributed_sampler=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, num_sanity_val_steps=0,
        )  # fmt: skip
        trainer.fit(classifier, datamodule=Images(num_train, 11, loaded, size=6, fill_to=2))
        metrics = {key: value.item() for key, value in trainer.callback_metrics.items()}
        found.append((metrics, classifier.state_dict(), classifier.counted.compute(), trainer.global_step))
        assert (trainer.world_size, trainer.global_rank, trainer.is_global_zero) == (1, 0, True)
    (metrics, weights, *counts), (its_metrics, its_weights, *its_counts) = found
    assert counts == its_counts
    assert counts[0] == (11, 1)
    assert list(weights) == list(its_weights)
    assert any(key.startswith("net.") for key in weights)
    assert metrics == pytest.approx(its_metrics, abs=tolerance)
    if precision != "bf16-mixed":
        assert (metrics["val/top1"], metrics["val/top5"]) == (its_metrics["val/top1"], its_metrics["val/top5"])
    for key, value in weights.items():
        torch.testing.assert_close(value, its_weights[key], rtol=0, atol=tolerance)


def test_the_devices_are_those_of_the_list():
    strategy = make_data_parallel(StrategyConfig("dp"), "cuda", [2, 0], 8)
    assert isinstance(strategy, DataParallelStrategy)
    assert strategy.devices == [torch.device("cuda", 2), torch.device("cuda", 0)]
    assert strategy.root_device == torch.device("cuda", 2)


# ---- on GPUs, against nn.DataParallel ------------------------------------------------------------------------------


def gpus() -> list[torch.device]:
    return [torch.device("cuda", number) for number in range(torch.cuda.device_count())]


@pytest.mark.cuda
@two_gpus
@pytest.mark.parametrize("num_images", [1, 29])
def test_on_gpus_it_is_nn_data_parallel(num_images: int):
    mine, its = make_net().to(gpus()[0]).train(), make_net().to(gpus()[0]).train()
    replicas, reference = Replicas(mine, gpus()), nn.DataParallel(its)
    for step in range(3):
        images = images_of(num_images, seed=step).to(gpus()[0])
        target = (torch.arange(num_images) % 5).to(gpus()[0])
        for net, call in ((mine, replicas), (its, reference)):
            net.zero_grad()
            F.cross_entropy(call(images), target).backward()
        for one, other in zip(mine.parameters(), its.parameters(), strict=True):
            torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=1e-6)
        for one, other in zip(mine.buffers(), its.buffers(), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=1e-6)
