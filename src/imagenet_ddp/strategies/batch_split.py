"""Split a batch over the devices of one process, for strategy=dp and strategy=balanced_dp. Does not import torch.

data.batch_size is the number of images per device, as with every other strategy. One forward pass of the whole process
has `images_per_forward()` images. This number is fixed before the run starts, because the learning rate, the steps per
epoch and the checkpoints depend on it. strategy.first_device_batch changes the number: with data.batch_size=3 on three
devices, strategy.first_device_batch=2 results in 2 + 3 + 3 = 8 images.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.config.validators import integer
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting, without

DATA_PARALLEL = ("dp", "balanced_dp")


def num_processes(strategy: StrategyConfig, num_devices: int) -> int:
    """Return the number of processes that use this many devices of one machine."""
    return 1 if strategy.name in DATA_PARALLEL else num_devices


def images_per_forward(strategy: StrategyConfig, batch_size: int, num_devices: int) -> int:
    """Return the images per forward pass of a process, which is batch_size if each device has its own process.

    Raises ConfigError if the number is 0.
    """
    if strategy.name not in DATA_PARALLEL:
        return batch_size
    first = first_device_images(strategy, batch_size, num_devices)
    num_images = (batch_size if first is None else first) + (num_devices - 1) * batch_size
    if num_images == 0:
        key = "strategy.first_device_batch"
        what = f"{key}=0 uses the first device only for gathering, which needs two devices or more, but there is 1"
        ways = setting("trainer.devices=2"), without(key)
        raise ConfigError(Mistake(what, (key, "trainer.devices"), ways))
    return num_images


def split_update(config: CommonConfig, num_devices: int, world_size: int, wanted: int | None) -> tuple[int, int, str]:
    """Return (images per device and forward pass, forward passes per update of the weights, reason).

    num_devices: number of devices of each process. wanted: number of images per update, which is reached with the
    largest batch up to data.batch_size that divides it. If no batch divides it, or wanted is None, both numbers stay as
    set.
    """
    strategy, most, times = config.strategy, config.data.batch_size, config.trainer.accumulate_grad_batches
    if wanted in (None, images_per_forward(strategy, most, num_devices) * world_size * times):
        return most, times, "as set"
    one_forward = strategy.static_graph  # torch's static graph does not work with accumulate_grad_batches > 1
    for size in range(most, 0, -1):
        forwards, rest = divmod(wanted, images_per_forward(strategy, size, num_devices) * world_size)
        if not rest and (forwards == 1 or not one_forward):
            return size, forwards, f"it keeps the {wanted} images per update from before the resume"
    reason = f"{wanted} images cannot be split evenly among these devices" + " without accumulation" * one_forward
    return most, times, reason


def with_accumulation(trainer: TrainerConfig, forwards: int) -> TrainerConfig:
    """Return trainer.* with this number of forward passes per update of the weights.

    Options that count forward passes are scaled so that they mean the same number of updates and images as before.
    """
    times = trainer.accumulate_grad_batches

    def scaled(number: Any) -> Any:
        return -(-number * forwards // times) if integer(1).accepts(number) else number

    return replace(
        trainer,
        accumulate_grad_batches=forwards,
        limit_train_batches=scaled(trainer.limit_train_batches),
        val_check_interval=scaled(trainer.val_check_interval),
    )


def first_device_images(strategy: StrategyConfig, batch_size: int, num_devices: int) -> int | None:
    """Return the number of images on the first device in a full forward pass; None for dp, which splits evenly.

    The number is half of batch_size if strategy.first_device_batch is null and there are other devices.
    """
    if strategy.name != "balanced_dp":
        return None
    if strategy.first_device_batch is not None:
        return int(strategy.first_device_batch)
    return batch_size if num_devices == 1 else max(1, batch_size // 2)


def split_batch(num_images: int, num_devices: int, first: int | None, full: int) -> list[int]:
    """Return the number of images for each device. Devices with 0 images are not called.

    first: None for dp, which splits as nn.DataParallel does (torch.chunk), into equal parts that are rounded up, until
    no image is left. For example, 5 images on 4 devices are split into 2 + 2 + 1 + 0. Otherwise, `first` is the number
    of images on the first device in a forward pass of `full` images. With any other number of images, the first device
    receives the same proportion, rounded to the nearest image, and the shares of the other devices differ by at most 1.
    """
    if num_devices == 1:
        return [num_images]
    if first is None:
        part = -(-num_images // num_devices)
        return [max(0, min(part, num_images - device * part)) for device in range(num_devices)]
    own = (2 * first * num_images + full) // (2 * full)
    share, rest = divmod(num_images - own, num_devices - 1)
    return [own] + [share + (device < rest) for device in range(num_devices - 1)]


def describe(strategy: StrategyConfig, batch_size: int, num_devices: int, accumulate: int) -> list[str]:
    """Return the log lines of a run with dp or balanced_dp; [] for other strategies."""
    if strategy.name not in DATA_PARALLEL:
        return []
    if num_devices == 1:
        return ["Split: none for one device."]
    full = images_per_forward(strategy, batch_size, num_devices)
    sizes = split_batch(full, num_devices, first_device_images(strategy, batch_size, num_devices), full)
    split = f"Split: {_sum(sizes)} images per forward pass"
    if accumulate > 1:
        in_update = _sum([accumulate * each for each in sizes])
        split += f" and, with {accumulate} passes per update, {in_update} images per update"
    ddp = (
        f"strategy=ddp is usually faster than strategy={strategy.name}, in which one Python process drives all "
        "devices and copies the weights to them in every forward pass."
    )
    return [f"{split}.", ddp]


def _sum(sizes: Sequence[int]) -> str:
    return f"{' + '.join(map(str, sizes))} = {sum(sizes)}"
