"""Read the config of a checkpoint, or complete that of other weights, for an evaluation, a prediction or an export, and
open the model for a prediction. Import torch only to read them."""

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import follow_image_size, lay_over, merge_overrides, quoted
from imagenet_ddp.config.schema.data import DataConfig, FilesData, FolderData
from imagenet_ddp.config.schema.run import TrainedConfig
from imagenet_ddp.config.section import to_config, typed_config
from imagenet_ddp.data.sources.layout import find_layout
from imagenet_ddp.data.sources.registry import options_for
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.exported.formats.registry import graph_format
from imagenet_ddp.launch.job import TYPED_ONLY, T, checked
from imagenet_ddp.launch.resume import refuse_lost_data
from imagenet_ddp.mistakes import Mistake, must_be, setting, without
from imagenet_ddp.runs.checkpoint_store import require_whole
from imagenet_ddp.system.text import without_secrets

# Keys that belong to the machine on which an evaluation runs, not to the run that wrote the checkpoint.
OF_THIS_MACHINE = (
    "trainer.accelerator",
    "trainer.devices",
    "trainer.num_nodes",
    "strategy",
    "cluster",
    "nccl",
    "compile",
    "callbacks",
    "logger",
)

# Keys that limit the images used in training. An evaluation uses all images unless these keys are typed.
OF_THE_TRAINING = ("trainer.limit_val_batches", "trainer.overfit_batches")

NAMES_DATA = ("data", "data.name", "data._target_", "experiment", "recipe")  # options that choose the images


def from_checkpoint(request: parse.Request, checkpoint: Path | None, environ: Mapping[str, str], cls: type[T]) -> T:
    """Return the checkpoint's config, overridden by the typed options. Another data set is read with the checkpoint's
    transform instead of its own recipe, except for transform keys that are typed themselves. Raises ConfigError if the
    checkpoint is damaged or the resulting config is not valid.

    checkpoint: None, or a file of another program beside a typed model.name or model._target_, means weights without a
    config: the typed options, with the preprocessing of the weights.
    """
    if checkpoint is None:
        return _of_weights(request, None, environ, cls)
    from imagenet_ddp.models.weights.pretrained import net_of_file
    from imagenet_ddp.runs.checkpoint_file import KEY, is_own, read

    require_whole(checkpoint, "checkpoint")
    is_other = not is_own(checkpoint)
    if is_other and request.is_typed("model.name", "model._target_"):
        return _of_weights(request, checkpoint, environ, cls)
    if is_other and (named := net_of_file(checkpoint)) is not None:
        what = f"{checkpoint} must be a checkpoint of imagenet_ddp, got weights of another program"
        aim = "" if named else "to the net of this file, and for one of timm model.library=timm"
        raise ConfigError(
            Mistake(what, ("checkpoint", "model.name"), (setting(*named or ["model.name=NAME"], aim=aim),))
        )
    stored = read(checkpoint)[KEY]
    if request.verb in ("evaluate", "features"):
        refuse_lost_data(stored, request)
    afresh = (*OF_THIS_MACHINE, *OF_THE_TRAINING, *TYPED_ONLY)
    merged = merge_overrides(stored["config"], request.config, request.typed, afresh)
    before = to_config(stored["config"]["data"], DataConfig)
    of_files = {key: before[key] for key in ("exif_orientation", "white_level")}
    for key, value in {**stored["eval_transform"], **of_files}.items():
        if not request.is_typed(f"data.{key}"):
            lay_over(merged, {"data": {key: value}})
    now = typed_config(merged.data, DataConfig, partial=True)
    image_size, val_resize = (stored["eval_transform"][key] for key in ("image_size", "val_resize"))
    follow_image_size(merged.data, request.typed, image_size, val_resize)
    is_split_typed, is_root_typed = map(request.is_typed, ("data.val_fraction", "data.root"))
    if is_root_typed and not is_split_typed and _source(before) != _source(now):
        merged.data.val_fraction, merged.data.val_fold = None, 0  # all images of another folder can be scored
    mistakes = _other_split(before, now, (stored["config"].get("seed"), merged.seed), checkpoint)
    if now.labels != before.labels:
        allowed = f"{before.labels}, as in {checkpoint}, whose net was trained so"
        mistakes.append(must_be("data.labels", allowed, now.labels, without("data.labels")))
    if mistakes:
        raise ConfigError(mistakes)
    return _checked(merged, request, environ, cls, stored_in=checkpoint)


