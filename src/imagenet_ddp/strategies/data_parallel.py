"""Train in one process with the batch split over its devices, as with nn.DataParallel.

This module implements strategy=dp and strategy=balanced_dp, because Lightning 2 has no such strategy.

Only the net runs in parallel. Loss and metrics are computed once, on the gathered outputs, so gradient, top-1 and top-5
equal those of one device on the whole batch. The replicas are kept outside the module registry, so a checkpoint has the
same keys as with every other strategy.

Each forward pass works as in nn.DataParallel: parameters and buffers are copied to every device that has images, one
thread per device calls its replica, and the outputs are gathered on the first device. Batch norm normalises each
device's part separately. The running statistics of the first replica that is called are kept, and the updates of the
other replicas are dropped. That replica is on the first device, unless the share of the first device is 0. On a CPU,
the replicas use the same parameters and are called one after the other.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn
from torch.nn.parallel import parallel_apply, replicate

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.strategies import batch_split


class DataParallelStrategy(SingleDeviceStrategy):
    """Strategy for one process that has its module on the first device and calls the net on all devices.

    The LightningModule must have its net as `net` and call it as `self.call_net(images)`, with the images along the
    first dimension and one tensor as output.

    first: number of images on the first device in a forward pass of full_batch images; None splits as nn.DataParallel
    does.
    """

    def __init__(self, devices: list[torch.device], first: int | None, full_batch: int):
        super().__init__(devices[0])  # pyright: ignore[reportUnknownMemberType]
        self.devices, self._first, self._full_batch = devices, first, full_batch

    def model_to_device(self) -> None:
        """Replicate the net, after it has its final dtype and is on the first device."""
        super().model_to_device()
        model: Any = self.model
        replicas = Replicas(model.net, self.devices, self._first, self._full_batch)
        vars(model)["call_net"] = replicas  # this is not a module, so it adds no keys to a checkpoint

    def teardown(self) -> None:
        if self.lightning_module is not None:
            vars(self.lightning_module).pop("call_net", None)
        super().teardown()


class Replicas:
    """Call the net on all devices.

    GPUs compute at once. Each has its own generator of random numbers (dropout), which each forward pass seeds from the
    CPU's generator, so that a resumed run draws the same numbers.
    """

    def __init__(self, net: nn.Module, devices: list[torch.device], first: int | None = None, full: int = 1):
        """Prepare to call the net on these devices. first, full: as in `split_batch`."""
        self.net, self.devices, self._first, self._full = net, devices, first, full

    def sizes(self, num_images: int) -> list[int]:
        """Return the number of images per device."""
        return batch_split.split_batch(num_images, len(self.devices), self._first, self._full)

    def __call__(self, images: Tensor) -> Tensor:
        sizes = self.sizes(len(images))
        called = [device for device, size in enumerate(sizes) if size]
        if called in ([], [0]):
            return self.net(images)
        replicas = self._replicate(called)
        parts: Sequence[Tensor] = torch.split(images, [sizes[device] for device in called])
        root = self.devices[0]
        calls = [_in_this_state(replica, root.type) for replica in replicas]
        if root.type == "cpu":
            outputs = [call(part) for call, part in zip(calls, parts, strict=True)]
        else:
            if self.net.training:
                self._seed_gpus()
            devices = [self.devices[device] for device in called]
            parts = [part.to(device, non_blocking=True) for part, device in zip(parts, devices, strict=True)]
            outputs = parallel_apply(calls, parts, None, devices)  # type: ignore[arg-type]  # any callables
        if called[0] != 0 and self.net.training:
            with torch.no_grad():
                for kept, updated in zip(self.net.buffers(), replicas[0].buffers(), strict=True):
                    kept.copy_(updated)
        return torch.cat([output.to(root, non_blocking=True) for output in outputs])

    def _replicate(self, called: list[int]) -> list[nn.Module]:
        """Return the replicas for these devices.

        The first device uses the net itself or, on GPUs, a copy that shares the memory of the net.
        """
        if self.devices[0].type == "cpu":
            return [self.net if device == 0 else _twin(self.net) for device in called]
        numbers = [0, *(device for device in called if device)]  # replicate() copies from the first device
        copies = replicate(self.net, [self.devices[number] for number in numbers], detach=not torch.is_grad_enabled())
        return copies if called[0] == 0 else copies[1:]

    def _seed_gpus(self) -> None:
        seeds: list[int] = torch.randint(2**62, (len(self.devices),)).tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        for device, seed in list(zip(self.devices, seeds, strict=True))[1:]:
            torch.cuda.default_generators[device.index].manual_seed(seed)


def _in_this_state(replica: nn.Module, kind: str) -> Any:
    """Return a function that calls the replica in this thread's gradient, inference and autocast modes.

    torch's parallel_apply passes on neither inference mode nor autocast's dtype: its replicas would compute in float16
    even if bfloat16 is set.
    """
    grad, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    dtype, enabled = torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    def call(images: Tensor) -> Tensor:
        # replicas would share the cache of converted weights, and sum gradients in the cache's dtype
        autocast = torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=False)
        with torch.inference_mode(inference), torch.set_grad_enabled(grad), autocast:
            return replica(images)

    return call


def _twin(net: nn.Module) -> nn.Module:
    """Copy the net, sharing its parameters but not its buffers."""
    return copy.deepcopy(net, {id(parameter): parameter for parameter in net.parameters()})


def make_data_parallel(
    strategy: StrategyConfig, kind: str, devices: int | list[int], batch_size: int
) -> DataParallelStrategy | str:
    """Return the strategy, or "auto" (Lightning's strategy for a single device) if there is nothing to split.

    strategy: that of dp or balanced_dp. kind: cpu, cuda or mps. devices: number of devices,
    or a list of device numbers.
    """
    numbers = devices if isinstance(devices, list) else list(range(devices))
    if len(numbers) == 1:
        return "auto"
    own_devices = [torch.device("cpu") if kind == "cpu" else torch.device(kind, number) for number in numbers]
    return DataParallelStrategy(
        own_devices,
        batch_split.first_device_images(strategy, batch_size, len(own_devices)),
        batch_split.images_per_forward(strategy, batch_size, len(own_devices)),
    )
