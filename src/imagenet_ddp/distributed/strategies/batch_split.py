"""Split a batch over the devices of one process, for strategy=dp and strategy=balanced_dp. No torch.

data.batch_size is per device, as everywhere. One forward of the whole process takes `images_per_forward()` images; this
number is fixed before anything runs, because learning rate, steps per epoch and checkpoints depend on it.
strategy.first_device_batch changes it: 2 with data.batch_size=3 on three devices gives 2 + 3 + 3 = 8 images.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.config.validators import integer, shown
from imagenet_ddp.errors import ConfigError

DATA_PARALLEL = ("dp", "balanced_dp")
_OWN_KEYS = {"name", "first_device_batch"}  # the other keys of strategy.* are ddp's


def num_processes(strategy: Mapping[str, Any], num_devices: int) -> int:
    """Return the number of processes that use this many devices of one machine."""
    return 1 if strategy["name"] in DATA_PARALLEL else num_devices


def images_per_forward(strategy: Mapping[str, Any], batch_size: int, num_devices: int) -> int:
    """Return the images per forward of a process: batch_size if each device has its own process.

    Raises ConfigError if there are none.
    """
    if strategy["name"] not in DATA_PARALLEL:
        return batch_size
    first = first_device_images(strategy, batch_size, num_devices)
    num_images = (batch_size if first is None else first) + (num_devices - 1) * batch_size
    if num_images == 0:
        raise ConfigError(_needs_two_devices(num_devices))
    return num_images


def split_update(
    config: Mapping[str, Any], num_devices: int, world_size: int, wanted: int | None, whose: str = ""
) -> tuple[int, int, str]:
    """Return (images per device and forward, forwards per update of the weights, why).

    num_devices: of each process. wanted: images per update, to be reached with the largest batch up to data.batch_size
    that divides them; if none does, or wanted is None, both numbers stay as set. whose: the wanted number, in words.
    """
    strategy, most = config["strategy"], config["data"]["batch_size"]
    times = config["trainer"]["accumulate_grad_batches"]
    if wanted in (None, images_per_forward(strategy, most, num_devices) * world_size * times):
        return most, times, "as set"
    # neither torch's static graph nor Lightning's schedule of accumulation goes with one of the Trainer
    one_forward = strategy["static_graph"] or "GradientAccumulationScheduler" in str(config["callbacks"])
    for size in range(most, 0, -1):
        forwards, rest = divmod(wanted, images_per_forward(strategy, size, num_devices) * world_size)
        if not rest and (forwards == 1 or not one_forward):
            return size, forwards, f"it keeps the {wanted} images per step {whose}"
    return most, times, f"{wanted} do not divide among these devices" + " without accumulation" * one_forward


def with_accumulation(trainer: Mapping[str, Any], forwards: int) -> dict[str, Any]:
    """Return trainer.* with so many forwards per update of the weights. Options that count forwards are scaled, so that
    they stand for as many updates, and so images, as before."""
    times, counted = trainer["accumulate_grad_batches"], ("limit_train_batches", "val_check_interval")
    given = {key: trainer[key] for key in counted if integer(1).accepts(trainer[key])}
    return {
        **trainer,
        "accumulate_grad_batches": forwards,
        **{key: -(-number * forwards // times) for key, number in given.items()},
    }


def first_device_images(strategy: Mapping[str, Any], batch_size: int, num_devices: int) -> int | None:
    """Return the first device's images in a full forward; None for dp, which splits evenly.

    Half of batch_size if strategy.first_device_batch is null and there are other devices.
    """
    if strategy["name"] != "balanced_dp":
        return None
    if strategy["first_device_batch"] is not None:
        return int(strategy["first_device_batch"])
    return batch_size if num_devices == 1 else max(1, batch_size // 2)


def split_batch(num_images: int, num_devices: int, first: int | None, full: int) -> list[int]:
    """Return the number of images of each device; devices with 0 are not called.

    first: None for dp, which splits as nn.DataParallel does (torch.chunk): equal parts, rounded up, until nothing is
    left, so 5 images on 4 devices are 2 + 2 + 1 + 0. Otherwise, the first device's images in a forward of `full`
    images: of any other number it takes the same proportion, to the nearest image, and the shares of the other devices
    differ by at most 1.
    """
    if num_devices == 1:
        return [num_images]
    if first is None:
        part = -(-num_images // num_devices)
        return [max(0, min(part, num_images - device * part)) for device in range(num_devices)]
    own = (2 * first * num_images + full) // (2 * full)
    share, rest = divmod(num_images - own, num_devices - 1)
    return [own] + [share + (device < rest) for device in range(num_devices - 1)]


def split_sentence(sizes: Sequence[int], accumulate: int = 1) -> str:
    """Format the sum of a full forward. sizes: per device."""
    if len(sizes) == 1:
        return "Split: none, one device."
    text = f"Split: {_sum(sizes)} images per forward"
    if accumulate > 1:
        times = {2: "twice"}.get(accumulate, f"{accumulate} times")
        text += f"; with accumulation {accumulate} {times} that: {_sum([accumulate * size for size in sizes])} per step"
    return text + "."


def describe(
    strategy: Mapping[str, Any], batch_size: int, num_devices: int, accumulate: int, on_cpu: bool
) -> list[str]:
    """Return the log lines of a run with dp or balanced_dp; none for other strategies."""
    if strategy["name"] not in DATA_PARALLEL:
        return []
    full = images_per_forward(strategy, batch_size, num_devices)
    first = first_device_images(strategy, batch_size, num_devices)
    lines = [split_sentence(split_batch(full, num_devices, first, full), accumulate)]
    if num_devices == 1:
        return lines
    lines.append(
        f"strategy={strategy['name']}: strategy=ddp is usually faster. Here every forward copies the weights to all"
        " devices, one Python process drives them all, and the first device gathers the outputs and alone computes"
        " the loss and the step. Its advantages: one process, so one copy of the data and one loader, no"
        " process group and no ports, and it works in a notebook."
    )
    if on_cpu:
        lines.append("On a CPU the replicas are threads over the same memory: a rehearsal, not a gain in speed.")
    return lines


def validate(
    strategy: Mapping[str, Any],
    trainer: Mapping[str, Any],
    num_devices: int | None = None,
) -> list[str]:
    """Return errors in those strategy.* keys that dp and balanced_dp read or cannot honour.

    num_devices: None if only torch can tell; `images_per_forward()` checks again.
    """
    name, first = strategy["name"], strategy["first_device_batch"]
    errors: list[str] = []
    if name != "balanced_dp" and integer(0).accepts(first):
        errors.append(
            f"strategy.first_device_batch={first} is for strategy=balanced_dp, but the strategy is {name}."
            " Hint: strategy=balanced_dp, or leave it out."
        )
    if name not in DATA_PARALLEL:
        return errors
    if name == "balanced_dp" and integer(0, 0).accepts(first) and num_devices == 1:
        errors.append(_needs_two_devices(num_devices))
    num_nodes = trainer.get("num_nodes")
    if integer(2).accepts(num_nodes):
        errors.append(
            f"strategy={name} runs in one process, but trainer.num_nodes is {num_nodes}."
            " Hint: strategy=ddp, or trainer.num_nodes=1."
        )
    if trainer.get("sync_batchnorm") is True:
        errors.append(
            f"trainer.sync_batchnorm=true is for strategy=ddp, but the strategy is {name}: of its batch-norm"
            " statistics, those of the first replica count. Hint: trainer.sync_batchnorm=false, or strategy=ddp."
        )
    defaults = {field.name: field.default for field in fields(StrategyConfig) if field.name not in _OWN_KEYS}
    typed = [f"strategy.{key}={shown(strategy[key])}" for key in defaults if strategy[key] != defaults[key]]
    if typed:
        is_for, it = ("is", "it") if len(typed) == 1 else ("are", "them")
        errors.append(
            f"{', '.join(typed)} {is_for} for strategy=ddp, but the strategy is {name}, which has no process group."
            f" Hint: leave {it} out, or strategy=ddp."
        )
    return errors


def _needs_two_devices(num_devices: int) -> str:
    return (
        "strategy.first_device_batch=0 keeps the first device for gathering, which needs two devices or more, and"
        f" there is {num_devices}. Hint: trainer.devices=2, or leave strategy.first_device_batch out."
    )


def _sum(sizes: Sequence[int]) -> str:
    return f"{' + '.join(map(str, sizes))} = {sum(sizes)}"
