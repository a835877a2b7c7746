"""The resolved config becomes objects: data module, classifier, strategy, callbacks, Trainer. The one place that
knows all wings."""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from torch.distributed import Store

from imagenet_ddp import __version__
from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.graceful_stop import Agreement, GracefulStop, GracefulStopInValidation
from imagenet_ddp.callbacks.history import BadImagesList, History
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.log_metrics import LogMetrics
from imagenet_ddp.callbacks.progress import Progress
from imagenet_ddp.callbacks.running_metrics import RunningMetrics
from imagenet_ddp.config.instantiate import make, open_arguments
from imagenet_ddp.data.bad_images import BadImages
from imagenet_ddp.data.datamodule import ImageDataModule
from imagenet_ddp.data.loading.memory_cache import hold
from imagenet_ddp.data.loading.worker_processes import choose_num_workers
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.distributed import devices
from imagenet_ddp.distributed.cluster_environment import DetectedEnvironment
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.rendezvous.failure_detector import FailureDetector
from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup
from imagenet_ddp.distributed.rendezvous.shared_list import SharedList
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.distributed.strategies.data_parallel import make_data_parallel
from imagenet_ddp.distributed.strategies.ddp import make_strategy
from imagenet_ddp.distributed.validate import validate_several
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.models.create_model import create_model
from imagenet_ddp.models.lightning_module import ImageClassifier
from imagenet_ddp.models.lr_schedules import choose_warmup_epochs, make_schedule, scaled_lr
from imagenet_ddp.models.optimizers import make_optimizer
from imagenet_ddp.runs.checkpoint_file import AtomicCheckpointIO
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import Signals

Config = Mapping[str, Any]


@dataclass(frozen=True)
class World:
    """This process among the others, and what it meets them with. store_client: a new connection. All but the place
    are None where there is one process."""

    world_info: WorldInfo
    store: Store | None = None
    store_client: Callable[[], Store] | None = None
    rank_group: RankGroup | None = None
    failure_detector: FailureDetector | None = None
    notes: tuple[str, ...] = ()  # what was chosen on the way, for the log
    gpus: tuple[str, ...] = ()  # which each rank has, for the log; on rank 0 of several

    def compare(self, key: str, facts: Mapping[str, Any], timeout_s: float) -> None:
        """The same on all ranks, or ConfigError on all; a rank that still works on it is waited for."""
        if self.rank_group is not None:
            self.rank_group.check_equal(key, facts, timeout_s)

    def leave(self) -> None:
        """The work is done: the end of this process is no failure."""
        if self.failure_detector is not None:
            self.failure_detector.end()


@dataclass
class Run:
    """A training run, ready to start."""

    trainer: L.Trainer
    classifier: ImageClassifier
    data: ImageDataModule
    meters: RunningMetrics
    record: History
    saver: ResumeCheckpoint
    agreement: Agreement
    global_batch_size: int


def own_devices(config: Config) -> int:
    """Devices of each process: one, but for dp, whose only process has all."""
    num_devices = devices.count(devices.local_devices(config["trainer"]))
    return num_devices // batch_split.processes(config["strategy"], num_devices)


def images_per_forward(config: Config, batch_size: int | None = None) -> int:
    """Of each process. batch_size: per device; None: data.batch_size."""
    return batch_split.loaded(config["strategy"], batch_size or config["data"]["batch_size"], own_devices(config))


def on_cpu(config: Config) -> bool:
    return devices.accelerator(config["trainer"]["accelerator"]) == "cpu"


