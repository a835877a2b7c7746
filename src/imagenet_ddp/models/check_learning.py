"""Find mistakes in the options of the net, optimizer, schedule, loss, teacher and weight average, without importing
torch."""

import importlib.util
from collections.abc import Mapping
from difflib import get_close_matches

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.schema.algorithms import OPTIMIZERS, SCHEDULES
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.schema.learning import ScheduleConfig
from imagenet_ddp.config.validators import integer, number, shown
from imagenet_ddp.models.known_names import CLASSIFIERS, is_file, is_remote
from imagenet_ddp.system.files import expand_home
from imagenet_ddp.system.text import install


def validate(config: CommonConfig, environ: Mapping[str, str], *, partial: bool = False) -> list[str]:
    """Return a message for each mistake. partial: a checkpoint sets the other keys, so check each key on its own."""
    found = _names(config)
    for group in ("model", "optim", "schedule", "loss", "teacher", "averaging", "compile"):
        found += validate_group(group, config[group])
    return found if partial else found + _weights(config) + _combinations(config)


def _names(config: CommonConfig) -> list[str]:
    model, optim, teacher = config.model, config.optim, config.teacher
    found: list[str] = []
    needs_timm: list[str] = []
    models = [("model", model.name, model.library)] if not model.target else []
    models += [("teacher", teacher.name, teacher.library)] if teacher.weights and teacher.name else []
    for group, name, library in models:
        if library == "timm":
            needs_timm.append(f"{group}.library=timm")  # only timm itself knows the names of its models
        elif name not in CLASSIFIERS:
            close = get_close_matches(name.lower(), CLASSIFIERS, 3)
            hint = f"did you mean {group}.name={' or '.join(close)}?" if close else f"set {group}.name=resnet18."
            own = ", unless model._target_ names your own net" if group == "model" else ""
            found.append(
                f"{group}.name must be a classifier of torchvision.models{own}, got {shown(name)}. Hint: {hint}"
            )
    if not optim.target:
        if optim.name not in OPTIMIZERS:
            close = get_close_matches(optim.name.lower(), OPTIMIZERS, 1)
            found.append(
                f"optim.name must be one of {', '.join(OPTIMIZERS)}, got {shown(optim.name)}. "
                f"Hint: set optim.name={close[0] if close else 'sgd'}, or optim._target_=torch.optim.Adam."
            )
        elif not OPTIMIZERS[optim.name].torch_class:
            needs_timm.append(f"optim.name={optim.name}")
    if needs_timm and importlib.util.find_spec("timm") is None:
        found.append(f"{needs_timm[0]} needs timm, which is not installed. Hint: run `{install('timm')}`.")
    return found


def _weights(config: CommonConfig) -> list[str]:
    found: list[str] = []
    starts = not config.get("resume") and not config.get("checkpoint")  # else the weights of a checkpoint replace these
    for key, weights in (
        ("model.weights", config.model.weights),
        ("teacher.weights", config.teacher.weights),
    ):
        is_local = weights is not None and is_file(weights) and not is_remote(weights)
        if starts and is_local and not expand_home(str(weights)).is_file():
            found.append(
                f"{key} must be a file of weights, but {weights} does not exist. "
                f"Hint: set {key}=DEFAULT to load the weights of the library."
            )
    if config.model.target and config.model.weights and not is_file(config.model.weights):
        found.append(
            f"model.weights must be a file if model._target_ is set, got {config.model.weights}. "
            "Hint: set model.weights=PATH."
        )
    return found


