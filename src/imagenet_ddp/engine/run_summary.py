"""Say what a run will do and what it has done: the first and the last lines of its log, and summary.json."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from imagenet_ddp.callbacks.fine_tuning import has_statistics
from imagenet_ddp.callbacks.run_end import ended_by
from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.config.keys import leaves
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.section import to_plain
from imagenet_ddp.config.stored import to_type
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.distributed import devices, nvidia_gpus
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.engine.build import Run
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.plan import Config, Plan
from imagenet_ddp.engine.world import World
from imagenet_ddp.errors import RunError
from imagenet_ddp.models.losses import weights_by_class
from imagenet_ddp.models.lr_schedules import scaled_lr, scaling_rule
from imagenet_ddp.runs import result_files
from imagenet_ddp.runs.check_run import VAL_METRICS
from imagenet_ddp.system.files import where
from imagenet_ddp.system.text import count_noun, format_loss, percent, shorten_list, without_secrets

FEW_IMAGES = 20_000  # a sixtieth of ImageNet
HIGH_LOSS = 3.0  # times the loss of a guess, which nets with settled batch norm hardly reach
SETTLED = 0.01  # share of batch norm's initial statistics in its running averages, from which on they count as settled
MIN_EPOCHS = 3  # epochs after which an accuracy at chance level is meaningful
NEXT_STEPS = """\
This run used generated images. Next, train on your own images, on STL-10 or on ImageNet:
 {train} experiment=own_photos data.root=FOLDER budget_min=10   # your images, from ImageNet weights
 {train} experiment=quick data=imagefolder data.root=FOLDER     # your images, from scratch
 {train} data=stl10                                             # STL-10, which is downloaded
 {train} data=imagenet data.root=FOLDER                         # ImageNet"""


def opening_lines(plan: Plan, world: World, data: ImageDataModule) -> list[str]:
    """Return the log lines that describe the rendezvous, the data, the recipe, the arithmetic of batch and learning
    rate, and each automatic choice with its reason."""
    config, place, device, classes = plan.config, plan.place, plan.device, data.source.classes
    trainer, optim, options, schedule = config.trainer, config.optim, config.data, config.schedule
    warmup, reason = plan.warmup_epochs
    of_gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    mode, why_compiled = plan.compile
    sampled = " Each class is equally frequent in training." if options.sampling == "balanced" else ""
    location = where(data.train_images.location) if options.root or options.target else ""
    few = f" Top-5 is always 100 % with {len(classes)} classes, and is left out of this log."
    lines = [
        place.sentence(),
        f"Data: {options.target or options.name}, {len(data.train_images)} training and {len(data.val_images)}"
        f" validation images of {len(classes)} classes{location}.{sampled}{few if len(classes) <= 5 else ''}",
        f"Recipe: {'at most ' if config['budget_min'] else ''}{_epochs(trainer.max_epochs)} at {options.image_size}"
        f" pixels, optimizer {optim.target or optim.name}, weight decay {optim.weight_decay:g}, schedule"
        f" {schedule.name}, loss {config.loss.name}, label smoothing {config.loss.label_smoothing:g}.",
    ]
    if config.loss.class_weights not in (None, "balanced"):  # their order is that of text: 0, 1, 10, 2
        pairs = zip(classes, weights_by_class(config.loss.class_weights, classes), strict=False)
        lines.append(f"Class weights: {shorten_list([f'{name}: {weight:g}' for name, weight in pairs], 20)}.")
    if (averaging := config.averaging).name != "none":
        warmed = "(1 + n) / (10 + n) in update n but at most " if averaging.warmup else ""
        how = f"exponential, decay {warmed}{averaging.decay:g}" if averaging.name == "ema" else "equal"
        start = f"from epoch {plan.averaging_start_epoch + 1}"
        if config["budget_min"] and averaging.start_epoch is None and averaging.name == "swa":
            start = "over the last quarter of the epochs that budget_min allows"
        lines.append(f"Average of the weights: {how}, {start}.")
    lines += [
        *from_scratch_lines(config, len(data.train_images)),
        *mirrored_class_lines(options, classes),
        *_batch_lines(plan),
        f"Learning rate: {plan.learning_rate.reason} = {plan.learning_rate.value:g}."
        if scaling_rule(optim) != "none"
        else f"Learning rate: {plan.learning_rate.value:g}, {plan.learning_rate.reason}.",
    ]
    if schedule.warmup_epochs == "auto" and schedule.warmup_steps is None:
        least = ", or a tenth of trainer.max_steps if that is less" if warmup and trainer.max_steps > 0 else ""
        words = _epochs(warmup) if warmup else "none"
        lines.append(f"Warm-up: {words}{least}, because {reason} (schedule.warmup_epochs=auto).")
    return [
        *lines,
        f"Device: {of_gpu or {'cpu': 'CPU', 'mps': 'Apple GPU (mps)'}[device.type]},"
        f" {count_noun(torch.get_num_threads(), 'thread')} per process ({plan.num_threads.reason})."
        f" Precision: {plan.precision.value}, {plan.precision.reason}.",
        f"Optimizer step: {'fused' if plan.fused.value else 'not fused'}, {plan.fused.reason}.",
        f"Net: {'channels_last' if config.model.channels_last else 'contiguous'}, "
        + (
            f"not compiled ({why_compiled.rstrip('.')})."
            if mode == "off"
            else f"compiled (mode {mode}, {why_compiled})."
        ),
        # rank 0 lists the GPUs of all ranks, every other rank lists its own GPUs in its own log
        *(world.gpus or nvidia_gpus.describe_gpus({0: plan.own_gpus()}, {0: ""}, 1)),
        *(f"Network: {note}." for note in world.network_notes if place.num_nodes > 1),
        f"Loader: {count_noun(plan.num_workers.value, 'worker')} per process ({plan.num_workers.reason})."
        f" JPEG decoder: {plan.decoder.reason}.",
        *data.source.notes,
    ]


