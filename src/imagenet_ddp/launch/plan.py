"""Choose the automatic values of one process (device, precision, threads, loader workers, batch, learning rate,
warm-up), once, each with its reason. build makes objects from the plan, the first lines of the log show it, and
summary.json stores it.

The rule of each value is a function in the file of what it is about: devices.py chooses the device, the precision (such
as bf16-mixed) and the threads, models/ the compilation, the fused optimizer and the warm-up, data/ the loader processes
and the decoder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch

from imagenet_ddp.cli.check_launch import validate_multi_process
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.data.decoding.decode import choose_decoder
from imagenet_ddp.data.loader_processes import choose_num_workers
from imagenet_ddp.data.transforms import mean_and_std
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch import devices
from imagenet_ddp.models.compiled import choose_compile
from imagenet_ddp.models.factory import depthwise_share
from imagenet_ddp.models.lr_schedules import choose_warmup_epochs, scaled_lr, scaling_words
from imagenet_ddp.models.optimizers import choose_fused
from imagenet_ddp.models.weights.facts import of_timm
from imagenet_ddp.strategies import batch_split
from imagenet_ddp.system.nvidia_gpus import RankGpu

Config = CommonConfig  # values that this module decides may be "auto"


class Choice(NamedTuple):
    """A value and the reason for it."""

    value: Any
    reason: str


@dataclass(frozen=True)
class Plan:
    """The decisions on how one process runs. Made after all ranks have met, so that an error on one rank is reported
    to all of them."""

    config: Config
    place: Place
    accelerator: Choice  # cpu, cuda or mps
    device: torch.device  # of this process; with strategy=dp, the first one
    local_devices: int | list[int]  # number or indices of this node's devices
    num_own_devices: int  # devices of this process: 1, or all of the node with strategy=dp
    precision: Choice
    compile: Choice  # mode of torch.compile, or off
    fused: Choice  # whether the optimizer's step is one kernel
    num_threads: Choice  # CPU threads of this process
    num_workers: Choice  # loader processes of this process
    decoder: Choice
    batch: Choice  # images per device, and forwards per update of the weights; the same values as in config
    images_per_forward: int  # in this process, in training
    val_images_per_forward: int
    global_batch_size: int  # images per update of the weights, over all processes
    global_batch_size_before: int | None  # global_batch_size before the run was resumed; None for a new run
    global_batch_size_wanted: int  # intended global_batch_size, even if it does not divide among these devices
    learning_rate: Choice  # after warm-up
    warmup_epochs: Choice
    averaging_start_epoch: int  # counted from 0
    mean: Choice  # three values, one per channel
    std: Choice  # three values, one per channel

    @property
    def sees_own_gpu_only(self) -> bool:
        """Return whether this is one of several processes of its node, of which each sees one GPU, its own."""
        one = self.accelerator.value == "cuda" and self.local_devices in (1, [0])
        return one and self.place.local_world_size > 1

    @property
    def num_devices(self) -> int:
        """Return the number of devices of all processes."""
        return self.num_own_devices * self.place.world_size

    def own_gpus(self) -> list[RankGpu]:
        return devices.rank_gpus(self.config.trainer, self.place.local_rank, self.num_own_devices)

    def choices(self, *, training: bool = True) -> dict[str, dict[str, Any]]:
        """Return {"precision": {"value": "bf16-mixed", "reason": ...}, ...}. training: include the values that only a
        training uses."""
        left_out = () if training else ("batch", "learning_rate", "warmup_epochs", "fused")
        return {
            name: value._asdict()
            for name, value in vars(self).items()
            if isinstance(value, Choice) and name not in left_out
        }


def make_plan(
    asked: Config,
    place: Place,
    device: torch.device,
    global_batch_size_before: int | None = None,
    *,
    keep_global_batch_size: bool = True,
    threads_before: tuple[int, int] | None = None,
) -> Plan:
    """Make the plan. Raises ConfigError if this machine cannot do what is requested.

    asked: the options. device: result of devices.use_device in this process. global_batch_size_before: images per
    update of the weights before the run was resumed. keep_global_batch_size: change data.batch_size and
    trainer.accumulate_grad_batches so that this number stays the same, if it divides among the devices. threads_before:
    threads per process, and number of processes, before the run was resumed.
    """
    local_world_size = place.local_world_size
    threads, num_ranks = threads_before or (None, None)
    same_threads = threads if num_ranks == place.world_size else None  # else the bits differ anyway
    kind = device.type
    local_devices = devices.local_devices(replace(asked.trainer, accelerator=kind), local_world_size)
    num_local_devices = devices.count_devices(local_devices)
    num_own_devices = num_local_devices // batch_split.num_processes(asked.strategy, num_local_devices)
    # the number of devices of trainer.devices=auto is known only now
    if place.world_size > 1 and (mistakes := validate_multi_process(asked)):
        raise ConfigError(mistakes)
    wanted = global_batch_size_before if keep_global_batch_size else None
    size, accumulate, reason = batch_split.split_update(asked, num_own_devices, place.world_size, wanted)
    config = replace(
        asked,
        data=replace(asked.data, batch_size=size),
        trainer=batch_split.with_accumulation(asked.trainer, accumulate),
    )
    data, trainer, optim, strategy = config.data, config.trainer, config.optim, config.strategy
    images = batch_split.images_per_forward(strategy, size, num_own_devices)
    global_batch_size = images * place.world_size * accumulate
    decoder = choose_decoder(data.decoder)
    precision = precision_of(config, device)
    return Plan(
        config=config,
        place=place,
        accelerator=Choice(kind, "as set" if asked.trainer.accelerator != "auto" else "the best one that torch finds"),
        device=device,
        local_devices=local_devices,
        num_own_devices=num_own_devices,
        precision=precision,
        compile=Choice(*choose_compile(config.compile.name, kind, num_own_devices, accumulate > 1)),
        fused=Choice(*choose_fused(config, kind, precision.value)),
        num_threads=Choice(
            *devices.choose_num_threads(config.cluster.num_threads, local_world_size, place.cores, same_threads)
        ),
        num_workers=Choice(*choose_num_workers(data.num_workers, kind == "cpu", local_world_size)),
        decoder=Choice(decoder.name, decoder.reason),
        batch=Choice({"images_per_device": size, "accumulation": accumulate}, reason),
        images_per_forward=images,
        val_images_per_forward=batch_split.images_per_forward(
            strategy, data.val_batch_size or data.batch_size, num_own_devices
        ),
        global_batch_size=global_batch_size,
        global_batch_size_before=global_batch_size_before,
        global_batch_size_wanted=wanted or global_batch_size,
        learning_rate=Choice(scaled_lr(optim, global_batch_size), scaling_words(optim, global_batch_size)),
        warmup_epochs=Choice(*choose_warmup_epochs(config.schedule, optim, global_batch_size, trainer.max_epochs)),
        averaging_start_epoch=config.averaging.first_epoch(trainer.max_epochs),
        **image_statistics(config),
    )


def precision_of(config: Config, device: torch.device) -> Choice:
    """Return Lightning's precision, in which a net is trained, evaluated and used on this device."""
    share = partial(depthwise_share, config.model, config.data.image_size)
    return Choice(*devices.choose_precision(config.trainer.precision, device.type, config.data, share, device.index))


