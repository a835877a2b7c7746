"""Make the teacher of a training from pretrained weights."""

from collections.abc import Sequence

from imagenet_ddp.config.schema.data import IMAGENET_MEAN, IMAGENET_STD, DataConfig
from imagenet_ddp.config.schema.learning import ModelConfig, TeacherConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.config.validators import shown
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.models.factory import create_model, of_size
from imagenet_ddp.models.head import head_names
from imagenet_ddp.models.teacher import Teacher
from imagenet_ddp.models.weights.load import load_weights_into
from imagenet_ddp.models.weights.pretrained import find_weights


def make_teacher(
    teacher: TeacherConfig,
    model_name: str,
    data: DataConfig,
    classes: Sequence[str],
    mean: Sequence[float],
    std: Sequence[float],
) -> tuple[Teacher | None, str]:
    """Return (the teacher that the teacher.* keys describe, a sentence about it), or (None, "") if teacher.weights is
    null.

    model_name: name of the trained net. mean, std: the values that normalise the images. Raises ConfigError if the
    teacher was trained with other values, or on other classes.
    """
    num_classes = len(classes)
    if teacher.weights is None:
        return None, ""
    name = teacher.name or model_name
    model = ModelConfig(name=name, library=teacher.library, weights=teacher.weights)
    weights = find_weights("teacher.weights", teacher.weights, teacher.library, name)
    usual = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
    own = tuple(tuple(weights.facts.data.get(key, usual[key])) for key in usual)
    if "config" in weights.contents and teacher.name is None:  # a checkpoint of this program
        model = to_config({**model, **weights.contents["config"]["model"]}, ModelConfig)
    if model.target:  # the file names code to call, which the check of allow_targets has not seen
        what = (
            f"teacher.weights must belong to a network of torchvision or timm, but {weights.origin} belongs to "
            f"{model.target}"
        )
        raise ConfigError(Mistake(what, ("teacher.weights",), (setting("teacher.weights=null"),)))
    if own != (tuple(mean), tuple(std)):
        what = (
            f"teacher.weights were trained with mean {shown(own[0])} and std {shown(own[1])}, but data.mean is "
            f"{shown(mean)} and data.std is {shown(std)}"
        )
        way = setting(f"data.mean={shown(own[0])}", f"data.std={shown(own[1])}")
        raise ConfigError(Mistake(what, ("teacher.weights", "data.mean", "data.std"), (way,)))
    with of_size(model, weights.tensors, weights.origin):
        net = create_model(model, num_classes, 0, data.image_size)
    sentence, head_fits = load_weights_into(net, weights, head_names(net, num_classes), classes)
    if not head_fits:
        raise ConfigError(
            f"teacher.weights must have the {num_classes} classes of the training data, but {weights.origin} has other "
            "classes. Hint: train the teacher on the same data."
        )
    return Teacher(net, teacher.share, teacher.temperature), f"Teacher: {sentence}"
