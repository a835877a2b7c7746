"""Find mistakes in the names of nets and of their weights, without importing torch."""

import re
from collections.abc import Sequence
from pathlib import Path

from imagenet_ddp.config.paths import WEIGHTS, is_file, is_remote
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.validators import shown
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


def validate(config: CommonConfig) -> list[Mistake]:
    """Return a mistake for each name of a net, and of its weights, that no library has."""
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