def image_statistics(config: Config) -> dict[str, Choice]:
    """Return the choices of mean and std, three values each, with which images are normalised."""
    data, model = config.data, config.model
    is_timm = model.library == "timm" and not model.target and None in (data.mean, data.std)
    of_model: Mapping[str, Any] = of_timm(model.name, model.weights).data if is_timm else {}
    mean, std = (of_model["mean"], of_model["std"]) if of_model else mean_and_std(data)
    whose = f"of timm's {model.name}" if of_model else "ImageNet's"
    return {
        key: Choice(tuple(typed or own), "as set" if typed else whose)
        for key, typed, own in (("mean", data.mean, mean), ("std", data.std, std))
    }


def trainer_arguments(plan: Plan) -> dict[str, Any]:
    """Return the arguments of Lightning's Trainer: trainer.*, with this plan's values for automatic ones."""
    local, trainer = plan.local_devices, plan.config.trainer
    return {
        # the first is unknown to Lightning; the second is that of a TimeLimit, since Lightning's Timer broadcasts in
        # every step
        **{key: value for key, value in trainer.items() if key not in ("batch_finder", "max_time")},
        "benchmark": devices.choose_cudnn_benchmark(trainer, plan.accelerator.value),
        "accelerator": plan.accelerator.value,
        # explicit GPU indices unchanged, else the launcher's number of processes, which validation has checked
        "devices": local if isinstance(local, list) or plan.sees_own_gpu_only else plan.place.local_world_size,
        "num_nodes": plan.place.num_nodes,
        "precision": plan.precision.value,
    }


def data_options(plan: Plan) -> DataConfig:
    """Return data.*, with this plan's values for automatic ones. Batch sizes are those of a forward pass of this
    process."""
    return replace(
        plan.config.data,
        batch_size=plan.images_per_forward,
        val_batch_size=plan.val_images_per_forward,
        num_workers=plan.num_workers.value,
        decoder=plan.decoder.value,
        mean=plan.mean.value,
        std=plan.std.value,
    )
