"""Say at the start of a run what it will do. What a person must know first is on the screen; the log file has the
choices of the plan with their reasons."""

from collections.abc import Sequence

import lightning.pytorch as L
import torch
from torch import nn

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.losses import LossConfig, NamedLoss
from imagenet_ddp.config.schema.optimizers import OptimConfig
from imagenet_ddp.config.schema.schedules import Warmed
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.launch.plan import Config, Plan
from imagenet_ddp.launch.world import World
from imagenet_ddp.models.losses import weights_by_class
from imagenet_ddp.models.lr_schedules import scaled_lr, scaling_rule
from imagenet_ddp.strategies import batch_split
from imagenet_ddp.system import nvidia_gpus
from imagenet_ddp.system.files import read_mapping, where
from imagenet_ddp.system.text import count_noun, shorten_list

FEW_IMAGES = 20_000  # a sixtieth of ImageNet
FAR_RATE = 30  # SGD's usual rate is 100 times that of AdamW
CLASSES_ON_SCREEN = 5


def opening_lines(plan: Plan, data: ImageDataModule, net: nn.Module) -> list[str]:
    """Return the lines for the screen: ranks, data, recipe, the arithmetic of batch and learning rate, net, device, and
    what may be a mistake. Together with detail_lines they have each automatic choice."""
    config, place, classes = plan.config, plan.place, data.source.classes
    options, model = config.data, config.model
    sampled = " Each class is equally frequent in training." if options.sampling == "balanced" else ""
    location = where(data.train_images.location) if options.root or options.target else ""
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in net.parameters()]
    number, trained = sum(size for size, _ in sizes), sum(size for size, is_trained in sizes if is_trained)
    parameters = count_noun(number, "parameter") + (f" ({trained:,} of them trained)" if trained != number else "")
    return [
        *([place.sentence()] if place.world_size > 1 else []),
        f"Data: {options.target or options.name}, {len(data.train_images):,} training and {len(data.val_images):,}"
        f" validation images of {count_noun(len(classes), 'class')}{location}.{sampled}",
        *data.source.notes,
        *_recipe_lines(plan, data),
        f"Net: {model.target or model.name}, {parameters}"
        + ("." if plan.compile.value == "off" else f", compiled (mode {plan.compile.value}).")
        + f" Device: {_device(plan)}, {plan.precision.value},"
        f" {count_noun(torch.get_num_threads(), 'thread')} per process,"
        f" {count_noun(plan.num_workers.value, 'loader worker')}.",
        *own_module_lines(model.target, net),
        *from_scratch_lines(config, len(data.train_images)),
        *(mirrored_class_lines(options, classes) if config.trainer.max_epochs != 0 else []),
    ]


def _recipe_lines(plan: Plan, data: ImageDataModule) -> list[str]:
    """Return the lines on what is trained, and how. A run of no epochs has no optimizer, batch or learning rate."""
    config, options, optim = plan.config, plan.config.data, plan.config.optim
    if config.trainer.max_epochs == 0:
        what = "the last layer alone, by logistic regression" if config.model.head == "regression" else "no training"
        return [f"Recipe: {what}, at {options.image_size} pixels."]
    decay = f" weight decay {optim['weight_decay']:g}," if "weight_decay" in optim else ""
    return [
        f"Recipe: {'at most ' if config['budget_min'] else ''}{_epochs(config.trainer.max_epochs)} at"
        f" {options.image_size} pixels, optimizer {optim.target or optim.name},{decay}"
        f" schedule {_schedule_words(plan)}, loss {_loss_words(config.loss)}"
        + (f", transform {config.transform.target}" if config.transform.target else "")
        + (f", steps of {config.module.target}." if config.module.target else "."),
        *_class_weight_lines(plan, data.source.classes, CLASSES_ON_SCREEN),
        *_batch_lines(plan),
        *large_batch_lines(plan, options.repeats * len(data.train_images)),
        f"Learning rate: {plan.learning_rate.reason} = {plan.learning_rate.value:g}."
        if scaling_rule(optim) != "none"
        else f"Learning rate: {plan.learning_rate.value:g}, {plan.learning_rate.reason}.",
        *far_rate_lines(plan),
        *(_warmup_lines(plan) if plan.warmup_epochs.value else []),
    ]


