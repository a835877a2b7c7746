"""Find mistakes in the options of what is learned: net, optimizer, schedule, loss, teacher and weight average, without
importing torch."""

from collections.abc import Sequence

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.paths import is_file
from imagenet_ddp.config.schema.keys import validate_group
from imagenet_ddp.config.schema.losses import LossConfig
from imagenet_ddp.config.schema.optimizers import OPTIMIZERS, OptimConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.schedules import SCHEDULES, ScheduleConfig, Warmed
from imagenet_ddp.config.validators import integer, number, shown
from imagenet_ddp.mistakes import Fix, Mistake, example, key_of, must_be, setting
from imagenet_ddp.models import check_nets


def validate(config: CommonConfig, *, partial: bool = False) -> list[Mistake]:
    """Return every mistake. partial: a checkpoint sets the other keys, so check each key on its own."""
    found = check_nets.validate(config)
    for group in ("model", "optim", "schedule", "loss", "module", "teacher", "averaging", "compile"):
        found += validate_group(group, config[group])
    return found if partial else found + _combinations(config)


def rate_of_another(config: CommonConfig, typed: Sequence[str]) -> list[Mistake]:
    """Return a mistake if an optimizer without a file of values is named, but no rate is typed for it. typed: the
    options as typed."""
    optim, keys = config.optim, set(map(key_of, typed))
    has_file = (conf_dir() / f"optim/{optim.name}.yaml").exists()
    if "optim.name" not in keys or "optim.lr" in keys or has_file or optim.target or optim.name not in OPTIMIZERS:
        return []
    what = f"optim.name={optim.name} needs a learning rate of its own, got that of another optimizer, {optim.lr:g}"
    return [Mistake(what, ("optim.lr", "optim.name"), (example("optim.lr=0.001"),))]


def _combinations(config: CommonConfig) -> list[Mistake]:
    return [
        *_own_args(config.optim),
        *_warmup(config.schedule),
        *_smoothed_bce(config.loss),
        *_endless(config),
        *_averaging(config),
        *_without_weights(config),
    ]


def _own_args(optim: OptimConfig) -> list[Mistake]:
    """Return the mistakes in optim.args, which must not set what has a key of its own."""
    found: list[Mistake] = []
    # args.lr has no effect, because each group has its own rate; the log shows optim.weight_decay, not that of args
    for key in ("lr",) if optim.target else ("lr", "weight_decay"):
        if key in optim.args:
            value = shown(optim.args[key])
            path, fix = f"optim.args.{key}", Fix((f"optim.{key}={value}",), (f"optim.args.{key}",))
            found.append(must_be(path, f"set as optim.{key}", value, fix))
    return found


def _smoothed_bce(loss: LossConfig) -> list[Mistake]:
    if loss.get("bce_threshold") != 0 or not number(above=0).accepts(loss.get("label_smoothing")):
        return []
    what = (
        "loss.bce_threshold=0 turns each label above 0 into 1, and loss.label_smoothing raises all labels above 0, "
        "so every image would belong to all classes"
    )
    return [Mistake(what, ("loss.bce_threshold", "loss.label_smoothing"), (setting("loss.label_smoothing=0"),))]


def _endless(config: CommonConfig) -> list[Mistake]:
    max_epochs, schedule = config.trainer.max_epochs, config.schedule
    has_end = max_epochs not in (-1, None) or integer(1).accepts(config.trainer.max_steps)
    if has_end or not schedule.to_the_end:
        return []
    what = (
        f"schedule.name={schedule.name} depends on the end of training, but trainer.max_epochs is {shown(max_epochs)}"
    )
    fixes = example("trainer.max_epochs=90"), setting("schedule.name=constant")
    return [Mistake(what, ("schedule.name", "trainer.max_epochs"), fixes)]


def _averaging(config: CommonConfig) -> list[Mistake]:
    """Return the mistakes in the average of the weights: its precision, and an epoch from which there is none."""
    averaging, precision, max_epochs = config.averaging, config.trainer.precision, config.trainer.max_epochs
    found: list[Mistake] = []
    if averaging.name != "none" and precision in ("bf16-true", "16-true"):
        what = (
            f"averaging.name={averaging.name} needs 32-bit weights, because 16-bit weights lose small changes, but "
            f"trainer.precision is {precision}"
        )
        fix = setting(f"trainer.precision={precision.replace('true', 'mixed')}")
        found.append(Mistake(what, ("averaging.name", "trainer.precision"), (fix,)))
    has_last = integer(0).accepts(max_epochs)
    if averaging.name != "none" and has_last and (averaging.start_epoch or 0) >= max(max_epochs or 0, 1):
        what = f"averaging.start_epoch must be less than trainer.max_epochs ({max_epochs}), got {averaging.start_epoch}"
        keys = ("averaging.start_epoch", "trainer.max_epochs")
        found.append(Mistake(what, keys, (setting("averaging.start_epoch=0"),)))
    has_last |= bool(config.budget_min)
    if averaging.name == "swa" and averaging.start_epoch is None and not has_last:
        what = (
            f"averaging.name=swa averages the last quarter of trainer.max_epochs, which is {shown(max_epochs)}, unless "
            "averaging.start_epoch is set"
        )
        fixes = example("averaging.start_epoch=1"), example("trainer.max_epochs=90")
        found.append(Mistake(what, ("averaging.start_epoch", "trainer.max_epochs"), fixes))
    return found


