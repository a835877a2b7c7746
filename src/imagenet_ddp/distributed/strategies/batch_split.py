"""How strategy=dp and strategy=balanced_dp split a batch over the devices of one process. No torch here.

data.batch_size is per device, as everywhere: one forward of the whole process takes `loaded()` images, a number that
is known before anything runs and never changes, because learning rate, steps per epoch and checkpoints follow from it.
So strategy.first_device_batch=auto does not change the total: it finds how many of data.batch_size × devices images
the first device takes, and the others share what is left. A given number does: 2 with data.batch_size=3 on three
devices is 2 + 3 + 3 = 8 images.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, Protocol

from imagenet_ddp.config.schema import StrategyConfig
from imagenet_ddp.config.validators import integer, shown
from imagenet_ddp.errors import ConfigError

MIB = 2**20
NAMES = ("dp", "balanced_dp")
_OWN = {"name", "first_device_batch"}  # the other keys of strategy.* are ddp's


def processes(strategy: Mapping[str, Any], num_devices: int) -> int:
    """Processes that drive so many devices of one machine."""
    return 1 if strategy["name"] in NAMES else num_devices


def loaded(strategy: Mapping[str, Any], batch_size: int, num_devices: int) -> int:
    """Images one forward of a whole process takes: where each device has a process of its own, batch_size. Raises
    ConfigError where that is none."""
    if strategy["name"] not in NAMES:
        return batch_size
    first = first_share(strategy, batch_size)
    num_images = (batch_size if first is None else first) + (num_devices - 1) * batch_size
    if num_images == 0:
        raise ConfigError(_one_device_gathers(num_devices))
    return num_images


def first_share(strategy: Mapping[str, Any], batch_size: int) -> int | None:
    """Images of the first device in a full forward; None: dp, which splits by its own rule. auto begins evenly."""
    if strategy["name"] != "balanced_dp":
        return None
    first = strategy["first_device_batch"]
    return batch_size if first == "auto" else int(first)


def shares(num_images: int, num_devices: int, first: int | None, full: int) -> list[int]:
    """Images per device; devices with 0 are not called.

    first: None for dp, which cuts as nn.DataParallel does (torch.chunk): equal parts, rounded up, until nothing is
    left, so that 5 images on 4 devices are 2 + 2 + 1 + 0. Else the first device's images of a forward of `full`
    images; of any other number it takes the same proportion, to the nearest image, and the other devices' shares
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