def detail_lines(plan: Plan, world: World, data: ImageDataModule) -> list[str]:
    """Return the lines that only the log file has: the reasons of choices that seldom matter, and the hardware."""
    config, place, classes = plan.config, plan.place, data.source.classes
    mode, why_compiled = plan.compile
    few = [f"Top-5 is always 100 % with {count_noun(len(classes), 'class')}, and is left out of this log."]
    return [
        *([place.sentence()] if place.world_size == 1 else []),
        *(_training_lines(plan, classes) if config.trainer.max_epochs != 0 else []),
        f"Device: {_device(plan)}, {plan.accelerator.reason}; {count_noun(torch.get_num_threads(), 'thread')} per"
        f" process ({plan.num_threads.reason}). Precision: {plan.precision.value}, {plan.precision.reason}.",
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
        *(few if len(classes) <= 5 else []),
    ]


def _training_lines(plan: Plan, classes: Sequence[str]) -> list[str]:
    """Return the lines of detail_lines on steps of the optimizer."""
    return [
        *_class_weight_lines(plan, classes, len(classes)),
        *_averaging_lines(plan),
        *([] if plan.warmup_epochs.value else _warmup_lines(plan)),
        f"Optimizer step: {'fused' if plan.fused.value else 'not fused'}, {plan.fused.reason}.",
    ]


def _device(plan: Plan) -> str:
    """Return the kind of device, and the number of GPUs: "CPU", "8 × NVIDIA H200"."""
    if plan.device.type != "cuda":
        return {"cpu": "CPU", "mps": "Apple GPU (mps)"}[plan.device.type]
    name = torch.cuda.get_device_name(plan.device)
    return f"{plan.num_devices} × {name}" if plan.num_devices > 1 else name


def _schedule_words(plan: Plan) -> str:
    """Return the name of the schedule, and a warm-up that was not chosen by auto, which _warmup_lines explain."""
    schedule, warmup = plan.config.schedule, plan.warmup_epochs.value
    is_set = warmup and isinstance(schedule, Warmed) and schedule.warmup_epochs != "auto"
    return f"{schedule.target or schedule.name}{f' with a warm-up of {_epochs(warmup)}' if is_set else ''}"


def _loss_words(loss: LossConfig) -> str:
    return f"{loss.name}, label smoothing {loss.label_smoothing:g}" if isinstance(loss, NamedLoss) else str(loss.target)


def _class_weight_lines(plan: Plan, classes: Sequence[str], at_most: int) -> list[str]:
    """Return a line with the typed weights of at_most classes."""
    if (typed := plan.config.loss.get("class_weights")) in (None, "balanced"):
        return []
    # their order is that of text: 0, 1, 10, 2
    pairs = zip(classes, weights_by_class(typed, classes), strict=False)
    return [f"Class weights: {shorten_list([f'{name}: {weight:g}' for name, weight in pairs], at_most)}."]


def _averaging_lines(plan: Plan) -> list[str]:
    averaging = plan.config.averaging
    if averaging.name == "none":
        return []
    warmed = "(1 + n) / (10 + n) in update n but at most " if averaging.warmup else ""
    how = f"exponential, decay {warmed}{averaging.decay:g}" if averaging.name == "ema" else "equal"
    start = f"from epoch {plan.averaging_start_epoch + 1}"
    if plan.config["budget_min"] and averaging.start_epoch is None and averaging.name == "swa":
        start = "over the last quarter of the epochs that budget_min allows"
    return [f"Average of the weights: {how}, {start}."]