def _without_weights(config: CommonConfig) -> list[Mistake]:
    """Return the mistakes in options that need pretrained weights, and those of a run of budget_min."""
    model, found = config.model, list[Mistake]()
    weights = setting("model.weights=FILE") if model.target else setting("model.weights=DEFAULT")
    if model.target and model.weights and not is_file(model.weights):
        what = f"model.weights={model.weights} is for a library's net, but model._target_={model.target} is your own"
        found.append(Mistake(what, ("model.weights", "model._target_"), (weights, setting("model.weights=null"))))
    for key, value, wanted, other in (
        ("freeze", model.freeze, "backbone", "null"),
        ("batch_norm", model.batch_norm, "frozen", "train"),
        ("head", model.head, "regression", "new"),
    ):
        # a net of the user's own may load its weights itself; only model.weights are refitted
        if value == wanted and not model.weights and (key == "head" or not model.target):
            what = f"model.{key}={value} needs pretrained layers, but model.weights is null"
            found.append(Mistake(what, (f"model.{key}", "model.weights"), (weights, setting(f"model.{key}={other}"))))
    if config.budget_min:
        found += _fixed_epochs(config)
    if config.budget_min and not model.weights:
        what = (
            "budget_min is for fine-tuning, because training from scratch needs its number of epochs, but "
            "model.weights is null"
        )
        found.append(Mistake(what, ("budget_min", "model.weights"), (weights, setting("budget_min=null"))))
    return found


def _fixed_epochs(config: CommonConfig) -> list[Mistake]:
    """Return the mistakes in options that count epochs or steps where budget_min chooses their number."""
    found: list[Mistake] = []
    model, schedule, trainer = config.model, config.schedule, config.trainer
    for key, value, unset in (
        ("model.unfreeze_epoch", model.unfreeze_epoch, "null"),
        ("averaging.start_epoch", config.averaging.start_epoch, "null"),
        ("data.progressive_start", config.data.progressive_start, "null"),
        ("schedule.cycle_epochs", schedule.get("cycle_epochs"), "null"),
        ("trainer.min_epochs", trainer.min_epochs, "null"),
        ("trainer.min_steps", trainer.min_steps, "null"),
        ("trainer.limit_train_batches", trainer.limit_train_batches, "null"),
        ("trainer.overfit_batches", trainer.overfit_batches, "0"),
    ):
        if value:
            what = f"{key} must be {unset} with budget_min, which chooses the length of the run, got {shown(value)}"
            found.append(Mistake(what, (key, "budget_min"), (setting(f"{key}={unset}"), setting("budget_min=null"))))
    if schedule.at_epochs:
        what = f"schedule.name must follow the epochs, whose number budget_min chooses, got {schedule.name}"
        own = SCHEDULES["cosine"]()
        unread = tuple(
            f"schedule.{key}" for key, value in type(schedule)().items() if key not in own and schedule[key] != value
        )
        fixes = Fix(("schedule.name=cosine",), unread), setting("budget_min=null")
        found.append(Mistake(what, ("schedule.name", "budget_min"), fixes))
    return found


def _warmup(schedule: ScheduleConfig) -> list[Mistake]:
    if not isinstance(schedule, Warmed):
        return []
    is_given = number(above=0).accepts(schedule.warmup_epochs)
    is_constant = schedule.warmup == "constant"
    if not (is_constant or schedule.interval == "epoch") or schedule.warmup_start != 0:
        return []
    if not (is_given or schedule.warmup_epochs == "auto"):
        return []
    option, until = "interval=epoch", "the second epoch"
    if is_constant:
        option, until = "warmup=constant", "the end of the warm-up"
    what = (
        f"schedule.{option} keeps the learning rate at schedule.warmup_start until {until}, but "
        "schedule.warmup_start is 0"
    )
    fixes = example("schedule.warmup_start=0.01"), setting("schedule.warmup_epochs=0")
    return [Mistake(what, (f"schedule.{option.partition('=')[0]}", "schedule.warmup_start"), fixes)]
