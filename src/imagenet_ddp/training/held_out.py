"""Keep images that a net was trained on out of its evaluation, even if their files were renamed since.

data.val_fraction chooses the images that are held out by their names and numbers. If files are renamed, added or
removed later, the same rule chooses others. A checkpoint therefore stores a key of the content of each image
(validation_split.content_keys), 8 bytes each.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from imagenet_ddp.config.paths import is_file
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.validation_split import NO_KEY, content_keys
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.stored_config import folder_of
from imagenet_ddp.launch.trained_model import find_other
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.system.files import where
from imagenet_ddp.system.text import count_noun

KEY = "image_keys"  # in this project's part of a checkpoint


@dataclass(frozen=True)
class ImageKeys:
    """Content keys of the images of a run, uint64, without those of images that cannot be read. An image that was held
    out has the key of no image that was trained on."""

    trained: np.ndarray
    held_out: np.ndarray

    @classmethod
    def of(cls, source: Source) -> "ImageKeys | None":
        """Return the keys of a source whose validation images were split off; None for any other source."""
        train, val = source.train, source.val
        if (
            not (isinstance(train, FileImages) and isinstance(val, FileImages))
            or train.keys is None
            or val.keys is None
        ):
            return None
        trained = np.setdiff1d(train.keys, np.uint64(NO_KEY))
        return cls(trained, np.setdiff1d(val.keys, np.append(trained, np.uint64(NO_KEY))))

    @classmethod
    def stored_in(cls, contents: Mapping[str, Any]) -> "ImageKeys | None":
        """Return the keys in this project's part of a checkpoint; None if there are none."""
        if (found := contents.get(KEY)) is None:
            return None
        return cls(*(found[name].numpy().view(np.uint64) for name in ("trained", "held_out")))

    def plain(self) -> dict[str, torch.Tensor]:
        """Return what a checkpoint stores, which has no type for unsigned numbers."""
        return {name: torch.from_numpy(each.view(np.int64)) for name, each in vars(self).items()}  # pyright: ignore


def choose(source: Source, data: DataConfig, contents: Mapping[str, Any], origin: str) -> str:
    """Leave only images in source.val that the net was not trained on, as far as its checkpoint lists them. Return a
    sentence for the log, "" if nothing is left out. contents: this project's part of the checkpoint; {} for other
    weights. origin: path of the checkpoint. Raises ConfigError if no image is left."""
    if not contents:
        return ""
    keys, images = ImageKeys.stored_in(contents), source.val
    if data.share is not None:
        return _only_held_out(source, keys, contents, origin)
    if keys is None or not isinstance(images, FileImages):
        return ""
    is_trained = np.isin(_keys_of(images), keys.trained)
    if not is_trained.any():
        return ""
    counted = f"{is_trained.sum():,} of the {len(images):,} images{where(images.location)}"
    before = to_config(contents["config"]["data"], DataConfig)
    if folder_of(data, is_train=False) == folder_of(before, is_train=True):  # with data.val_fraction=null
        return f"{counted} were trained on."
    if is_trained.all():
        what = (
            f"data.root must have images that {origin} was not trained on, but it was trained on all "
            f"{len(images):,}{where(images.location)}"
        )
        raise ConfigError(Mistake(what, ("data.root",), (setting("data.root=FOLDER", aim="to other images"),)))
    source.val = images.subset(np.flatnonzero(~is_trained))
    return f"{counted} are left out, because the checkpoint was trained on them."


def _only_held_out(source: Source, keys: ImageKeys | None, contents: Mapping[str, Any], origin: str) -> str:
    train, val = source.train, source.val
    if source.digest == contents.get("images_digest") or not isinstance(train, FileImages):
        return ""
    assert isinstance(val, FileImages)
    place = where(val.location)
    if keys is None:
        return (
            f"The images{place} are no longer those of the training, and this checkpoint does not say which they were: "
            f"all {len(val):,} validation images may have been trained on."
        )
    whole = train.together(val)
    all_keys = _keys_of(whole)
    is_held_out, is_trained = np.isin(all_keys, keys.held_out), np.isin(all_keys, keys.trained)
    if not is_held_out.any():
        what = (
            f"the data must have images that the training of {origin} held out, but none of the {len(whole):,}{place} "
            "is one of these, by its content"
        )
        ways = (
            setting("data.root=FOLDER", aim="to images that it has not seen"),
            setting("data.val_fraction=null", aim="to score all of these, on which it may have been trained"),
        )
        raise ConfigError(Mistake(what, ("data.root", "data.val_fraction"), ways))
    source.val = whole.subset(np.flatnonzero(is_held_out))
    source.train = whole.subset(np.flatnonzero(~is_held_out))
    others = len(whole) - len(source.val) - int(is_trained.sum())
    return (
        f"The images{place} are no longer those of the training. Scored: the {len(source.val):,} that it held out, "
        f"recognised by their content. Left out: {count_noun(int(is_trained.sum()), 'image')} that it trained on, and "
        f"{others:,} that its checkpoint does not list."
    )


def warn_of_trained(val: Images, model: ModelConfig, say: Callable[[str], None]) -> None:
    """Write a line to the log if model.weights was trained on some of the validation images of a new run."""
    if model.weights is None or not is_file(model.weights) or not isinstance(val, FileImages):
        return
    keys = ImageKeys.stored_in(find_other(model).contents)
    if keys is not None and (number := int(np.isin(_keys_of(val), keys.trained).sum())):
        say(
            f"{model.weights} was trained on {number:,} of the {len(val):,} validation images, so val top-1 is too "
            "high. Hint: compare the two on images that neither was trained on."
        )


def _keys_of(images: FileImages) -> np.ndarray:
    if images.keys is None:
        images.keys = content_keys(images.location, images.names)
    return images.keys
