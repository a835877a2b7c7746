"""Find mistakes in the options of the net, optimizer, schedule, loss, teacher and weight average, without importing
torch."""

import re
from collections.abc import Sequence
from pathlib import Path

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.paths import WEIGHTS, is_file, is_remote
from imagenet_ddp.config.schema.keys import validate_group
from imagenet_ddp.config.schema.losses import LossConfig
from imagenet_ddp.config.schema.optimizers import OPTIMIZERS, OptimConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.schedules import SCHEDULES, ScheduleConfig, Warmed
from imagenet_ddp.config.validators import integer, number, shown
from imagenet_ddp.mistakes import Fix, Mistake, did_you_mean, example, key_of, meant, must_be, setting
from imagenet_ddp.models import timm_names
from imagenet_ddp.system.files import beside, expand_home
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import near_names

# torchvision.models.list_models(module=torchvision.models), with which a test compares them
CLASSIFIERS: tuple[str, ...] = (
    "alexnet", "convnext_base", "convnext_large", "convnext_small", "convnext_tiny", "densenet121", "densenet161",
    "densenet169", "densenet201", "efficientnet_b0", "efficientnet_b1", "efficientnet_b2", "efficientnet_b3",
    "efficientnet_b4", "efficientnet_b5", "efficientnet_b6", "efficientnet_b7", "efficientnet_v2_l",
    "efficientnet_v2_m", "efficientnet_v2_s", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5", "mnasnet0_75",
    "mnasnet1_0", "mnasnet1_3", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small", "regnet_x_16gf",
    "regnet_x_1_6gf", "regnet_x_32gf", "regnet_x_3_2gf", "regnet_x_400mf", "regnet_x_800mf", "regnet_x_8gf",
    "regnet_y_128gf", "regnet_y_16gf", "regnet_y_1_6gf", "regnet_y_32gf", "regnet_y_3_2gf", "regnet_y_400mf",
    "regnet_y_800mf", "regnet_y_8gf", "resnet101", "resnet152", "resnet18", "resnet34", "resnet50",
    "resnext101_32x8d", "resnext101_64x4d", "resnext50_32x4d", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "squeezenet1_0", "squeezenet1_1", "swin_b", "swin_s", "swin_t",
    "swin_v2_b", "swin_v2_s", "swin_v2_t", "vgg11", "vgg11_bn", "vgg13", "vgg13_bn", "vgg16", "vgg16_bn", "vgg19",
    "vgg19_bn", "vit_b_16", "vit_b_32", "vit_h_14", "vit_l_16", "vit_l_32", "wide_resnet101_2", "wide_resnet50_2",
)  # fmt: skip

# Words of other programs, and of people, for the weights that a library calls DEFAULT, and for none.
_WORDS = {
    "DEFAULT": ("true", "yes", "on", "1", "default", "pretrained", "imagenet", "imagenet1k", "imagenet-1k"),
    "null": ("false", "no", "off", "0", "none", "random", "scratch"),
}


def validate(config: CommonConfig, *, partial: bool = False) -> list[Mistake]:
    """Return every mistake. partial: a checkpoint sets the other keys, so check each key on its own."""
    found = _names(config)
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


def _names(config: CommonConfig) -> list[Mistake]:
    model, optim, teacher = config.model, config.optim, config.teacher
    found, needs_timm = list[Mistake](), list[str]()
    models = [("model", model.name, model.library)] if not model.target else []
    models += [("teacher", teacher.name, teacher.library)] if teacher.weights and teacher.name else []
    of_library = not model.target
    for group, weights, has_library in (("model", model.weights, of_library), ("teacher", teacher.weights, True)):
        if weights and not is_file(weights) and (fix := _meant_weights(group, weights, has_library=has_library)):
            allowed = "DEFAULT, another name of the library's weights, a file, a URL or null"
            found.append(must_be(f"{group}.weights", allowed, weights, fix))
    for group, name, library in models:
        if library == "timm":
            needs_timm.append(f"{group}.library=timm")
        if wrong := _wrong_name(group, name, library):
            found.append(wrong)
    if optim.package:
        found += missing_package(f"optim.name={optim.name}", optim.package)
    return found + (missing_package(needs_timm[0], "timm") if needs_timm else [])


