"""The resolved config becomes objects: data module, classifier, strategy, callbacks, Trainer. The one place that knows all wings."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from hydra.utils import instantiate
from torch import Tensor
from torch.distributed import Store

from imagenet_ddp import __version__
from imagenet_ddp.data.datamodule import ImageData
from imagenet_ddp.data.decode import UnreadableImage, decode
from imagenet_ddp.data.loader import choose_num_workers
from imagenet_ddp.data.sources import Source, open_source
from imagenet_ddp.data.transforms import EvalTransform, normalise
from imagenet_ddp.distributed import devices
from imagenet_ddp.distributed.environment import PlaceEnvironment
from imagenet_ddp.distributed.rendezvous import Place
from imagenet_ddp.distributed.strategy import make_strategy
from imagenet_ddp.learning.classifier import Classifier
from imagenet_ddp.learning.nets import make_net
from imagenet_ddp.learning.optim import make_optimizer, make_schedule, scaled_lr
from imagenet_ddp.run.checkpoint import AtomicCheckpointIO, Saver
from imagenet_ddp.run.log import Log
from imagenet_ddp.run.meters import Meters
from imagenet_ddp.run.progress import Progress
from imagenet_ddp.run.record import Record
from imagenet_ddp.run.signals import Signals
from imagenet_ddp.run.stop import Agreement, StopInTraining, StopInValidation

Config = Mapping[str, Any]


@dataclass(frozen=True)
class World:
    """This process among the others, and what it meets them with. store_client: a new connection; None where there is one process."""

    place: Place
    store: Store | None = None
    store_client: Callable[[], Store] | None = None


@dataclass
class Run:
    """A training run, ready to start."""

    trainer: L.Trainer
    classifier: Classifier
    data: ImageData
    meters: Meters
    record: Record
    saver: Saver
    agreement: Agreement
    global_batch_size: int


def make_data(config: Config, world: World, *, need_train: bool = True) -> ImageData:
    source = open_source(config["data"], config["seed"], os.environ, need_train=need_train)
    return ImageData(
        source, config["data"], config["seed"], config["model"]["channels_last"], world.place.local_world_size
    )


def make_classifier(config: Config, num_classes: int, num_val_images: int, global_batch_size: int) -> Classifier:
    return Classifier(
        make_net(config["model"], num_classes, config["seed"]),
        num_classes,
        num_val_images,
        make_optimizer=partial(make_optimizer, config["optim"], lr=scaled_lr(config["optim"], global_batch_size)),
        schedule=make_schedule(config["schedule"], config["trainer"]["max_epochs"]),
        label_smoothing=config["loss"]["label_smoothing"],
        seed=config["seed"],
    )


def make_trainer(config: Config, world: World, callbacks: list[L.Callback], run_dir: Path | None) -> L.Trainer:
    keys = dict(config["trainer"])
    place = world.place
    kind = devices.accelerator(keys["accelerator"])
    keys["accelerator"] = kind
    local = devices.local_devices({**config["trainer"], "accelerator": kind})
    # a launcher's workers take its numbers; explicit ones have been held against them before
    keys["devices"] = local if isinstance(local, list) else place.local_world_size
    keys["num_nodes"] = place.num_nodes
    keys["precision"] = devices.choose_precision(keys["precision"], kind)[0]
    return L.Trainer(
        **keys,
        strategy=make_strategy(config["strategy"], place.world_size, world.store),
        plugins=[PlaceEnvironment(place), AtomicCheckpointIO()],
        callbacks=callbacks,
        logger=[instantiate(node) for node in config["logger"].values()] or False,
        use_distributed_sampler=False,  # ours are made for the trainer's rank and world
        enable_checkpointing=False,  # Saver's part
        enable_progress_bar=False,  # Progress' part
        enable_autolog_hparams=False,
        default_root_dir=run_dir,
    )


def make_run(config: Config, world: World, run_dir: Path, log: Log, signals: Signals, contents: Mapping[str, Any]) -> Run:
    """contents: what goes into each checkpoint beside what this function knows."""
    place = world.place
    threads = devices.choose_num_threads(config["cluster"]["num_threads"], place.local_world_size)
    torch.set_num_threads(threads)
    data = make_data(config, world)
    source = data.source
    assert source.train is not None and source.val is not None
    global_batch = config["data"]["batch_size"] * place.world_size * config["trainer"]["accumulate_grad_batches"]
    classifier = make_classifier(config, len(source.classes), len(source.val), global_batch)
    contents = {
        **contents,
        "version": __version__,
        "config": dict(config),
        "classes": source.classes,
        "labels": source.labels,
        "num_train_images": len(source.train),
        "eval_transform": data.eval_transform.as_dict(),
    }
    meters = Meters()
    step_images = config["data"]["batch_size"] * place.world_size
    saver = Saver(run_dir / "checkpoints", contents, config["saving"]["every_n_epochs"], len(source.train), step_images)
    title = f"{config['model']['name']} on {config['data']['name']}, {config['data']['image_size']} px"
    record = Record(run_dir, log, meters, saver, len(source.val), title)
    agreement = Agreement(signals, place.rank, place.world_size, world.store_client)
    progress = Progress(
        log, meters, config["trainer"]["log_every_n_steps"], config["val_log_every_n_steps"], classifier.top_k
    )
    callbacks = [
        meters,
        StopInValidation(agreement, saver.save_stopped),
        progress,
        *(instantiate(node) for node in config["callbacks"].values()),
        record,
        saver,
        StopInTraining(agreement, saver.save_stopped),
    ]
    trainer = make_trainer(config, world, callbacks, run_dir)
    return Run(trainer, classifier, data, meters, record, saver, agreement, global_batch)


def start_lines(config: Config, world: World, data: ImageData, global_batch: int) -> list[str]:
    """What is printed before training: where the ranks met, arithmetic, data and recipe, and every automatic choice's reason."""
    place, trainer, optim, schedule = world.place, config["trainer"], config["optim"], config["schedule"]
    source, keys = data.source, config["data"]
    kind = devices.accelerator(trainer["accelerator"])
    accumulate = trainer["accumulate_grad_batches"]
    precision, why_precision = devices.choose_precision(trainer["precision"], kind)
    workers, why_workers = choose_num_workers(keys["num_workers"], kind == "cpu", place.local_world_size)
    threads = devices.choose_num_threads(config["cluster"]["num_threads"], place.local_world_size)
    lr = scaled_lr(optim, global_batch)
    return [
        place.sentence(),
        _data_line(source, config),
        f"Recipe: {trainer['max_epochs']} epochs at {keys['image_size']} pixels, {optim['_target_'] or optim['name']}"
        f" momentum {optim['momentum']:g} weight decay {optim['weight_decay']:g}, schedule {_schedule_words(schedule)},"
        f" label smoothing {config['loss']['label_smoothing']:g}.",
        f"Batch: {keys['batch_size']} per device × {place.local_world_size} devices × {place.num_nodes} nodes"
        f" × {accumulate} accumulation = {global_batch} images per step.",
        f"Learning rate: {optim['lr']:g} per {optim['reference_batch']} images × {global_batch}/{optim['reference_batch']} = {lr:g}."
        if optim["reference_batch"]
        else f"Learning rate: {lr:g}, not scaled (optim.reference_batch is null).",
        f"Device: {_device_words(kind)}, {threads} threads per process. Precision: {precision}, {why_precision}.",
        f"Loader: {workers} workers per process ({why_workers}).",
        *source.notes,
    ]


