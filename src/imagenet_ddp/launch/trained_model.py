"""Read a trained net: a checkpoint of this project, or weights of a library or of another program."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig
from torch import Tensor

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import lay_over
from imagenet_ddp.config.figures import START, TOP1
from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.data.sources.imagenet import NUM_CLASSES, check_classes, class_labels
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.models.factory import create_model
from imagenet_ddp.models.head import head_names
from imagenet_ddp.models.weights.facts import Facts, larger_imagenet
from imagenet_ddp.models.weights.load import load_weights_into, num_outputs
from imagenet_ddp.models.weights.pretrained import Weights, find_weights
from imagenet_ddp.runs.checkpoint_file import KEY, is_own, read
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.folder import is_being_trained
from imagenet_ddp.system.text import class_list

if TYPE_CHECKING:
    from imagenet_ddp.data.sources.base import Source


@dataclass(frozen=True)
class TrainedModel:
    """A trained net and the names of its classes.

    origin: the file, or the name of the weights in their library. what: how long it was trained, for the log.
    weights: tensors by the net's own names. contents: this project's part of a checkpoint; {} for other weights.
    is_best: whether these are the weights of contents["best_score"]. has_names: whether the names of the classes are
    known, else they are numbers. notes: lines for the log. epochs: those that were trained; None if unknown.
    num_val_images: those of the last validation; None if unknown.
    """

    origin: str
    what: str
    weights: Mapping[str, Tensor]
    classes: list[str]
    labels: list[str]  # names for display, in the order of classes
    contents: Mapping[str, Any] = field(default_factory=dict[str, Any])
    is_best: bool = False
    has_names: bool = True
    notes: tuple[str, ...] = ()
    epochs: int | None = None
    num_val_images: int | None = None

    def positions(self, source: "Source") -> np.ndarray:
        """Return the positions of a source's classes among those of the net. Raises ConfigError if the net does not
        have all of them, or if its classes have no names and another number."""
        if self.has_names:
            return check_classes(source, self.classes, self.origin)
        if len(source.classes) != len(self.classes):
            what = (
                f"the data must have the {len(self.classes)} classes of {self.origin}, got {len(source.classes)}: "
                f"{class_list(source.classes)}"
            )
            way = setting("data.root=FOLDER", aim="to the data of its training")
            raise ConfigError(Mistake(what, ("data.root",), (way,)))
        return np.arange(len(self.classes))


def load(config: CommonConfig, path: Path | None) -> TrainedModel:
    """Return the trained net that a command names. config: the resolved options. path: the file of checkpoint=; None:
    the weights of model.weights. Raises ConfigError if it cannot be read or does not fit the net."""
    if path is not None and is_own(path):
        stored = read(path)
        contents, prefix = stored[KEY], "net."
        weights = {
            key.removeprefix(prefix): each for key, each in stored["state_dict"].items() if key.startswith(prefix)
        }
        is_score = contents["monitor"] == f"val/{TOP1.name}"
        is_best = is_score and contents["best_step"] == stored["global_step"]
        epochs = contents["epoch"] + 1 if stored["global_step"] else 0
        of = f"epoch {epochs}" if epochs else f"the start: {contents.get('start', START)}"
        what = f"{of}, imagenet_ddp {contents['version']}"
        names = contents["classes"], contents["labels"]
        counted = (stored.get("num_counted") or [None])[0]
        run = CheckpointStore.run_dir_of(path)
        going_on = f"The training in {run} has not ended: these are its weights so far. Type this again at its end."
        notes = (going_on,) if is_being_trained(path) else ()
        return TrainedModel(
            str(path), what, weights, *names, contents, is_best, notes=notes, epochs=epochs, num_val_images=counted
        )
    return _of_weights(config, find_other(config.model, path))


def find_other(model: ModelConfig, path: Path | None = None) -> Weights:
    """Find weights that are no checkpoint of this project. path: the file of checkpoint=; None: model.weights."""
    key, value = ("checkpoint", str(path)) if path is not None else ("model.weights", str(model.weights))
    return find_weights(key, value, "" if model.target else model.library, model.name)


def _of_weights(config: CommonConfig, found: Weights) -> TrainedModel:
    model, facts, size = config.model, found.facts, config.data.image_size
    num_classes = len(facts.classes) or NUM_CLASSES
    net = create_model(model, num_classes, 0, size)
    outputs = num_outputs(net, found, head_names(net, num_classes))
    if outputs not in (None, num_classes):
        num_classes = outputs
        net = create_model(model, num_classes, 0, size)
    sentence, head_fits = load_weights_into(net, found, head_names(net, num_classes), facts.classes)
    if not head_fits:
        raise ConfigError(
            f"{found.origin} must hold the last layer of the net, which tells the classes apart, but does not. "
            "Hint: train one: run `python -m imagenet_ddp.train experiment=finetune data.root=FOLDER` "
            "with the same model.name and model.weights."
        )
    classes, labels, has_names = facts.classes, facts.labels, True
    if len(classes) != num_classes:
        known = class_labels() if num_classes == NUM_CLASSES else {}
        if not known and model.library == "timm" and not model.target:
            known = larger_imagenet(num_classes)
        has_names = bool(known)
        known = known or {str(number): str(number) for number in range(num_classes)}
        classes, labels = list(known), list(known.values())
    notes = [sentence, *facts.lines(config.data)]
    if not has_names:
        notes.append(f"{found.origin} does not name its {num_classes} classes: predict and export number them from 0.")
    what = f"{num_classes:,} classes"
    return TrainedModel(found.origin, what, net.state_dict(), classes, labels, has_names=has_names, notes=tuple(notes))


def use_preprocessing(config: DictConfig, request: parse.Request, facts: Facts) -> None:
    """Set the keys of data.* that are not typed to the preprocessing of pretrained weights, in place. In a training,
    only those that still have their defaults, because an experiment may choose others."""
    if not facts.data:
        return
    data, is_training = config.data, request.verb in ("train", "features")
    usual = {"image_size": (224,), "val_resize": (None, round(data.image_size * 256 / 224)),
             "interpolation": ("bilinear",), "fit": ("crop",), "mean": (None,), "std": (None,)}  # fmt: skip

    def is_free(key: str) -> bool:
        return not request.is_typed(f"data.{key}") and not (is_training and data[key] not in usual[key])

    free = [key for key in facts.data if is_free(key)]
    own = facts.data_at(facts.data["image_size"] if "image_size" in free else data.image_size)
    lay_over(data, {key: own[key] for key in free})
    if not is_training:
        used = facts.as_used.items()
        lay_over(data, {key: value for key, value in used if not request.is_typed(f"data.{key}")})