def _warmup_lines(plan: Plan) -> list[str]:
    (warmup, reason), schedule, max_steps = plan.warmup_epochs, plan.config.schedule, plan.config.trainer.max_steps
    last = plan.config.trainer.max_epochs
    if warmup and last not in (None, -1) and warmup >= last > 0 and not plan.config["budget_min"]:
        return [
            f"The warm-up takes {_epochs(warmup)}, and so the whole run: the learning rate does not reach its value. "
            "Hint: set schedule.warmup_epochs=0, or a larger trainer.max_epochs."
        ]
    if not isinstance(schedule, Warmed) or schedule.warmup_epochs != "auto" or schedule.warmup_steps is not None:
        return []
    least = ", or a tenth of trainer.max_steps if that is less" if warmup and max_steps > 0 else ""
    words = _epochs(warmup) if warmup else "none"
    return [f"Warm-up: {words}{least}, because {reason} (schedule.warmup_epochs=auto)."]


def _batch_lines(plan: Plan) -> list[str]:
    """Return the lines on the batch arithmetic of an update, and on what a resumed run keeps or changes."""
    config, place = plan.config, plan.place
    batch_size, accumulate = config.data.batch_size, config.trainer.accumulate_grad_batches
    lines = batch_split.describe(config.strategy, batch_size, plan.num_own_devices, accumulate) or [
        f"Batch: {batch_size} per device × {count_noun(place.local_world_size, 'device')}"
        f" × {count_noun(place.num_nodes, 'node')} × {accumulate} accumulation ="
        f" {count_noun(plan.global_batch_size, 'image')} per update."
    ]
    if (before := plan.global_batch_size_before) in (None, plan.global_batch_size):
        return lines if plan.batch.reason == "as set" else [*lines, f"Reason for this batch: {plan.batch.reason}."]
    return [
        *lines,
        f"The batch changed from {before} to {count_noun(plan.global_batch_size, 'image')} per update"
        f" ({plan.batch.reason}); the learning rate is now {plan.learning_rate.value:g}.",
    ]


def large_batch_lines(plan: Plan, num_images: int) -> list[str]:
    """Return a line if an update is meant to have more images than an epoch has. num_images: of an epoch."""
    if plan.global_batch_size <= num_images:
        return []
    wanted = max(1, num_images * plan.config.data.batch_size // (10 * plan.global_batch_size))
    return [
        f"An epoch has {count_noun(num_images, 'image')}, and so one update, of all of them; the learning rate is that "
        f"for {plan.global_batch_size:,}. Hint: set data.batch_size={wanted}, for about ten updates per epoch."
    ]


def far_rate_lines(plan: Plan) -> list[str]:
    """Return a line if the learning rate is far above that of the optimizer's file of values for the same batch, such
    as one of SGD beside AdamW."""
    optim, file = plan.config.optim, conf_dir() / f"optim/{plan.config.optim.name}.yaml"
    if optim.target or not file.is_file():
        return []
    usual = scaled_lr(OptimConfig.of(**read_mapping(file)), plan.global_batch_size)
    times = plan.learning_rate.value / usual
    if times < FAR_RATE:
        return []
    return [
        f"A learning rate of {plan.learning_rate.value:g} is {times:,.0f} times that of conf/optim/{file.name} for "
        f"this batch, so the training may diverge. Hint: set optim.lr={optim.lr / times:.2g}."
    ]


def own_module_lines(target: str | None, net: nn.Module) -> list[str]:
    """Return a line if the net is a LightningModule, whose training is not that of this program."""
    if not isinstance(net, L.LightningModule):
        return []
    return [
        f"Of {target}, only forward is used: loss, optimizer and schedule are those of the options. "
        "Hint: to train by your own steps, set module._target_ to a class derived from ImageClassifier."
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
        "ImageNet usually reach a far higher accuracy. Hint: set experiment=own_photos."
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
    return "unlimited epochs" if number is None or number == -1 else count_noun(number, "epoch")