def _data_line(source: Source, config: Config) -> str:
    assert source.train is not None and source.val is not None
    few = ""
    if len(source.classes) < 5:
        few = f" Fewer than 5 classes: top-5 is top-{len(source.classes)}."
    return (
        f"Data: {config['data']['name']}, {len(source.train)} training and {len(source.val)} validation images"
        f" of {len(source.classes)} classes.{few}"
    )


def _schedule_words(schedule: Mapping[str, Any]) -> str:
    words = {
        "step": f"× {schedule['gamma']:g} every {schedule['step_epochs']} epochs",
        "cosine": f"cosine to {schedule['final_fraction']:g}",
        "linear": f"linear to {schedule['final_fraction']:g}",
        "constant": "constant",
    }[schedule["name"]]
    return words + (f" after {schedule['warmup_epochs']:g} epochs of warm-up" if schedule["warmup_epochs"] else "")


def _device_words(kind: str) -> str:
    if kind == "cuda":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return f"{torch.cuda.get_device_name()} (CUDA_VISIBLE_DEVICES={visible or 'not set'})"
    return {"cpu": "CPU", "mps": "Apple GPU (mps)"}[kind]


class Predictor:
    """A checkpoint's net with the transform it was validated with, on one device."""

    def __init__(self, net: torch.nn.Module, transform: EvalTransform, channels_last: bool, device: torch.device):
        self._net, self._transform, self._channels_last, self._device = net.eval().to(device), transform, channels_last, device

    def read(self, path: str) -> Tensor | UnreadableImage:
        """uint8 (3, image_size, image_size). Called from many threads."""
        try:
            return self._transform(decode(Path(path).read_bytes(), path))
        except UnreadableImage as error:
            return error
        except OSError as error:
            return UnreadableImage(path, error.strerror or str(error))

    @torch.inference_mode()
    def predict(self, images: list[Tensor | UnreadableImage], top_k: int) -> list[tuple[list[tuple[int, float]], str]]:
        """For each image (class position, probability) of the top_k, and "" or why it could not be read."""
        readable = [image for image in images if isinstance(image, Tensor)]
        found: list[list[tuple[int, float]]] = []
        if readable:
            transform = self._transform
            batch = normalise(torch.stack(readable).to(self._device), transform.mean, transform.std, self._channels_last)
            top = self._net(batch).float().softmax(dim=1).topk(top_k)
            found = [
                list(zip(indices, values, strict=True))
                for indices, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
            ]
        results = iter(found)
        return [([], image.reason) if isinstance(image, UnreadableImage) else (next(results), "") for image in images]


def make_predictor(config: Config, contents: Mapping[str, Any], state_dict: Mapping[str, Tensor]) -> Predictor:
    """contents, state_dict: of the checkpoint. Computes in fp32: a few images need no speed."""
    net = make_net(config["model"], len(contents["classes"]), 0)
    prefix = "net."
    net.load_state_dict({key.removeprefix(prefix): value for key, value in state_dict.items() if key.startswith(prefix)})
    transform = EvalTransform.from_keys(contents["eval_transform"])
    device = torch.device(devices.accelerator(config["trainer"]["accelerator"]))
    return Predictor(net, transform, config["model"]["channels_last"], device)