def _batch_lines(plan: Plan) -> list[str]:
    """Return the lines on the batch arithmetic of an update, and on what a resumed run keeps or changes."""
    config, place = plan.config, plan.place
    batch_size, accumulate = config.data.batch_size, config.trainer.accumulate_grad_batches
    lines = batch_split.describe(config.strategy, batch_size, plan.num_own_devices, accumulate) or [
        f"Batch: {batch_size} per device × {count_noun(place.local_world_size, 'device')}"
        f" × {count_noun(place.num_nodes, 'node')} × {accumulate} accumulation ="
        f" {plan.global_batch_size} images per update."
    ]
    if (before := plan.global_batch_size_before) in (None, plan.global_batch_size):
        return lines if plan.batch.reason == "as set" else [*lines, f"Reason for this batch: {plan.batch.reason}."]
    return [
        *lines,
        f"The batch changed from {before} to {plan.global_batch_size} images per update ({plan.batch.reason}), and the"
        f" learning rate from {scaled_lr(config.optim, before):g} to {plan.learning_rate.value:g}.",
    ]


def from_scratch_lines(config: Config, num_images: int) -> list[str]:
    """Return a line if photographs of the user's own are too few to train a net from random weights."""
    data, model = config.data, config.model
    is_own = data.name in ("imagefolder", "table", "packed") and not data.target
    # the library's weights fit its own nets, unchanged
    has_weights = not (model.target or model.args)
    if model.weights is not None or not (is_own and has_weights and num_images < FEW_IMAGES):
        return []
    return [
        f"Trained from scratch, on {count_noun(num_images, 'image')}: with fewer than {FEW_IMAGES:,}, weights from "
        "ImageNet usually reach a far higher accuracy. Hint: set experiment=finetune."
    ]


def mirrored_class_lines(data: DataConfig, classes: Sequence[str]) -> list[str]:
    """Return a line if the names of the classes suggest that a mirrored image belongs to another class."""
    if data.augment == "none" or not data.flip:
        return []
    names = {name.lower() for name in classes}
    has_sides = any("left" in name and name.replace("left", "right") in names for name in names)
    if not has_sides and not set("0123456789") <= names:
        return []
    what = "left look like right" if has_sides else "a digit look like another"
    return [f"data.flip={data.flip:g} mirrors images, which may make {what}. Hint: set data.flip=0."]


def _epochs(number: float | None) -> str:
    """Format a number of epochs. None or -1 means that there is no limit."""
    return "unlimited epochs" if number in (None, -1) else f"{number:g} epoch{'' if number == 1 else 's'}"