def _meant_weights(group: str, weights: str, *, has_library: bool) -> Fix | None:
    """Return the fix of a word that names no weights in any library, but says which are meant: those of ImageNet, none,
    or those of the net that it names."""
    word = next((word for word, others in _WORDS.items() if weights != word and weights.lower() in others), "")
    if word:
        return meant(f"{group}.weights={word}") if word == "null" or has_library else None
    name, _, tag = weights.partition(".")
    is_net = has_library and (name in CLASSIFIERS or name in timm_names.names())
    library = (f"{group}.library=timm",) if tag or name not in CLASSIFIERS else ()
    return meant(*library, f"{group}.name={name}", f"{group}.weights={tag or 'DEFAULT'}") if is_net else None


def missing_weights(config: CommonConfig, typed: Sequence[str]) -> list[Mistake]:
    """Return a mistake for each typed file of weights that does not exist. typed: the options as typed."""
    values = {key: config[key.partition(".")[0]].weights for key in WEIGHTS if key in map(key_of, typed)}
    paths = {key: expand_home(value) for key, value in values.items() if value and is_file(value)}
    has_library = {"model.weights": not config.model.target, "teacher.weights": True}
    return [
        no_file_of_weights(key, path, has_library=has_library[key])
        for key, path in paths.items()
        if not (is_remote(str(values[key])) or path.exists())
    ]


def no_file_of_weights(key: str, path: Path, *, has_library: bool) -> Mistake:
    """Return the mistake of a file of weights that does not exist. has_library: whether the net is one of a library."""
    ways = (setting(f"{key}=DEFAULT", aim="to load the weights of the library"),) if has_library else ()
    if near := beside(path, lambda each: (each.is_file() and each.suffix == path.suffix) or _is_run(each)):
        ways = (did_you_mean(f"{key}={near}"),)
    what = f"{key} must be a file of weights, but {path} does not exist"
    return Mistake(what, (key,), ways, "" if ways else "correct the path", missing=str(path))


def _is_run(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir()


def _wrong_name(group: str, name: str, library: str) -> Mistake | None:
    """Return the mistake of a name that the library does not have, as far as it is known before timm is imported."""
    key, of_timm = f"{group}.name", timm_names.names() if library == "timm" or name not in CLASSIFIERS else ()
    if library == "timm":
        # what else a name may hold is checked where the net is made
        if not of_timm or not re.fullmatch(r"[\w.-]+", name) or timm_names.is_of_timm(name):
            return None
        return must_be(key, "a net of timm", shown(name), _meant(key, name, timm_names.nearest(name, of_timm)))
    if name in CLASSIFIERS or library != "torchvision":  # which is a mistake of its own
        return None
    if timm_names.is_of_timm(name):
        fix = setting(f"{group}.library=timm")
        return Mistake(f"{key}={name} is a net of timm, but {group}.library is torchvision", (key,), (fix,))
    own = ", unless model._target_ names your own net" if group == "model" else ""
    allowed = f"a classifier of torchvision.models, or of timm with {group}.library=timm{own}"
    # as other programs spell it: torchvision.models.resnet50, timm/resnet50.a1_in1k, google/vit-base-patch16-224
    plain = name.rpartition("/")[2].removeprefix("torchvision.models.").lower().replace("-", "_")
    if plain in CLASSIFIERS:
        return must_be(key, allowed, shown(name), meant(f"{key}={plain}"))
    if timm_names.is_of_timm(plain):
        return must_be(key, allowed, shown(name), meant(f"{group}.library=timm", f"{key}={plain}"))
    close = timm_names.nearest(name, {*CLASSIFIERS, *of_timm})
    if close and close[0] not in CLASSIFIERS:
        fix = _meant(key, name, [each for each in close if each in of_timm], f"{group}.library=timm")
    else:
        fix = _meant(key, name, timm_names.nearest(name, CLASSIFIERS))
    return must_be(key, allowed, shown(name), fix)


def _meant(key: str, name: str, close: Sequence[str], *more: str) -> Fix:
    """Return the fix of a wrong name. close: the names that may be meant, the likeliest first; [] if none is close."""
    if not close:
        return example(*more, f"{key}=resnet18")
    options = *more, f"{key}={close[0]}"
    said = " or ".join([" ".join(options), *close[1:]])
    is_whole = not close[0].startswith(name.lower()) and bool(near_names(name.lower(), close[:1]))  # not of a family
    return Fix(options, said=f"did you mean {said}?", is_meant=is_whole, is_example=not is_whole)


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