def make_data(config: Config, world: World, say: Callable[[str], None], *, need_train: bool = True) -> ImageDataModule:
    """Waits for the ranks that still list their images, and compares what they found: ConfigError where it differs."""
    source = open_source(config["data"], config["seed"], os.environ, need_train=need_train)
    if need_train and config["trainer"]["max_epochs"] not in (0, 1):  # an evaluation sees each image once
        shared = (
            choose_num_workers(config["data"]["num_workers"], on_cpu(config), world.world_info.local_world_size)[0] > 0
        )
        source = hold(source, config["data"]["cache_mib"], shared=shared)
    keys = dict(config["data"])
    keys["val_batch_size"] = images_per_forward(config, keys["val_batch_size"] or keys["batch_size"])
    keys["batch_size"] = images_per_forward(config)
    images = source.train if source.train is not None else source.val
    board = SharedList(world.store_client, "bad_images") if world.store_client is not None else None
    bad_images = BadImages(keys, len(images or ()), board, say)
    data = ImageDataModule(
        source,
        keys,
        config["seed"],
        config["model"]["channels_last"],
        world.world_info.local_world_size,
        bad_images,
        config["loader"],
        say,
    )
    classes = source.classes
    names = hashlib.sha256("\n".join(classes).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    facts = {
        "the classes": f"{len(classes)} ({classes[0]} to {classes[-1]}, names' digest {names})" if classes else "none",
        "the number of training images": len(data.train_images) if need_train else 0,
        "the number of validation images": len(data.val_images),
        "the names of the images": source.digest,
    }
    world.compare("data", facts, config["strategy"]["timeout_s"])
    return data


def make_classifier(config: Config, num_classes: int, num_val_images: int, global_batch_size: int) -> ImageClassifier:
    optim = config["optim"]
    return ImageClassifier(
        create_model(config["model"], num_classes, config["seed"], config["data"]["image_size"]),
        num_classes,
        num_val_images,
        make_optimizer=partial(
            make_optimizer,
            optim,
            lr=scaled_lr(optim, global_batch_size),
            fused=on_cpu(config) and not config["trainer"]["gradient_clip_val"],
        ),
        label_smoothing=config["loss"]["label_smoothing"],
        seed=config["seed"],
    )


def lr_schedule(config: Config, global_batch_size: int) -> Callable[[float], float]:
    """Epochs passed -> factor on the learning rate."""
    schedule, max_epochs = config["schedule"], config["trainer"]["max_epochs"]
    warmup, _ = choose_warmup_epochs(schedule["warmup_epochs"], config["optim"], global_batch_size, max_epochs)
    return make_schedule(schedule, max_epochs, warmup)


def make_trainer(
    config: Config, world: World, callbacks: list[L.Callback], run_dir: Path, say: Callable[[str], None]
) -> L.Trainer:
    keys = dict(config["trainer"])
    world_info = world.world_info
    kind = devices.accelerator(keys["accelerator"])
    keys["accelerator"] = kind
    local = devices.local_devices({**config["trainer"], "accelerator": kind})
    # a launcher's workers take its numbers; explicit ones have been held against them before
    keys["devices"] = local if isinstance(local, list) else world_info.local_world_size
    keys["num_nodes"] = world_info.num_nodes
    # trainer.devices=auto is a number only now
    if world_info.world_size > 1 and (mistakes := validate_several(keys, on_cpu=kind == "cpu")):
        raise ConfigError(mistakes)
    keys["precision"] = devices.choose_precision(keys["precision"], kind)[0]
    if config["strategy"]["name"] in batch_split.NAMES:
        strategy = make_data_parallel(config["strategy"], kind, local, config["data"]["batch_size"], say)
        if strategy != "auto":
            keys["devices"] = 1  # the strategy brings its own
    else:
        strategy = make_strategy(config["strategy"], world_info.world_size, world.store, kind=kind)
    if keys.pop("enable_model_summary") and not _has(callbacks, ModelSummary):
        callbacks = [*callbacks, ModelSummary()]  # Lightning's choice prints past the log where rich is installed
    loggers = _named(config, "logger", save_dir=str(run_dir))
    with refusing():
        return L.Trainer(
            **keys,
            strategy=strategy,
            plugins=[DetectedEnvironment(world_info), AtomicCheckpointIO()],
            callbacks=callbacks,
            logger=loggers or False,
            use_distributed_sampler=False,  # ours are made for the trainer's rank and world
            # true where there is one already (Saver, one of the user's): Lightning then adds none of its own
            enable_checkpointing=_has(callbacks, Checkpoint),
            enable_progress_bar=_has(callbacks, ProgressBar),
            enable_model_summary=False,
            enable_autolog_hparams=False,
            default_root_dir=run_dir,
        )


def _has(callbacks: list[L.Callback], kind: type) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)


