"""Make the objects of a run from its plan: data module, Lightning module, callbacks and Trainer. The values
that are automatic come from the plan."""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import Checkpoint, ModelSummary, ProgressBar

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.core_watch import CoreWatch
from imagenet_ddp.callbacks.factory import make_callbacks, make_loggers
from imagenet_ddp.callbacks.learning_rate import LearningRate
from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.callbacks.stalled_step import StalledStep
from imagenet_ddp.callbacks.train_log import TrainLog, find_log
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.config.section import to_plain
from imagenet_ddp.data.augment import make_own_transform
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.shared_bad_images import SharedBoard
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.data.transforms import EvalTransform, last_train_size
from imagenet_ddp.data.unreadable_images import BadImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.plan import Plan, data_options, trainer_arguments
from imagenet_ddp.launch.resume import changes, prolongs, refuse_other_data
from imagenet_ddp.launch.world import World
from imagenet_ddp.mistakes import must_be, setting
from imagenet_ddp.models.choose_task import TASKS
from imagenet_ddp.models.compiled import compile_calls
from imagenet_ddp.models.factory import create_model, require_image_size, require_logits
from imagenet_ddp.models.head import head_names
from imagenet_ddp.models.lightning_module import ImageClassifier, make_classifier
from imagenet_ddp.models.losses import make_loss
from imagenet_ddp.models.lr_schedules import schedule_spanning
from imagenet_ddp.models.optimizers import make_optimizer
from imagenet_ddp.runs.checkpoint_file import KEY, read
from imagenet_ddp.runs.checkpoint_io import BackgroundCheckpointIO, checkpoint_bytes
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.strategies import batch_split
from imagenet_ddp.strategies.data_parallel import make_data_parallel
from imagenet_ddp.strategies.ddp import DetectedEnvironment, SyncBatchNorm, make_strategy
from imagenet_ddp.system.cpu_cores import num_cores, num_sharing
from imagenet_ddp.system.text import without_secrets
from imagenet_ddp.training import held_out
from imagenet_ddp.training.diagnosis import refusing
from imagenet_ddp.training.prepare_training import prepare_training
from imagenet_ddp.training.trial_step import AUTOCAST


@dataclass
class Run:
    """A training run, ready to start."""

    trainer: L.Trainer
    module: ImageClassifier
    data: ImageDataModule
    train_log: TrainLog
    checkpoint_callback: ResumeCheckpoint | None


def make_data(
    plan: Plan,
    world: World,
    say: Callable[[str], None],
    *,
    scan: Scan | None = None,
) -> ImageDataModule:
    """Open the images, and wait for the slowest rank. Raises ConfigError on all ranks if the ranks found different
    images. say: function that writes a line to the log. scan: of the images, if this node's command has looked at
    them."""
    config, options, purpose = plan.config, data_options(plan), plan.config.purpose
    assert purpose is not None
    source = open_source(options, config.seed, purpose=purpose, found=scan)
    images = source.train if source.train is not None else source.val
    board = SharedBoard(world.store_client) if world.store_client is not None else None
    bad_images = BadImages(options, len(images or ()), board, say)
    own = None  # code of the user's own, which an evaluation must not run for a checkpoint
    if purpose is Purpose.TRAIN:
        own = make_own_transform(config.transform, last_train_size(options))
    data = ImageDataModule(
        source, options, config.seed, config.model.channels_last, world.place.local_world_size, bad_images, say, own
    )
    classes, need_train = source.classes, purpose.needs_train
    if need_train and len(classes) < 2:  # folders and tables are checked before
        raise ConfigError(
            f"the data must have at least two classes, got {len(classes)} ({', '.join(classes) or 'none'}). "
            "Hint: add images of another class."
        )
    names = hashlib.sha256("\n".join(classes).encode("utf-8", "surrogateescape")).hexdigest()[:8]
    facts = {
        "the classes": f"{len(classes)} ({classes[0]} to {classes[-1]}, names' digest {names})" if classes else "none",
        "the number of training images": len(data.train_images) if need_train else 0,
        "the number of validation images": len(data.val_images),
        "the names of the images": source.digest,
    }
    if world.meeting is not None:
        world.meeting.require_equal("data", facts, config.strategy.timeout_s)
    return data


