"""What is printed before training: where the ranks met, the arithmetic, the recipe, each automatic choice's reason."""

import os
from collections.abc import Mapping
from typing import Any

import torch

from imagenet_ddp.data.datamodule import ImageDataModule
from imagenet_ddp.data.decoding.jpeg_backends import choose
from imagenet_ddp.data.loading import dali, dali_pipeline
from imagenet_ddp.data.loading.worker_processes import choose_num_workers, mp_context_note
from imagenet_ddp.distributed import devices, gpu_names
from imagenet_ddp.distributed.strategies import batch_split, ddp
from imagenet_ddp.engine.build import Config, World, own_devices
from imagenet_ddp.models.lr_schedules import choose_warmup_epochs, scaled_lr


def start_lines(config: Config, world: World, data: ImageDataModule, global_batch: int) -> list[str]:
    """What is printed before training: where the ranks met, arithmetic, data and recipe, and every automatic choice's
    reason."""
    place, trainer, optim, schedule = world.place, config["trainer"], config["optim"], config["schedule"]
    source, keys = data.source, config["data"]
    kind = devices.accelerator(trainer["accelerator"])
    accumulate = trainer["accumulate_grad_batches"]
    precision, why_precision = devices.choose_precision(trainer["precision"], kind)
    workers, why_workers = choose_num_workers(keys["num_workers"], kind == "cpu", place.local_world_size)
    lr = scaled_lr(optim, global_batch)
    warmup = choose_warmup_epochs(schedule["warmup_epochs"], optim, global_batch, trainer["max_epochs"])
    return [
        place.sentence(),
        _data_line(data, config),
        f"Recipe: {_epochs(trainer['max_epochs'])} at {keys['image_size']} pixels, {_optimizer_words(optim)},"
        f" schedule {_schedule_words(schedule, warmup[0])}, label smoothing {config['loss']['label_smoothing']:g}.",
        *(
            batch_split.start_lines(
                config["strategy"], keys["batch_size"], own_devices(config), accumulate, kind == "cpu"
            )
            or [
                f"Batch: {keys['batch_size']} per device × {place.local_world_size} devices × {place.num_nodes} nodes"
                f" × {accumulate} accumulation = {global_batch} images per step."
            ]
        ),
        f"Learning rate: {optim['lr']:g} per {optim['reference_batch']} images"
        f" × {global_batch}/{optim['reference_batch']} = {lr:g}."
        if optim["reference_batch"]
        else f"Learning rate: {lr:g}, not scaled (optim.reference_batch is null).",
        *([_warmup_line(*warmup)] if schedule["warmup_epochs"] == "auto" else []),
        f"Device: {_device_words(kind)}, {torch.get_num_threads()} threads per process (cluster.num_threads)."
        f" Precision: {precision}, {why_precision}.",
        *(world.gpus or _own_gpus(config, world)),
        *gpu_names.unseen(trainer["accelerator"], kind, os.environ),
        *ddp.notes(config["strategy"], place.world_size, kind),
        *(f"Network: {note}." for note in world.notes if place.num_nodes > 1),
        *_loader_lines(config, data, workers, why_workers, kind),
        *([note] if (note := mp_context_note(keys["mp_context"], workers)) else []),
        *source.notes,
    ]


def _loader_lines(config: Config, data: ImageDataModule, workers: int, why_workers: str, kind: str) -> list[str]:
    keys, asked = config["data"], config["loader"]
    ordinary = f"{workers} workers per process ({why_workers}). JPEG decoder: {choose(keys['decoder']).reason}."
    if asked["name"] != "dali":
        return [f"Loader: {ordinary}"]
    if why_not := dali.unsupported_reason(data.train_images, keys["augment"]):
        return [f"Loader: not DALI, because {why_not}.", f"Loader: {ordinary}"]
    device = dali_pipeline.choose_device(asked["device"], torch.device(kind))
    threads = dali_pipeline.choose_num_threads(asked["num_threads"], workers)
    return [
        f"Loader: {dali_pipeline.describe(device, threads)}.",
        f"Validation and what DALI does not read: {ordinary}",
    ]


def _data_line(data: ImageDataModule, config: Config) -> str:
    source = data.source
    few = ""
    if len(source.classes) < 5:
        few = f" Fewer than 5 classes: top-5 is top-{len(source.classes)}."
    return (
        f"Data: {config['data']['_target_'] or config['data']['name']}, {len(data.train_images)} training"
        f" and {len(data.val_images)} validation images of {len(source.classes)} classes.{few}"
    )


def _optimizer_words(optim: Mapping[str, Any]) -> str:
    if optim["_target_"]:
        return optim["_target_"]
    momentum = f" momentum {optim['momentum']:g}" if optim["name"] == "sgd" else ""
    return f"{optim['name']}{momentum} weight decay {optim['weight_decay']:g}"


def _schedule_words(schedule: Mapping[str, Any], warmup_epochs: float) -> str:
    words = {
        "step": f"× {schedule['gamma']:g} every {schedule['step_epochs']} epochs",
        "cosine": f"cosine to {schedule['final_fraction']:g}",
        "linear": f"linear to {schedule['final_fraction']:g}",
        "constant": "constant",
    }[schedule["name"]]
    return words + (f" after {_epochs(warmup_epochs)} of warm-up" if warmup_epochs else "")


def _warmup_line(epochs: float, reason: str) -> str:
    return f"Warm-up: {_epochs(epochs) if epochs else 'none'}, because {reason} (schedule.warmup_epochs=auto)."


def _epochs(number: float | None) -> str:
    """None, -1: until something else ends the training."""
    return "epochs without end" if number in (None, -1) else f"{number:g} epoch{'' if number == 1 else 's'}"


def _device_words(kind: str) -> str:
    return {"cpu": "CPU", "mps": "Apple GPU (mps)"}.get(kind) or str(torch.cuda.get_device_name())


def _own_gpus(config: Config, world: World) -> list[str]:
    """Of this process: all there are where it is the only one; else for its own log, as rank 0 has those of all."""
    place = world.place
    gpus = devices.own_gpus(config["trainer"], place.local_rank, own_devices(config))
    return gpu_names.lines({0: gpus}, {0: ""}, 1)