def _of_weights(request: parse.Request, path: Path | None, environ: Mapping[str, str], cls: type[T]) -> T:
    """Return the typed options, completed by the preprocessing of weights that are no checkpoint of this project. path:
    the file of checkpoint=; None: that of model.weights."""
    from imagenet_ddp.launch.trained_model import find_other, use_preprocessing

    merged = copy.deepcopy(request.config)
    if request.verb in ("evaluate", "features"):
        require_data(request)
    if not request.is_typed(*NAMES_DATA, "data.exif_orientation"):
        merged.data.exif_orientation = True  # the photographs of predict, export and demo may come from phones
    use_preprocessing(merged, request, find_other(request.values(cls).model, path).facts)
    return _checked(merged, request, environ, cls)


def require_data(request: parse.Request) -> None:
    """Raise ConfigError if no typed option chooses the images, of which weights do not say which they are."""
    if not request.is_typed(*NAMES_DATA):
        root = request.config.data.root
        options = options_for(root) if root else ["data=imagenet", "data.root=FOLDER"]
        allowed = "set, because these weights do not say on which images to use them"
        raise ConfigError(must_be("data", allowed, "none", setting(*map(quoted, options))))


def resolved_config(request: parse.Request, environ: Mapping[str, str], cls: type[T]) -> T:
    """Return the config of the checkpoint, overridden by the typed options. For an exported file, return the typed
    config unchanged. cls: the command's class of config."""
    checkpoint = checkpoint_path(request.config)
    if graph_format(checkpoint):
        return request.values(cls)
    return from_checkpoint(request, checkpoint, environ, cls)


def checkpoint_path(config: TrainedConfig | DictConfig) -> Path | None:
    """Return the path of checkpoint=; None: model.weights is used instead."""
    return Path(config.checkpoint) if config.checkpoint is not None else None


def _checked(
    merged: DictConfig, request: parse.Request, environ: Mapping[str, str], cls: type[T], stored_in: Path | None = None
) -> T:
    config = checked(merged, request, environ, cls, stored_in)
    if config.trainer.limit_val_batches == 0:
        key = "trainer.limit_val_batches"
        raise ConfigError(must_be(key, "more than 0 in an evaluation", "0", without(key)))
    return config


def _other_split(before: DataConfig, now: DataConfig, seeds: tuple[Any, Any], checkpoint: Path) -> list[Mistake]:
    """Return a mistake for each key that would split the images of the training run in another way. Images that it was
    trained on would then be counted as validation images. seeds: before and now."""
    if not (isinstance(before, FilesData) and isinstance(now, FilesData)) or _source(before) != _source(now):
        return []
    if before.val_fraction is None or now.val_fraction is None:
        return []
    pairs = {
        "seed": seeds,
        "data.val_fraction": (before.val_fraction, now.val_fraction),
        "data.val_fold": (before.val_fold, now.val_fold),
    }
    why = f"as in {checkpoint}, because it chooses which images are not trained on (data.val_fraction)"
    return [must_be(key, f"{old}, {why}", str(new), without(key)) for key, (old, new) in pairs.items() if old != new]


def _source(data: DataConfig) -> tuple[Any, ...]:
    """Return what names the images that data.val_fraction splits."""
    return data.name, data.target, folder_of(data, is_train=True)


def folder_of(data: DataConfig, *, is_train: bool) -> Path | None:
    """Return the folder of the training or the validation images, in the same form however it was typed; None without
    data.root, or if the keys of a stored config are no paths."""
    if data.root is None:
        return None
    try:
        if not isinstance(data, FolderData):
            return (Path(data.root) / ("train" if is_train else "val")).resolve()
        layout = find_layout(data, need_train=is_train)
        return (layout.train if is_train else layout.val).resolve()
    except (OSError, TypeError, ValueError):  # a name that is too long, that is no text, or with a null character
        return None


def data_name(data: Mapping[str, Any]) -> str:
    """Return the name of a data set: that of its folder, without the path, which is private, or of its source."""
    return Path(without_secrets(data["root"] or "")).name or data.get("_target_") or data["name"]


def model_title(model: Mapping[str, Any], data: Mapping[str, Any]) -> str:
    """Return a title such as "resnet18 trained on pets". model, data: config groups of the training."""
    return f"{model['_target_'] or model['name']} trained on {data_name(data)}"