def _combinations(config: CommonConfig) -> list[str]:
    found: list[str] = []
    model, optim, schedule, loss, averaging = config.model, config.optim, config.schedule, config.loss, config.averaging
    trainer = config.trainer
    # args.lr has no effect, because each group has its own rate; the log shows optim.weight_decay, not that of args
    for key in ("lr", "weight_decay"):
        if key in optim.args and (key == "lr" or not optim.target):
            value = shown(optim.args[key])
            found.append(f"optim.args.{key} must be set as optim.{key}, got {value}. Hint: set optim.{key}={value}.")
    found += _schedule(schedule)
    if loss.bce_threshold == 0 and number(above=0).accepts(loss.label_smoothing):
        found.append(
            "loss.bce_threshold=0 turns each label above 0 into 1, and loss.label_smoothing="
            f"{loss.label_smoothing} raises all labels above 0, so every image would belong to all "
            "classes. Hint: set loss.label_smoothing=0."
        )
    in_steps = (schedule.warmup_steps, schedule.milestone_steps, None if trainer.max_steps == -1 else trainer.max_steps)
    if any(value is not None for value in in_steps) and config.has_accumulation_scheduler:
        found.append(
            "schedule.warmup_steps, schedule.milestone_steps and trainer.max_steps must be left out beside "
            "GradientAccumulationScheduler, which changes the number of steps in an epoch. Hint: set "
            "trainer.max_epochs, schedule.warmup_epochs and schedule.milestones instead."
        )
    max_epochs, precision = trainer.max_epochs, trainer.precision
    endless = not integer(1).accepts(max_epochs) and max_epochs in (-1, None)
    endless = endless and not integer(1).accepts(trainer.max_steps)
    row = SCHEDULES.get(schedule.name)
    if endless and row and row.to_the_end and not (schedule.name == "cosine" and schedule.cycle_epochs):
        found.append(
            f"schedule.name={schedule.name} depends on the end of training, but trainer.max_epochs "
            f"is {shown(max_epochs)}. Hint: set trainer.max_epochs=90, or schedule.name=constant."
        )
    if endless and averaging.name == "swa" and averaging.start_epoch is None:
        found.append(
            "averaging.name=swa averages the last quarter of the epochs, but trainer.max_epochs is "
            f"{shown(max_epochs)}. Hint: set averaging.start_epoch=75."
        )
    if averaging.name != "none" and precision in ("bf16-true", "16-true"):
        found.append(
            f"averaging.name={averaging.name} needs 32-bit weights, because 16-bit weights lose small changes, but "
            f"trainer.precision is {precision}. Hint: set trainer.precision={precision.replace('true', 'mixed')}."
        )
    if averaging.name != "none" and not endless and (averaging.start_epoch or 0) >= (max_epochs or 1):
        found.append(
            f"averaging.start_epoch must be less than trainer.max_epochs ({max_epochs}), got "
            f"{averaging.start_epoch}. Hint: set averaging.start_epoch=0."
        )
    if model.unfreeze_epoch is not None and config.strategy.static_graph:
        found.append(
            "strategy.static_graph=true needs the same graph in every step, but model.unfreeze_epoch changes it. "
            "Hint: set strategy.static_graph=false."
        )
    for key, value, wanted, other in (
        ("freeze", model.freeze, "backbone", "null"),
        ("batch_norm", model.batch_norm, "frozen", "train"),
        ("head", model.head, "regression", "new"),
    ):
        if value == wanted and not model.weights:
            found.append(
                f"model.{key}={value} needs pretrained layers, but model.weights is null. Hint: set "
                f"model.weights=DEFAULT, or model.{key}={other}."
            )
    if config.get("budget_min") and not model.weights:
        found.append(
            "budget_min is for fine-tuning, because training from scratch needs its number of epochs, but "
            "model.weights is null. Hint: set model.weights=DEFAULT, or leave budget_min out."
        )
    if loss.class_weights == "balanced" and config.data.sampling == "balanced":
        found.append(
            "loss.class_weights=balanced and data.sampling=balanced both compensate for rare classes, so together they "
            "compensate twice. Hint: set loss.class_weights=null, or data.sampling=shuffled."
        )
    return found


def _schedule(schedule: ScheduleConfig) -> list[str]:
    """Return a message for each mistake in the warm-up."""
    epochs = schedule.warmup_epochs
    is_given = number(above=0).accepts(epochs)
    if schedule.name == "one_cycle" and is_given:
        return [
            f"schedule.name=one_cycle includes a warm-up, but schedule.warmup_epochs is {epochs}, so the rate would "
            "rise twice. Hint: set schedule.warmup_epochs=0; schedule.peak_fraction sets the length of the rise."
        ]
    is_constant = schedule.warmup == "constant"
    if not (is_constant or schedule.interval == "epoch") or schedule.warmup_start != 0:
        return []
    if not (is_given or epochs == "auto"):
        return []
    option, until = "interval=epoch", "the second epoch"
    if is_constant:
        option, until = "warmup=constant", "the end of the warm-up"
    return [
        f"schedule.{option} keeps the learning rate at schedule.warmup_start until {until}, but "
        "schedule.warmup_start is 0. Hint: set schedule.warmup_start=0.01, or schedule.warmup_epochs=0."
    ]
