"""List the sources of images. A further source is a row of SOURCES, its file in this folder, and a file of its name in
conf/data/ and conf/recipe/."""

import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.config.section import make
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.files import exists, expand_home
from imagenet_ddp.system.text import class_list, count_noun

if TYPE_CHECKING:
    from imagenet_ddp.config.schema.data import DataConfig
    from imagenet_ddp.data.sources.base import Scan, Source, SourceType

# data.name -> module and class, of which schema/data.py has the keys. A module is imported when it is needed, so that
# --help does not wait for it.
SOURCES = {
    "shapes": "shapes.Shapes",
    "imagefolder": "folder.ImageFolder",
    "imagenet": "imagenet.ImageNet",
    "table": "table.ImageTable",
    "stl10": "stl10.Stl10",
    "packed": "packed.Packed",
    "streamed": "streamed.Streamed",
}


def source_type(name: str) -> "SourceType[Any]":
    module, _, cls = SOURCES[name].rpartition(".")
    return getattr(import_module(f"imagenet_ddp.data.sources.{module}"), cls)(options_for)


def name_of(text: str) -> str | None:
    """Return the value of data= for another spelling of it, such as imagenet for ImageNet and imagenet-1k, or None for
    an unknown name."""
    bare = re.sub(r"[^a-z0-9]|1k$", "", text.lower())
    return bare if bare in SOURCES else None


def options_for(root: str, otherwise: str = "imagefolder") -> list[str]:
    """Return the options to type for this folder or file after a quick look at its content, beginning with data=.
    otherwise: the value of data= if the content does not show which one is right."""
    folder = expand_home(root)
    try:
        for name in reversed(SOURCES):  # a folder of class folders is the most general
            if options := source_type(name).recognise(root, folder, otherwise):
                return options
    except OSError:  # not readable, which the check of this data= reports
        pass
    return [f"data={otherwise}", f"data.root={root}"]


def implied(data: "DataConfig") -> dict[str, Any]:
    return {} if data.target or data.name not in SOURCES else source_type(data.name).implied(data)


def scan(data: "DataConfig", seed: int, purpose: Purpose = Purpose.TRAIN, *, whole: bool = True) -> "Scan":
    """Look at the source, once. whole: as in SourceType.scan. A source of the user's own is not looked at."""
    from imagenet_ddp.data.sources.base import Scan

    if data.target:
        return Scan(data, seed, purpose, open=partial(_own_source, data.target, data))
    try:
        return source_type(data.name).scan(data, seed, purpose, whole=whole)
    except ConfigError as error:
        return Scan(data, seed, purpose, error.mistakes)
    except OSError as error:
        return Scan(data, seed, purpose, [_unreadable(data, error)])


def open_source(
    data: "DataConfig", seed: int, *, purpose: Purpose = Purpose.TRAIN, found: "Scan | None" = None
) -> "Source":
    """Open the source. found: what an earlier look has found; it is used if the options are the same. Raises
    ConfigError for all mistakes."""
    from imagenet_ddp.data.sources.base import SPLIT_WORDS

    if found is None or not found.fits(data, seed, purpose):
        found = scan(data, seed, purpose)
    if found.open is None or found.mistakes:
        raise ConfigError(found.mistakes)
    try:
        source = found.open()
    except OSError as error:
        raise ConfigError(_unreadable(data, error)) from error
    for name, images in source.splits.items():
        if not len(images):
            what, hint = f"the data must have {SPLIT_WORDS[name]} images, but has none", "set data.root to those"
            if data.share is not None:  # of such a class, split_validation would have kept one
                what = "a class must have two different images, one of them for validation, but no class has"
                hint = "add images to each class"
            raise ConfigError(Mistake(what, ("data.root",), hint=hint))
    owner = f"data._target_={data.target}" if data.target else f"data={data.name}"
    if mistakes := source.settle_targets(owner, data.labels):
        raise ConfigError(mistakes)
    if purpose != Purpose.CHECK and (absent := source.classes_without_validation()):  # which that explains itself
        words = f"There are no validation images of {count_noun(len(absent), 'class')}: {class_list(absent)}."
        source.notes.append(words)
    return source


def _unreadable(data: "DataConfig", error: OSError) -> Mistake:
    if isinstance(error, FileNotFoundError) and error.filename and exists(str(data.root)):
        what = f"nothing must be removed from {data.root} while it is read, but {error.filename} has disappeared"
        return Mistake(what, ("data.name", "data.root"), hint="type the same line again, or name another folder")
    what = f"{error.filename or data.root} must be readable, but reading it failed: {error.strerror or error}"
    return Mistake(what, ("data.name", "data.root"), hint="check its permissions (chmod -R u+rX) and its disk")


def _own_source(target: str, data: "DataConfig") -> "Source":
    from imagenet_ddp.data.sources.base import Source
    from imagenet_ddp.data.sources.datasets import is_pair, open_datasets

    root = {"root": data.root} if data.root else {}
    source = make("data._target_", target, {**data.args, **root})
    if is_pair(source):
        source = open_datasets(source, f"data._target_={target}", data.labels)
    if not isinstance(source, Source):
        raise ConfigError(
            f"data._target_={target} must return a Source, or a pair of torch Datasets, got {type(source).__name__}. "
            "Hint: return (training, validation), such as torch.utils.data.random_split(dataset, [0.8, 0.2])."
        )
    for images in source.splits.values():
        if images.weights is not None and images.weights.shape != (len(images),):
            raise ConfigError(
                f"weights of data._target_={target} must have shape ({len(images)},), one weight per image, got "
                f"{images.weights.shape}. Hint: use numpy.ones(len(self)) for equal weights."
            )
    return source
