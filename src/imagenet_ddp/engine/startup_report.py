"""Describe the plan before training starts: the arithmetic, the recipe, and each automatic choice with its reason."""

from collections.abc import Sequence
from typing import Any

import torch

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.learning import LossConfig, OptimConfig, ScheduleConfig
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.distributed import devices, nvidia_gpus
from imagenet_ddp.distributed.strategies import batch_split
from imagenet_ddp.engine.plan import Config, Plan
from imagenet_ddp.engine.world import World
from imagenet_ddp.models.losses import weights_by_class
from imagenet_ddp.models.lr_schedules import scaled_lr, scaling_rule
from imagenet_ddp.models.parameter_groups import no_decay_kinds
from imagenet_ddp.system.text import count_noun, percent, shorten_list

FEW_IMAGES = 20_000  # a sixtieth of ImageNet


def lines(plan: Plan, world: World, data: ImageDataModule) -> list[str]:
    """Return the log lines that describe the rendezvous, the data, the recipe, the arithmetic of batch and learning
    rate, and each automatic choice with its reason."""
    config, info = plan.config, plan.world_info
    trainer, optim, options = config.trainer, config.optim, config.data
    epochs, reason = plan.warmup_epochs
    least = ", or a tenth of trainer.max_steps if that is less" if epochs and trainer.max_steps > 0 else ""
    warmup = f"Warm-up: {_epochs(epochs) if epochs else 'none'}{least}, because {reason} (schedule.warmup_epochs=auto)."
    return [
        info.sentence(),
        _data_line(data, config),
        f"Recipe: {'at most ' if config['budget_min'] else ''}{_epochs(trainer.max_epochs)}"
        f" at {options['image_size']} pixels, {_optimizer_words(optim)},"
        f" schedule {_schedule_words(config.schedule, epochs)},"
        f" {_loss_words(config.loss)}.",
        *_class_weight_lines(config.loss.class_weights, data.source.classes),
        *learning_lines(config, plan.averaging_start_epoch),
        *from_scratch_lines(config, len(data.train_images)),
        *mirrored_class_lines(options, data.source.classes),
        *batch_lines(plan),
        learning_rate_line(plan),
        *([warmup] if config.schedule.warmup_epochs == "auto" and config.schedule.warmup_steps is None else []),
        f"Device: {_device_words(plan)}, {count_noun(torch.get_num_threads(), 'thread')} per process"
        f" ({plan.num_threads.reason}). Precision: {plan.precision.value}, {plan.precision.reason}.",
        *_speed_lines(plan),
        # rank 0 lists the GPUs of all ranks, every other rank lists its own GPUs in its own log
        *(world.gpus or nvidia_gpus.describe_gpus({0: plan.own_gpus()}, {0: ""}, 1)),
        *(f"Network: {note}." for note in world.network_notes if info.num_nodes > 1),
        f"Loader: {count_noun(plan.num_workers.value, 'worker')} per process ({plan.num_workers.reason})."
        f" JPEG decoder: {plan.decoder.reason}.",
        *data.source.notes,
    ]


def batch_lines(plan: Plan) -> list[str]:
    """Return the lines on the batch arithmetic of an update, and on what a resumed run keeps or changes."""
    config, info = plan.config, plan.world_info
    batch_size, accumulate = config.data.batch_size, config.trainer.accumulate_grad_batches
    lines = batch_split.describe(config.strategy, batch_size, plan.num_own_devices, accumulate, plan.on_cpu) or [
        f"Batch: {batch_size} per device × {count_noun(info.local_world_size, 'device')}"
        f" × {count_noun(info.num_nodes, 'node')} × {accumulate} accumulation ="
        f" {plan.global_batch_size} images per step."
    ]
    if (before := plan.update_before) in (None, plan.global_batch_size):
        return lines if plan.batch.reason == "as set" else [*lines, f"Reason for this batch: {plan.batch.reason}."]
    lr, was = plan.learning_rate.value, scaled_lr(config.optim, before)
    effect = f"changes with it from {was:g} to {lr:g}" if lr != was else f"stays {lr:g}, because it is not scaled"
    return [
        *lines,
        f"The batch changed from {before} to {plan.global_batch_size} images per step ({plan.batch.reason}), and the"
        f" learning rate {effect}.",
    ]


def learning_rate_line(plan: Plan) -> str:
    """Return the line on the learning rate after warm-up."""
    value, reason = plan.learning_rate
    if scaling_rule(plan.config.optim) != "none":
        return f"Learning rate: {reason} = {value:g}."
    return f"Learning rate: {value:g}, {reason}."


def _speed_lines(plan: Plan) -> list[str]:
    """Return the lines on whether the optimizer is fused and the net is compiled, and why."""
    config, (mode, reason) = plan.config, plan.compile
    is_fused, why = plan.fused
    lines = [f"Optimizer step: {'fused' if is_fused else 'not fused'}, {why}."]
    if config.model.activation_checkpointing:
        lines[0] += " Activations of repeated blocks are computed again in the backward pass."
    memory_format = "channels_last" if config.model.channels_last else "contiguous"
    if mode == "off":
        return [*lines, f"Net: {memory_format}, not compiled ({reason.rstrip('.')})."]
    lines.append(f"Net: {memory_format}, compiled (mode {mode}, {reason}).")
    if mode == "reduce-overhead" and plan.on_cpu:
        lines.append("compile=reduce-overhead is the same as compile=default here, because CPUs have no CUDA graphs.")
    elif mode in ("reduce-overhead", "max-autotune") and plan.world_info.world_size > 1:
        lines.append(f"compile={mode}: torch skips CUDA graphs for batch norm under DistributedDataParallel.")
    return lines


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
    names = {name.lower(): name for name in classes}
    mirrored = [each for lower in names if "left" in lower and (each := names.get(lower.replace("left", "right")))]
    if mirrored:
        what = f"an image of {mirrored[0]} look like its counterpart on the left"
    elif set("0123456789") <= names.keys():
        what = "a digit look like another"
    else:
        return []
    return [f"data.flip={data.flip:g} mirrors images, which may make {what}. Hint: set data.flip=0."]