@contextmanager
def refusing(begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Turn what Lightning refuses into a sentence: ConfigError before the first step of training, RunError after it.
    begun: whether there was one."""
    try:
        yield
    except MisconfigurationException as error:
        raise _refusal(error, begun()) from error
    except ModuleNotFoundError as error:
        if begun():
            raise
        raise _refusal(error, False) from error
    except RuntimeError as error:
        if "Early stopping conditioned on metric" not in str(error):  # this one has no type of its own
            raise
        raise _refusal(error, begun()) from error


def _refusal(error: Exception, begun: bool) -> ConfigError | RunError:
    reason = " ".join(str(error).split()).rstrip(".")
    text = f"Lightning refuses these trainer.*, callbacks.* and logger.*: {reason}."
    text += "" if "Hint:" in reason else " Hint: change what it names."
    return RunError(text) if begun else ConfigError(text)


def _named(config: Config, group: str, **defaults: Any) -> list[Any]:
    """The objects of a group of name -> {_target_: ..., arguments}; null switches one off. defaults: arguments for
    those whose class takes them and has no default of its own."""
    made = []
    for name, node in config[group].items():
        if node is not None:
            target = node["_target_"]
            arguments = {key: value for key, value in node.items() if key != "_target_"}
            arguments = {**open_arguments(target, defaults), **arguments}
            made.append(make(f"{group}.{name}._target_", target, arguments))
    return made


def make_run(
    config: Config, world: World, run_dir: Path, log: Log, signals: Signals, contents: Mapping[str, Any]
) -> Run:
    """contents: what goes into each checkpoint beside what this function knows."""
    world_info = world.world_info
    devices.use_threads(devices.choose_num_threads(config["cluster"]["num_threads"], world_info.local_world_size))
    data = make_data(config, world, log.say)
    source = data.source
    step_images = images_per_forward(config) * world_info.world_size
    global_batch = step_images * config["trainer"]["accumulate_grad_batches"]
    classifier = make_classifier(config, len(source.classes), len(data.val_images), global_batch)
    contents = {
        **contents,
        "version": __version__,
        "config": dict(config),
        "classes": source.classes,
        "labels": source.labels,
        "num_train_images": len(data.train_images),
        "eval_transform": data.eval_transform.as_dict(),
    }
    meters = RunningMetrics()
    saver = ResumeCheckpoint(
        run_dir / "checkpoints", contents, config["saving"]["every_n_epochs"], len(data.train_images), step_images
    )
    title = f"{config['model']['name']} on {config['data']['name']}, {config['data']['image_size']} px"
    record = History(run_dir, log, meters, saver, title)
    agreement = Agreement(signals, world_info.rank, world_info.world_size, world.store_client)
    progress = Progress(
        log, meters, config["trainer"]["log_every_n_steps"], config["val_log_every_n_steps"], classifier.top_k
    )
    callbacks = [
        LearningRate(lr_schedule(config, global_batch)),
        meters,
        LogMetrics(meters, config["trainer"]["log_every_n_steps"]),
        GracefulStopInValidation(agreement, saver.save_stopped),
        progress,
        *_named(config, "callbacks", dirpath=str(run_dir / "checkpoints")),
        record,
        BadImagesList(run_dir / "bad_images.csv", data.bad_images.board.all),
        saver,
        GracefulStop(agreement, saver.save_stopped),
    ]
    trainer = make_trainer(config, world, callbacks, run_dir, log.say)
    return Run(trainer, classifier, data, meters, record, saver, agreement, global_batch)