def make_module(
    plan: Plan, classes: list[str], num_val_images: int, num_train_images: Sequence[int] | None = None
) -> ImageClassifier:
    """Return the Lightning module with random weights, which a checkpoint may replace. num_train_images: number of
    training images of each class; None if nothing is trained."""
    config, num_classes = plan.config, len(classes)
    data, model = config.data, config.model
    net = create_model(model, num_classes, config.seed, data.image_size)
    for key, size in (("train_size", data.train_size), ("progressive_start", data.progressive_start)):
        if num_train_images is not None and size and not model.target:
            require_image_size(net, model.name, f"data.{key}", size)
    if model.target:
        require_logits(net, model.target, num_classes, data.image_size, plan.device, AUTOCAST.get(plan.precision.value))
    loss, own = None, None  # an evaluation runs no loss and no steps of a checkpoint
    if num_train_images is not None:
        loss, own = make_loss(config.loss, classes, num_train_images), config.module.target
    rate, fused, heads = plan.learning_rate.value, plan.fused.value, head_names(net, num_classes)

    def optimizer(_: object) -> torch.optim.Optimizer:
        return make_optimizer(config.optim, net, rate, fused, heads)  # groups need layer names

    module = make_classifier(
        own,
        config.module.args,
        net=net,
        num_classes=num_classes,
        num_val_images=num_val_images,
        make_optimizer=optimizer,
        task=TASKS[data.labels](num_classes, loss),
        seed=config.seed,
        val_views=EvalTransform.of(data).views,
    )
    if plan.precision.value == "64-true":
        module.double()  # Lightning converts it only after loading a checkpoint, whose weights would be rounded
    sizes = plan.images_per_forward, plan.val_images_per_forward
    compile_calls(module, plan.compile.value, *sizes)
    return module


def make_trainer(plan: Plan, world: World, callbacks: list[L.Callback], run_dir: Path) -> L.Trainer:
    config, arguments, kind = plan.config, trainer_arguments(plan), plan.accelerator.value
    if config.strategy.name in batch_split.DATA_PARALLEL:
        strategy = make_data_parallel(config.strategy, kind, plan.local_devices, config.data.batch_size)
        if strategy != "auto":
            arguments["devices"] = 1  # the strategy handles all devices itself
    else:
        # frozen layers have no gradients, so DistributedDataParallel must not wait for them
        unused = config.strategy.find_unused_parameters or config.model.unfreeze_epoch is not None
        options = replace(config.strategy, find_unused_parameters=unused)
        # each process sees a single GPU as its first
        own = [torch.device(kind, 0)] * world.place.local_world_size if plan.sees_own_gpu_only else None
        strategy = make_strategy(options, world.place.world_size, world.store, kind, own)
    if arguments.pop("enable_model_summary") and not _has(callbacks, ModelSummary):
        callbacks = [*callbacks, ModelSummary()]  # with rich installed, Lightning's own would bypass the log
    loggers = make_loggers(config, run_dir, world.place.rank)
    sync = [SyncBatchNorm()] if arguments["sync_batchnorm"] else []
    with refusing():
        return L.Trainer(
            **arguments,
            strategy=strategy,
            plugins=[DetectedEnvironment(world.place), BackgroundCheckpointIO(), *sync],
            callbacks=callbacks,
            logger=loggers or False,
            use_distributed_sampler=False,  # our samplers already split the data between the ranks
            # true only if there is such a callback, of this package or the user's, so that Lightning adds none
            enable_checkpointing=_has(callbacks, Checkpoint),
            enable_progress_bar=_has(callbacks, ProgressBar),
            enable_model_summary=False,
            enable_autolog_hparams=False,
            default_root_dir=run_dir,
        )


def _has(callbacks: list[L.Callback], kind: type) -> bool:
    return any(isinstance(callback, kind) for callback in callbacks)