def results(job: Job, plan: Plan, world: World, parts: Run, train_s: float, train_cpu_s: float) -> dict[str, Any]:
    """Return the content of summary.json. train_s: seconds of training. train_cpu_s: CPU seconds of all ranks. Both
    include the parts before a resume, whereas `hardware` describes the last part only."""
    place, data = plan.place, parts.data
    metrics = {**parts.train_log.scores, **parts.trainer.callback_metrics}  # scores may be from before a resume
    times = parts.train_log.train_times.run
    best = parts.train_log.best.value
    gpu_models = world.gpu_models or [gpu.model for gpu in plan.own_gpus()]  # empty if this is the only process
    options = plan.config.data
    folder = Path(without_secrets(options.root)).absolute().name if options.root else None
    return {
        "ended_by": ended_by(parts.trainer, parts.train_log.num_epochs),
        "experiment": job.experiment,
        "data": {"name": options.target or options.name, "folder": folder},
        "hardware": devices.describe_hardware(plan.accelerator.value, gpu_models, place.num_nodes),
        **{name: float(metrics[name]) for name in VAL_METRICS if name in metrics},
        f"best/{parts.train_log.best.monitor}": best,
        "best_epoch": parts.train_log.best.epoch if best is not None else None,
        "num_val_images": parts.module.val_counts[0],
        "num_train_images": len(data.train_images),
        "num_unreadable_images": len(data.bad_images.board.all()),
        "num_classes": len(data.source.classes),
        "world_size": place.world_size,
        "num_devices": plan.num_devices,
        "num_nodes": place.num_nodes,
        "global_batch_size": plan.global_batch_size,
        "epochs": parts.train_log.num_epochs,
        "steps": parts.trainer.global_step,
        "images_per_s": round(times.images_per_s, 2) if times.steps else None,
        "data_wait_frac": round(times.data_wait_frac, 4) if times.steps else None,
        "train_s": round(train_s, 2),
        "train_cpu_s": round(train_cpu_s, 2),
        "precision": parts.trainer.precision,  # the precision that was used
        "seed": plan.config.seed,
        "num_parameters": sum(parameter.numel() for parameter in parts.module.net.parameters()),
        "finished": True,
        "plan": plan.choices(),
        **result_files.provenance(job.command),
    }


def closing_lines(job: Job, parts: Run, train_s: float, ignored: Sequence[str] = ()) -> list[str]:
    """Return the last lines of the log. ignored: sentences about the parts of images that no net sees."""
    best, data = parts.train_log.best.value, job.config.data
    lines = _end_lines(job, parts)
    if best is not None:
        epoch = parts.train_log.best.epoch or f"0: {parts.train_log.start}"
        score = parts.module.task.score
        lines.append(f"Best val {score.title} {score.text(best)} (epoch {epoch}), in {train_s:.0f} s of training.")
    loss, num_classes = parts.train_log.scores.get("val/loss"), len(parts.data.source.classes)
    untrained = parts.module.net if job.config.model.weights is None else nn.Module()  # others come with averages
    steps, epochs = parts.trainer.global_step, parts.train_log.num_epochs
    lines += batch_norm_lines(untrained, loss, num_classes, steps, epochs) or _chance_lines(job, parts)
    if num_bad := len(parts.data.bad_images.board.all()):
        lines.append(f"{count_noun(num_bad, 'image')} could not be read. See {job.run_dir / 'bad_images.csv'}.")
    lines += [*ignored, f"Run folder: {job.run_dir}"]
    is_generated = data.name == "shapes" and not data.target
    if parts.trainer.global_step and not is_generated:
        lines.append(f"Make a report: `{job.program} -m imagenet_ddp.report {shlex.quote(str(job.run_dir))}`")
    if (counted := parts.module.val_counts)[0]:
        num_images, is_whole = len(parts.data.val_images), str(parts.trainer.limit_val_batches) == "1.0"  # 1: one batch
        lines.append(result_files.counted_sentence(counted, num_images, is_whole * (num_images - counted[0])))
    if parts.trainer.global_step and not parts.train_log.begun:
        lines.append("No epoch was left to train. Hint: set a larger trainer.max_epochs to continue.")
    if not parts.trainer.global_step and best is None:
        lines.append("Nothing was trained. Hint: trainer.max_epochs, max_steps and limit_train_batches must not be 0.")
    elif is_generated:
        lines += NEXT_STEPS.format(train=f"{job.program} -m imagenet_ddp.train").splitlines()
    return lines


def _end_lines(job: Job, parts: Run) -> list[str]:
    """Return a line on the option that has ended the training."""
    if (key := ended_by(parts.trainer, parts.train_log.num_epochs)) is None:
        return []
    value = leaves(to_plain(job.config)).get(key)
    of = "a callback that sets trainer.should_stop" if key == "callbacks" else key
    epochs, steps = parts.train_log.num_epochs, parts.trainer.global_step
    after = f"{count_noun(epochs, 'epoch')} and {count_noun(steps, 'step')}"
    return [f"Ended by {of}{'' if value is None else f'={shown(value)}'}, after {after}."]


