"""Read what ImageDataModule.load_from_checkpoint needs out of a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from imagenet_ddp.config.paths import seen_from
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.config.stored import own_part, refused
from imagenet_ddp.config.validators import shown
from imagenet_ddp.errors import ConfigError


def read_options(path: str | Path, options: Mapping[str, Any]) -> tuple[DataConfig, int, bool, list[str]]:
    """Return (the data group of a run, its seed, whether its images are channels-last, the names of its classes).

    options: what replaces the stored values. Raises ConfigError if the file is not a checkpoint of this program, and
    for what its author must not choose: code, an address, or a file to write; TypeError for an option that the source
    does not have.
    """
    own = own_part(torch.load(path, "cpu", weights_only=True, mmap=True), str(path))
    config = seen_from(own.get("folder"), own["config"])
    data = {**config["data"], **options}
    if mistakes := refused({"data": data}, {"data": options}, "evaluate", str(path), []):
        raise ConfigError([f"{each.what}. Hint: if you trust it, pass it as an option." for each in mistakes])
    group = DataConfig.of(**{**to_config(data, DataConfig), **options})
    return group, config["seed"], config["model"]["channels_last"], list(own["classes"])


def require_classes(found: Sequence[str], needed: Sequence[str], root: str | None, origin: str | Path) -> None:
    """Raise ConfigError if data have other classes than a checkpoint, whose outputs would be compared with labels of
    other meaning. root and origin: where they come from, for the message."""
    if list(found) != list(needed):
        raise ConfigError(
            f"{root} must have the classes of {origin}, {shown(list(needed))}, got {shown(list(found))}. "
            "Hint: pass root= of images of these classes, or use from_options."
        )