def make_run(job: Job, plan: Plan, world: World, log: Log, signals: Signals) -> Run:
    """Make all parts of a training run. Raises ConfigError if they cannot be made or combined, or if the run cannot be
    resumed with them."""
    stored = read(job.checkpoint) if job.checkpoint is not None else None
    data = make_data(plan, world, log.say, scan=job.scan)
    classes, images = data.source.classes, data.train_images
    if job.checkpoint is not None and stored is not None:
        refuse_other_data(stored[KEY], job.checkpoint, data.source, len(images))
    counts = images.num_of_each(len(classes)).tolist()
    if stored is None:
        held_out.warn_of_trained(data.val_images, plan.config.model, log.say)
    module = make_module(plan, classes, len(data.val_images), counts)
    training_callbacks, start = prepare_training(
        plan, module, classes, resumed=stored is not None, begin_s=job.begin_s, say=log.say, note=log.note
    )
    has_budget = bool(plan.config.budget_min)
    spanning = functools.partial(
        schedule_spanning, plan.config.schedule, plan.warmup_epochs.value, has_budget=has_budget
    )
    contents = _checkpoint_contents(job, plan, data)
    callbacks = make_callbacks(
        plan.config,
        job.run_dir,
        log=log,
        signals=signals,
        task=module.task,
        start=start,
        learning_rate=LearningRate(spanning=spanning, say=log.say, note=log.note),
        watches=_watches(plan, world, log),
        bad_images=data.bad_images.board.all,
        contents=contents,
        hyperparams=contents["config"],
    )
    trainer = make_trainer(plan, world, [*training_callbacks, *callbacks], job.run_dir)
    checkpoint = find_callback(trainer, ResumeCheckpoint)
    if job.checkpoint is not None and stored is not None:
        _prepare_resume(checkpoint, stored[KEY], job, job.checkpoint)
    if checkpoint is not None and world.place.rank == 0:
        # the run folder links to the checkpoints, wherever they are
        store = CheckpointStore.of_run(job.run_dir)
        store.place(checkpoint.store.folder)
        checkpoint.dirpath = store.folder
        store.require_room(checkpoint_bytes(module.net, plan.config), resumed=stored is not None)
    return Run(trainer, module, data, find_log(trainer), checkpoint)


def _prepare_resume(checkpoint: ResumeCheckpoint | None, stored: Mapping[str, Any], job: Job, path: Path) -> None:
    """Tell the callback whether the training that is resumed is over. Raises ConfigError without such a callback.
    stored: this project's part of the checkpoint at the path."""
    if checkpoint is None:  # without it, Lightning would train on the epoch's first images again
        raise ConfigError(
            must_be("callbacks.checkpoint", f"set to resume {path}", "none", setting("callbacks=default"))
        )
    # nothing is left to train if the training had ended, and the process ended before it wrote summary.json, unless the
    # options now set another end
    ended_by = stored.get("ended_by")
    is_longer = prolongs(ended_by, changes(stored["config"], job.config))
    checkpoint.is_over = ended_by is not None and not is_longer


def _watches(plan: Plan, world: World, log: Log) -> list[L.Callback]:
    """Return what watches the steps, if there are other ranks, and the cores, if several threads compute on them."""
    watches: list[L.Callback] = []
    if world.watch is not None:
        watches.append(StalledStep(world.watch.fail, plan.config.strategy.timeout_s))
    if plan.accelerator.value == "cpu" and (num_threads := plan.num_threads.value) > 1:
        watches.append(CoreWatch(num_threads, num_sharing(plan.place.local_world_size), num_cores(), log.say))
    return watches


def _checkpoint_contents(job: Job, plan: Plan, data: ImageDataModule) -> dict[str, Any]:
    """Return what a checkpoint of the run stores beside the weights."""
    keys = held_out.ImageKeys.of(data.source)
    return {
        "command": job.command,
        "folder": str(Path.cwd()),  # to which the relative paths of the config refer
        "experiment": job.experiment,
        "config": without_secrets(to_plain(job.config)),
        "threads": (plan.num_threads.value, plan.num_devices // plan.num_own_devices),
        "images_per_update": plan.global_batch_size_wanted,  # may be divisible by another number of devices
        "classes": data.source.classes,
        "labels": data.source.labels,
        "num_train_images": len(data.train_images),
        "images_digest": data.source.digest,
        held_out.KEY: None if keys is None else keys.plain(),
        "eval_transform": data.eval_transform.as_dict(),
    }