def _data_line(data: ImageDataModule, config: Config) -> str:
    source = data.source
    few = ""
    if len(source.classes) < 5:
        few = f" Fewer than 5 classes: top-5 is top-{len(source.classes)}, always 100 %, and left out of this log."
    sampled = " Each class is equally frequent in training." if config.data.sampling == "balanced" else ""
    return (
        f"Data: {config.data.target or config.data.name}, {len(data.train_images)} training"
        f" and {len(data.val_images)} validation images of {len(source.classes)} classes.{sampled}{few}"
    )


def _optimizer_words(optim: OptimConfig) -> str:
    if optim.target:
        return optim.target
    momentum = f" momentum {optim.momentum:g}" if optim.name in ("sgd", "rmsprop", "lars", "muon") else ""
    none_on = f" (none on {', '.join(kinds)})" if (kinds := no_decay_kinds(optim)) else ""
    share = optim.lr_adamw / optim.lr
    adamw = f" (vectors and last layer: adamw at {share:g} times the rate)" if optim.name == "muon" else ""
    return f"{optim.name}{adamw}{momentum} weight decay {optim.weight_decay:g}{none_on}"


def _schedule_words(schedule: ScheduleConfig, warmup_epochs: float) -> str:
    name, gamma, final = schedule.name, schedule.gamma, schedule.final_fraction
    again = f", again every {schedule.cycle_epochs} epochs" if schedule.cycle_epochs else ""
    unit, milestones = "epochs", schedule.milestones
    if schedule.milestone_steps is not None:
        unit, milestones = "steps", schedule.milestone_steps
    words = {
        "step": f"× {gamma:g} every {schedule.step_epochs} epochs",
        "multistep": f"× {gamma:g} at {unit} {', '.join(map(str, milestones))}",
        "exponential": f"× {gamma:g} each epoch",
        "cosine": f"cosine to {final:g}{again}",
        "linear": f"linear to {final:g}",
        "poly": f"polynomial of power {schedule.power:g} to {final:g}",
        "one_cycle": f"one cycle, top at {percent(schedule.peak_fraction, 0)}, to {final:g}",
        "wsd": f"constant, then linear to {final:g} in the last {percent(schedule.decay_fraction, 0)}",
        "constant": "constant",
    }[name]
    return words + (f" after {_epochs(warmup_epochs)} of warm-up" if warmup_epochs else "")


def _loss_words(loss: LossConfig) -> str:
    name = {"cross_entropy": "cross entropy", "bce": "binary cross entropy", "focal": "focal loss"}[loss.name]
    option = loss.class_weights
    weights = "" if option is None else ", balanced class weights" if option == "balanced" else ", class weights"
    return f"{name}{weights}, label smoothing {loss.label_smoothing:g}"


def _class_weight_lines(option: Any, classes: list[str]) -> list[str]:
    """Return a line with the classes of typed weights, because their order is that of text: 0, 1, 10, 2."""
    if option is None or option == "balanced":
        return []
    pairs = zip(classes, weights_by_class(option, classes), strict=False)
    return [f"Class weights: {shorten_list([f'{name}: {weight:g}' for name, weight in pairs], 20)}."]


def learning_lines(config: Config, start_epoch: int) -> list[str]:
    """Return the lines on learning rates that differ between layers, and on the average of the weights."""
    lines: list[str] = []
    optim, averaging = config.optim, config.averaging
    if optim.lr_head is not None:
        lines.append(f"Learning rate of the last layer: {optim.lr_head / optim.lr:g} times that of the others.")
    if optim.layer_decay is not None:
        lines.append(f"Learning rate of each block: {optim.layer_decay:g} times that of the next.")
    if averaging.name != "none":
        steps = averaging.every_n_steps
        when = "after every step" if steps == 1 else f"every {steps} steps"
        is_ema = averaging.name == "ema"
        decay = ("(1 + n) / (10 + n) in update n but at most " if averaging.warmup else "") + f"{averaging.decay:g}"
        how = f"exponential, decay {decay}, {when}" if is_ema else "equal, at the end of each epoch"
        lines.append(f"Average of the weights, validated and stored: {how}, from epoch {start_epoch + 1}.")
    return lines


def _epochs(number: float | None) -> str:
    """Format a number of epochs. None or -1 means that there is no limit."""
    return "unlimited epochs" if number in (None, -1) else f"{number:g} epoch{'' if number == 1 else 's'}"


def _device_words(plan: Plan) -> str:
    device = devices.device_of(plan.config.trainer, plan.world_info.local_rank)
    return {"cpu": "CPU", "mps": "Apple GPU (mps)"}.get(device.type) or str(torch.cuda.get_device_name(device))
