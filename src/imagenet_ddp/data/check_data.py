"""Find mistakes in the options of data, and look at the folders they name, before torch is imported."""

from collections.abc import Sequence
from dataclasses import replace

from imagenet_ddp.config.schema.data import IMAGENET_MEAN, IMAGENET_STD, DataConfig, FilesData, FolderData, PackedData
from imagenet_ddp.config.schema.keys import validate_group
from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.config.validators import choice, expect, integer, list_of, number, shown
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.data.sources.registry import SOURCES, name_of, scan, source_type
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, example, must_be, setting
from imagenet_ddp.system.packages import missing_package

_THREE = list_of(number(), "", 3)


def inspect(
    data: DataConfig, seed: int, *, purpose: Purpose | None = Purpose.TRAIN, whole: bool = True
) -> tuple[list[Mistake], Scan | None]:
    """Return (every mistake in the options and in the images, what `look` has found). whole: as in SourceType.scan."""
    mistakes = validate(data)
    found = look(data, seed, purpose=purpose, whole=whole and not mistakes)
    return mistakes + ConfigError(found.mistakes if found else ()).mistakes, found


def look(
    data: DataConfig,
    seed: int,
    *,
    purpose: Purpose | None = Purpose.TRAIN,
    elsewhere: bool = False,
    whole: bool = False,
) -> Scan | None:
    """Look at the images, unless they are of a source of the user's own, or not needed.

    purpose: None if they are not needed. elsewhere: they are on another machine, so only a missing data.root is a
    mistake. whole: as in SourceType.scan.
    """
    if data.target or purpose is None or data.name not in SOURCES:
        return None
    if elsewhere and (source_type(data.name).default_root or data.root) and not str(data.root).startswith("~"):
        return None  # the job on the other machine looks
    found = scan(data, seed, purpose, whole=whole)
    keys, mistakes = ("data.name", "data.root"), ConfigError(found.mistakes).mistakes
    return replace(found, mistakes=[replace(each, keys=each.keys or keys) for each in mistakes])


def validate(data: DataConfig, *, partial: bool = False) -> list[Mistake]:
    """Return every mistake in the options. The values may have any type. partial: check each key by itself, but no
    combinations, because a checkpoint provides the other keys."""
    found = validate_group("data", {key: data[key] for key in data if key != "name"})
    found += validate_statistics(data.mean, data.std)
    if not data.target and data.name not in SOURCES:
        near = name_of(str(data.name)) or choice(*SOURCES).nearest(data.name)
        name = near or "imagefolder"
        more = " data.root=FOLDER" if issubclass(DataConfig.by_name[name], FolderData) and not data.root else ""
        more = " data.root=FILE.csv" if name == "table" and not data.root else more
        fix = Fix((f"data={name}", *more.split()), is_meant=near is not None, is_example=near is None)
        return found + expect("data.name", data.name, choice(*SOURCES), fix)
    if partial:
        return found
    found += _sizes(data) + _order(data)
    if str(data.policy).startswith("rand-"):
        instead = setting("data.policy=randaugment")
        found += missing_package(f"data.policy={data.policy}", "timm", instead=instead)
    return found


def validate_statistics(mean: Sequence[float] | None, std: Sequence[float] | None) -> list[Mistake]:
    """Return a mistake for each of the two that cannot be a statistic of pixels in 0..1. Values that are not three
    numbers are left to the schema."""
    found = []
    for key, values, usual in (("mean", mean, IMAGENET_MEAN), ("std", std, IMAGENET_STD)):
        if values is None or not _THREE.accepts(values):
            continue
        if max(values) > 1 or min(values) < 0 or (key == "std" and min(values) == 0):
            allowed = "three numbers between 0 and 1, because pixels are scaled to 0..1"
            hint = f"divide numbers for pixels in 0..255 by 255, as in 'data.{key}={shown(usual)}'"
            found.append(must_be(f"data.{key}", allowed, shown(values), hint=hint))
    return found


def _sizes(data: DataConfig) -> list[Mistake]:
    found: list[Mistake] = []
    size = data.image_size if integer(1).accepts(data.image_size) else 1
    if data.val_resize is not None and not integer(size).accepts(data.val_resize):
        what = (
            f"data.val_resize must be null or at least data.image_size ({data.image_size}), because "
            f"the crop is cut out of it, got {data.val_resize}"
        )
        found.append(Mistake(what, ("data.val_resize", "data.image_size"), (setting("data.val_resize=null"),)))
    found += [
        Mistake(
            f"data.{key} must be less than data.image_size ({size}), got {value}",
            (f"data.{key}", "data.image_size"),
            (setting(f"data.{key}={usual}"),),
        )
        for key, value, usual in (("pad", data.pad, 4), ("cutout", data.cutout, size // 4))
        if size > 1 and integer(size).accepts(value)
    ]
    if data.progressive_start is not None and data.progressive_epochs is None:
        what = "data.progressive_epochs must be set if data.progressive_start is set, got null"
        keys = ("data.progressive_epochs", "data.progressive_start")
        found.append(Mistake(what, keys, (example("data.progressive_epochs=[10,14]"),)))
    return found


def _order(data: DataConfig) -> list[Mistake]:
    """Check the options that choose which images are used, and in which order. Values of another type are reported
    elsewhere."""
    window = data.shuffle_window_shards if isinstance(data, PackedData) else 0
    found = [
        Mistake(
            f"data.{key} must be {off} with data.sampling=balanced, which has its own order of images, got {value}",
            (f"data.{key}", "data.sampling"),
            (setting(f"data.{key}={off}"), setting("data.sampling=shuffled")),
        )
        for key, value, off in (("repeats", data.repeats, 1), ("shuffle_window_shards", window, 0))
        if data.sampling == "balanced" and integer(off + 1).accepts(value)
    ]
    fraction, fold = data.share, data.val_fold if isinstance(data, FilesData) else 0
    if fraction and integer(1).accepts(fold) and number(above=0, below=1).accepts(fraction):
        allowed = integer(0, max(round(1 / fraction), 1) - 1)
        found += expect("data.val_fold", fold, allowed, setting("data.val_fold=0"))
    return found