def batch_norm_lines(net: nn.Module, val_loss: float | None, num_classes: int, steps: int, epochs: int) -> list[str]:
    """Return a line if batch norm's running averages explain a high validation loss: after few updates, they are still
    far from the statistics of the batches, with which the training is scored. steps, epochs: of the run so far."""
    momenta = [getattr(layer, "momentum", None) for layer in net.modules() if has_statistics(layer)]
    kept = [math.log1p(-each) for each in momenta if each and each < 1]  # logs of what an update leaves of the average
    guess = math.log(max(num_classes, 2))
    if not kept or steps == 0 or val_loss is None or not val_loss > HIGH_LOSS * guess:
        return []
    if steps >= (settled := math.ceil(math.log(SETTLED) / max(kept))):
        return []
    more = math.ceil(settled * max(epochs, 1) / steps)
    return [
        f"The validation loss, {format_loss(val_loss)}, is far above that of a guess, {guess:.2f}: a validation uses "
        f"batch norm's running averages, which after {count_noun(steps, 'update')} of the weights are far from the "
        f"statistics of the batches. Hint: train for {settled} updates, as with trainer.max_epochs={more}, or "
        "set model.weights=DEFAULT."
    ]


def _chance_lines(job: Job, parts: Run) -> list[str]:
    """Return a line if the best val/top1 is no better than always answering the most frequent class."""
    best, means, targets = parts.train_log.best.value, parts.train_log.epoch_means, parts.data.val_images.targets
    # An average may lag behind the weights for a long time, and balanced classes cost accuracy on the frequent ones.
    is_balanced = job.config.data.sampling == "balanced" or job.config.loss.class_weights is not None
    is_comparable = job.config.averaging.name == "none" and not is_balanced
    if best is None or means is None or parts.train_log.num_epochs < MIN_EPOCHS or not is_comparable:
        return []
    counts = np.bincount(targets)
    guess = counts.max() / counts.sum()
    luck = 3 * (guess * (1 - guess) / max(parts.module.val_counts[0], 1)) ** 0.5  # three standard deviations
    if len(parts.data.source.classes) < 2 or best > guess + min(luck, 0.1 * (1 - guess)):
        return []
    data, hints = job.config.data, ["check the labels in train_batch.png and in the validation images"]
    if data.augment != "none" and data.flip:
        hints.append("set data.flip=0 if mirrored images belong to other classes")
    if data.fit == "crop":
        hints.append("set data.fit=pad if the centre crop leaves out the object")
    return [
        f"Val top-1 is no better than always answering the most frequent class ({percent(guess)}); train top-1 is "
        f"{percent(means['top1'])}. Hint: {', or '.join(hints)}."
    ]


def require_files(job: Job, parts: Run) -> None:
    """Raise RunError if files that the run had written were removed before it ended. Those that can be written again
    are."""
    lost = [] if (job.run_dir / "config.yaml").exists() else ["config.yaml"]
    if lost:
        result_files.write_config(job.run_dir, job.config)
    if parts.checkpoint_callback is not None:
        lost += [str(path.relative_to(job.run_dir)) for path in parts.checkpoint_callback.lost_files()]
    if lost:
        raise RunError(
            f"{job.run_dir} must keep its files until the run ends, but {' and '.join(lost)} "
            f"{'was' if len(lost) == 1 else 'were'} removed during the training. config.yaml, summary.json and "
            "metrics.csv are written; removed logs and weights are lost. Hint: train again for the best weights, or "
            "use checkpoints/last.ckpt if it is there."
        )


def continue_command(job: Job, plan: Plan) -> str:
    """Return the command that continues a stopped run, ready to be typed."""
    # what a checkpoint may not choose, such as own classes and addresses, is typed again
    resume = [quoted(f"resume={job.run_dir}"), *to_type(to_plain(job.config), "train")]
    options = f"{shlex.join(resume)}{_world_words(job.config, plan.place)}"
    return f"{job.program} -m imagenet_ddp.train {options}"


def _world_words(config: Config, place: Place) -> str:
    """Return the options with which the same nodes can meet again; "" under a launcher or on one node."""
    if place.num_nodes == 1 or place.launcher not in ("MASTER_ADDR", "cluster.address"):
        return ""
    address = config.cluster.address or f"{place.address}"
    return (
        f" trainer.num_nodes={place.num_nodes} trainer.devices={place.local_world_size} cluster.address={address}"
        " (on each node)"
    )