def equal_peaks(num_devices: int, full: int, even: Sequence[float], fewer: Sequence[float]) -> int | None:
    """The first device's share of `full` images with which its memory peak equals the others'; None where the two
    measurements do not tell. even, fewer: peaks in bytes per device, with an even split and with half of that on the
    first.

    The first device's peak grows by a fixed amount per image, which the two measurements give; the others' by the
    same: the net is the same. Never more than an even share.
    """
    most = full // num_devices
    per_image = (even[0] - fewer[0]) / max(1, most - most // 2)
    if per_image <= 0:
        return None
    others = max(shares(full, num_devices, most, full)[1:])
    more = (even[0] - per_image * most) - (max(even[1:]) - per_image * others)  # bytes that only the first device keeps
    return max(0, min(most, int((full - (num_devices - 1) * more / per_image) / num_devices)))


class Memory(Protocol):
    """Peak memory per device since the last reset, in bytes."""

    def reset(self) -> None: ...

    def peaks(self) -> list[int]: ...


class FirstShare:
    """How many images of a full forward the first device takes.

    auto, where there is a memory to read (GPUs): over the first four optimiser steps the peaks of all devices are
    compared with an even split (second step: the first one makes the optimiser's state) and with half of it on the
    first device (fourth step: the third one tries out kernels for the new sizes). From these follows the share with
    which the peaks are equal; it then stays. A step with a smaller batch, or with a validation in its middle, is
    repeated. What is found depends on the GPUs' memory, not on the seed: a run that must be repeated exactly names the
    number. Without a memory to read (CPU): an even split.
    """

    STEPS = ((False, False), (False, True), (True, False), (True, True))  # half on the first?, read the peaks?

    def __init__(
        self,
        num_devices: int,
        first: int | Literal["auto"],
        full: int | None,
        memory: Memory | None,
        say: Callable[[str], None],
    ):
        """full: images of a full forward; None: those of the first training batch."""
        self._num_devices, self._first, self._full, self._memory, self._say = num_devices, first, full, memory, say
        self._steps_left = list(self.STEPS) if first == "auto" and memory else []
        self._read: list[list[int]] = []
        self._forwards = 0  # of this step, in training
        self._spoilt = False

    def of(self, num_images: int, training: bool) -> tuple[int, int]:
        """(first, full) for a forward of so many images, as `shares` takes them."""
        if self._full is None:
            if not training:
                return 1, self._num_devices  # an even split
            self._full = num_images
        even = self._full // self._num_devices
        if self._steps_left:
            assert self._memory
            if training and not self._forwards:
                self._memory.reset()
            self._forwards += training
            self._spoilt |= self._forwards > 0 and (not training or num_images != self._full)
            return even // 2 if self._steps_left[0][0] else even, self._full
        return even if self._first == "auto" else int(self._first), self._full

    def end_step(self) -> None:
        """After each optimiser step."""
        if not self._steps_left or not self._forwards:
            return
        spoilt, self._spoilt, self._forwards = self._spoilt, False, 0
        if spoilt:
            return
        if self._steps_left.pop(0)[1]:
            assert self._memory
            self._read.append(self._memory.peaks())
        if not self._steps_left:
            self._decide()

    def _decide(self) -> None:
        assert self._full is not None
        even = self._full // self._num_devices
        first = equal_peaks(self._num_devices, self._full, *self._read)
        self._first = even if first is None else first
        peaks = [", ".join(f"{peak / MIB:.0f}" for peak in read) for read in self._read]
        why = " The peaks do not tell: an even split." if first is None else ""
        self._say(
            f"strategy.first_device_batch=auto: memory peaks in MiB per device were {peaks[0]} with {even} images on"
            f" the first device, {peaks[1]} with {even // 2}.{why}"
            f" {arithmetic(shares(self._full, self._num_devices, self._first, self._full))}"
        )


def arithmetic(sizes: Sequence[int], accumulate: int = 1) -> str:
    """The sentence for the shares of a full forward, one per device."""
    if len(sizes) == 1:
        return "Split: none, one device."
    text = f"Split: {_sum(sizes)} images per forward"
    if accumulate > 1:
        times = {2: "twice"}.get(accumulate, f"{accumulate} times")
        text += f"; with accumulation {accumulate} {times} that: {_sum([accumulate * size for size in sizes])} per step"
    return text + "."


def start_lines(
    strategy: Mapping[str, Any], batch_size: int, num_devices: int, accumulate: int, on_cpu: bool
) -> list[str]:
    """What a run with dp or balanced_dp says at its start; nothing for other strategies."""
    if strategy["name"] not in NAMES:
        return []
    full = loaded(strategy, batch_size, num_devices)
    lines = [arithmetic(shares(full, num_devices, first_share(strategy, batch_size), full), accumulate)]
    if num_devices == 1:
        return lines
    if strategy["name"] == "balanced_dp" and strategy["first_device_batch"] == "auto":
        lines.append(
            "strategy.first_device_batch=auto on a CPU: an even split, because all replicas share one memory."
            if on_cpu
            else "strategy.first_device_batch=auto: an even split at first; the memory that the first steps need then"
            f" decides, and the total stays {full}."
        )
    lines.append(
        f"strategy={strategy['name']}: strategy=ddp is usually faster. Here every forward copies the weights to all"
        " devices, one Python process drives them all, and the first device gathers the outputs and alone computes"
        " the loss and the step. What speaks for it: one process, so one copy of the data and one loader, no"
        " process group and no ports, and it works in a notebook."
    )
    if on_cpu:
        lines.append("On a CPU the replicas are threads over the same memory: a rehearsal, not a gain in speed.")
    return lines


def mistakes(
    strategy: Mapping[str, Any],
    trainer: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    num_devices: int | None = None,
) -> list[str]:
    """Sentences about strategy.* keys that dp and balanced_dp read or cannot obey. num_devices: None where it is not
    known before torch is asked; `loaded()` looks again."""
    name, first = strategy["name"], strategy["first_device_batch"]
    found: list[str] = []
    if name != "balanced_dp" and integer(0).accepts(first):
        found.append(
            f"strategy.first_device_batch={first} is for strategy=balanced_dp, but the strategy is {name}."
            " Hint: strategy=balanced_dp, or leave it out."
        )
    if name not in NAMES:
        return found
    if name == "balanced_dp" and integer(0, 0).accepts(first) and num_devices == 1:
        found.append(_one_device_gathers(num_devices))
    num_nodes = trainer.get("num_nodes")
    if integer(2).accepts(num_nodes):
        found.append(
            f"strategy={name} runs in one process, but trainer.num_nodes is {num_nodes}."
            " Hint: strategy=ddp, or trainer.num_nodes=1."
        )
    world_size = (environ or {}).get("WORLD_SIZE", "1")
    if world_size.isdecimal() and int(world_size) > 1:
        found.append(
            f"strategy={name} runs in one process, but a launcher started {world_size} (WORLD_SIZE in the environment)."
            " Hint: strategy=ddp, or start it without the launcher."
        )
    if trainer.get("sync_batchnorm") is True:
        found.append(
            f"trainer.sync_batchnorm=true is for strategy=ddp, but the strategy is {name}: of its batch-norm"
            " statistics, those of the first replica count. Hint: trainer.sync_batchnorm=false, or strategy=ddp."
        )
    defaults = {field.name: field.default for field in fields(StrategyConfig) if field.name not in _OWN}
    typed = [f"strategy.{key}={shown(strategy[key])}" for key in defaults if strategy[key] != defaults[key]]
    if typed:
        is_for, it = ("is", "it") if len(typed) == 1 else ("are", "them")
        found.append(
            f"{', '.join(typed)} {is_for} for strategy=ddp, but the strategy is {name}, which has no process group."
            f" Hint: leave {it} out, or strategy=ddp."
        )
    return found


def _one_device_gathers(num_devices: int) -> str:
    return (
        "strategy.first_device_batch=0 keeps the first device for gathering, which expects two devices or more, but"
        f" there is {num_devices}. Hint: trainer.devices=2, or strategy.first_device_batch=auto."
    )


def _sum(sizes: Sequence[int]) -> str:
    return f"{' + '.join(map(str, sizes))} = {sum(sizes)}"
