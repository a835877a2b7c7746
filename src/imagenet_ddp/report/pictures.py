"""Read images of an evaluation, for thumbnails and class activation maps, and say how they are relabelled. Imports
torch."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli.overrides import lay_over, quoted, shell_line
from imagenet_ddp.config.paths import seen_from
from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.config.schema.keys import validate_group
from imagenet_ddp.config.section import typed_config, with_all_keys
from imagenet_ddp.config.stored import refused
from imagenet_ddp.data import check_data
from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.data.sources.walk import map_concurrently
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.launch.trained_model import load
from imagenet_ddp.models import check_learning
from imagenet_ddp.models.class_activation import overlay
from imagenet_ddp.pages.thumbnails import data_uri, thumbnail
from imagenet_ddp.report.predictions import Predictions
from imagenet_ddp.runs.checkpoint_file import KEY, is_own, read
from imagenet_ddp.runs.result_files import read_config
from imagenet_ddp.system.text import as_in_tables, first_line
from imagenet_ddp.training.held_out import choose
from imagenet_ddp.use.labelling import can_label, data_options
from imagenet_ddp.use.predictor import load_net, make_predictor

MAPS_AT_ONCE = 4


@dataclass
class Pictures:
    """Thumbnails and maps of the images; empty if the data is not available."""

    thumbnails: dict[int, str] = field(default_factory=dict)  # row of the predictions -> data URI
    maps: dict[int, str] = field(default_factory=dict)
    reason: str = ""  # why there are no pictures
    reason_maps: str = ""  # why there are no class activation maps
    have_changed: bool = False  # the images, since they were evaluated


class ImagesChangedError(ConfigError):
    """Images are no longer those that were evaluated: some were moved, removed or added."""


def read_pictures(found: Predictions, rows: Sequence[int], for_maps: Sequence[int]) -> Pictures:
    """Read thumbnails of the images in `rows`, and class activation maps of those in `for_maps`. The reasons in the
    result explain what is not available."""
    pictures = Pictures()
    try:
        images = _open(found)
        wanted = sorted(set(rows))
        uris = map_concurrently(lambda row: thumbnail(images, int(found.index[row])), wanted)
        pictures.thumbnails = {row: uri for row, uri in zip(wanted, uris, strict=True) if uri is not None}
    except (ConfigError, RunError, OSError) as error:  # RunError: a shard of streamed data cannot be fetched
        pictures.reason, pictures.have_changed = first_line(error), isinstance(error, ImagesChangedError)
        return pictures
    if for_maps:
        try:
            pictures.maps = _activation_maps(images, found, for_maps)
        except (ConfigError, RunError, RuntimeError, OSError, UnreadableImage) as error:
            pictures.reason_maps = first_line(error)
    return pictures


def _open(found: Predictions) -> Images:
    """Return the split that was evaluated. Raises ConfigError if the data is not available, or has changed."""
    config, started_in = _trusted_config(found, "data"), found.evaluation.get("folder", "")
    source = open_source(config.data, config.seed, purpose=config.purpose)
    if found.checkpoint is not None and is_own(found.checkpoint):
        choose(source, config.data, read(found.checkpoint)[KEY], str(found.checkpoint))
    images = source.val
    for index, path in zip(found.index.tolist(), found.paths, strict=True):
        if (
            images is None
            or index >= len(images)
            or as_in_tables(images.path(index)) not in (path, f"{started_in}/{path}")
        ):
            raise ImagesChangedError(
                f"the data must be that of the evaluation in {found.folder}, but image {index} is no longer {path}. "
                f"Hint: run `rm -r {shlex.quote(str(found.folder))}`, then run report again to evaluate the run."
            )
    assert images is not None
    return images


def _activation_maps(images: Images, found: Predictions, rows: Sequence[int]) -> dict[int, str]:
    """Return row -> data URI of the image as the net receives it, overlaid with the map of the predicted class."""
    config, uris = _trusted_config(found, "model"), dict[int, str]()
    trained = load(config, found.checkpoint)
    predictor = make_predictor(config, trained, load_net(config, trained))
    assert predictor.explain is not None  # only an exported file has no gradients
    for start in range(0, len(rows), MAPS_AT_ONCE):
        few = rows[start : start + MAPS_AT_ONCE]
        inputs = [predictor.read.prepare(images.read(int(found.index[row]))) for row in few]
        maps = predictor.explain(inputs, found.prediction[few].tolist())
        for row, image, activation in zip(few, inputs, maps, strict=True):
            uris[row] = data_uri(overlay(image, activation).permute(1, 2, 0).numpy(), 1)
    return uris


def relabel_lines(found: Predictions, *lists: Path) -> list[str]:
    """Return the line that carries out the decisions of each list about the evaluated images; "" if they are in no
    class folders here."""
    try:
        data = _trusted_config(found, "data").data
    except ConfigError:
        return ["" for _ in lists]
    options = [[*data_options(data), f"decisions={each}"] if can_label(data) else [] for each in lists]
    return [shell_line("prepare", ["prepare=relabel", *map(quoted, each)]) if each else "" for each in options]


def _trusted_config(found: Predictions, group: str) -> EvaluateConfig:
    """Return the config of an evaluation, whose relative paths are those of the folder in which it was started. Raises
    ConfigError if this group names code or an address, or if a value is none of its key, because a folder may come from
    anyone."""
    file, whole = found.folder / "config.yaml", OmegaConf.structured(with_all_keys(EvaluateConfig))
    config = seen_from(found.evaluation.get("folder"), read_config(found.folder))
    if group not in config:
        raise ConfigError(f"{file} must hold the options of the evaluation, but does not.")
    if refused({group: config[group]}, {}, "evaluate", "", []):
        raise ConfigError(
            f"{file} names code outside this program, or an address, under {group}; report does not use it."
        )
    lay_over(whole, config)
    try:
        values = typed_config(whole, EvaluateConfig, partial=True)
    except OmegaConfBaseException as error:  # such as a default that refers to a value that is not there
        what = f"{file} must hold the options of the evaluation, but {error.full_key} does not resolve."
        raise ConfigError(what) from error
    wrong = check_data.validate(values.data, partial=True) + check_learning.validate(values, partial=True)
    wrong += [each for name in ("trainer", "cluster") for each in validate_group(name, values[name], "evaluate")]
    if wrong:
        raise ConfigError(f"{file} must hold the options of the evaluation, but {wrong[0].what}.")
    return values
