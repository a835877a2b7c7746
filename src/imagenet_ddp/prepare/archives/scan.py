"""Look at the archives of prepare=import once, before torch is imported: which files, splits, classes and labels.

Every mistake is found here, and all are reported together.
"""

import csv
import os
import re
import shlex
import tarfile
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np

from imagenet_ddp.config.schema.prepare import PrepareConfig
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.sources.base import Scan, Source
from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.data.sources.imagenet import class_labels, validate_counts, wordnet_ids
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.prepare.archives import parquet_images, tar_images
from imagenet_ddp.prepare.archives.archive_images import ArchiveImages, listed, split_of_file
from imagenet_ddp.prepare.archives.devkit import DEVKIT, val_classes
from imagenet_ddp.system.files import describe_path
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import first_line, printable, shorten_list

KAGGLE = "LOC_val_solution.csv"
SUFFIXES = (".parquet", ".tar")

F = TypeVar("F")


def look(config: PrepareConfig) -> tuple[list[Path], Scan]:
    """Return (the files of archive_dir, sorted, what is in them). Raises ConfigError with every mistake."""
    folder = Path(str(config.archive_dir))
    files = _files(folder)
    kinds = {path.suffix for path in files}
    if len(kinds) > 1:
        what = f"archive_dir must have Parquet files or tar files, got both in {folder}"
        raise ConfigError(Mistake(what, ("archive_dir",), hint="move the others to another folder"))
    source, lines = _of_parquet(files, folder, config) if kinds == {".parquet"} else _of_tar(files, folder, config)
    source.notes += lines
    source.doubts += _missing_files(files)
    for images in source.splits.values():
        images.reading = Reading.of(config.data)
    if not source.val:
        raise ConfigError(
            f"{folder} must have validation images, which every command reads, but has none: a file or a folder in it "
            "tells its split by its name, such as val or validation. Hint: put the validation archive there, too."
        )
    if len(source.classes) < 2:
        raise ConfigError(
            f"the images in {folder} must be of at least two classes, got {shorten_list(source.classes) or 'none'}. "
            "Hint: set labels=FILE.csv, with the columns path and label."
        )
    if source.classes == list(class_labels()):
        for name, images in source.splits.items():
            numbers = images.num_of_each(len(source.classes)).tolist()
            source.doubts += validate_counts(name, str(folder), dict(zip(source.classes, numbers, strict=True)))
    return files, Scan(config.data, config.seed, config.purpose, open=lambda: source)


def _missing_files(files: list[Path]) -> list[str]:
    """Return a sentence for each series NAME-00000-of-00294 of which there are not all."""
    numbered = (re.fullmatch(r"(.+)-\d+-of-(\d+)", str(path.with_suffix(""))) for path in files)
    there = Counter((each[1], int(each[2])) for each in numbered if each)
    return [
        f"{printable(name)}-*: {number:,} of {total:,} files are there. Hint: download the others, or ignore this."
        for (name, total), number in there.items()
        if number != total
    ]


def _files(folder: Path) -> list[Path]:
    every = [Path(top, name) for top, _, names in os.walk(folder) for name in names if not name.startswith(".")]
    found = sorted(path for path in every if path.suffix in SUFFIXES and path.is_file())
    if not found:
        names = sorted(path.name for path in every if path.name != DEVKIT)
        packed = min((path for path in every if path.suffix == ".gz"), default=None)
        hint = "set archive_dir=FOLDER to the folder of the archives"
        if packed is not None:
            hint = f"unpack it first: `gunzip {shlex.quote(str(packed))}`"
        what = f"archive_dir must have .parquet or .tar files, but {folder} has {shorten_list(names) or 'no files'}"
        raise ConfigError(Mistake(what, ("archive_dir",), hint=hint))
    return found


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def _of_parquet(files: list[Path], folder: Path, config: PrepareConfig) -> tuple[Source, list[str]]:
    fix = missing_package("archive_dir", "pyarrow")
    if fix:
        raise ConfigError(fix)
    mistakes, columns = list[Mistake](), dict[Path, parquet_images.Columns]()
    for path in files:
        try:
            columns[path] = parquet_images.find_columns(path, config.data.args)
        except ConfigError as error:
            mistakes += error.mistakes
        except Exception as error:  # of pyarrow, json, or of metadata in another form
            reason = parquet_images.reason_of(error)
            what = f"{path} must be a Parquet file of images, but cannot be read ({reason})"
            mistakes.append(Mistake(what, ("archive_dir",), hint="copy or download it again"))
    if not mistakes and len({(each.image, each.label, each.is_number) for each in columns.values()}) > 1:
        shown = {f"{each.image} and {each.label}" for each in columns.values()}
        what = f"all files in {folder} must have the same columns, got {'; '.join(sorted(shown))}"
        mistakes.append(Mistake(what, ("archive_dir",), hint="move the files of another data set away"))
    if mistakes:
        raise ConfigError(mistakes)
    of_split: dict[str, list[Path]] = {}
    for path in files:
        of_split.setdefault(split_of_file(path, folder) or "train", []).append(path)
    one, lines = columns[files[0]], list[str]()
    try:
        labels = {split: parquet_images.read_labels(paths, folder, one) for split, paths in of_split.items()}
    except ConfigError:
        raise
    except Exception as error:
        reason = parquet_images.reason_of(error)
        raise ConfigError(f"the labels in {folder} must be readable, but are not ({reason}). Hint: download the files "
                          "again.") from error  # fmt: skip
    used = _used(labels, lines, is_labelled=lambda found: any(each not in (-1, None) for each in found.labels))
    names = _lines_of(config.names) if config.names else []
    every = [label for split in used.values() for label in labels[split].labels]
    classes = parquet_images.class_names(files, list(columns.values()), names, every)
    splits: dict[str, ArchiveImages] = {}
    wrong: list[str] = []
    for name, split in used.items():
        targets, messages = parquet_images.targets_of(labels[split], classes, split, one.is_number)
        wrong += messages
        if not messages:
            splits[name] = parquet_images.ParquetImages(of_split[split], folder, one, labels[split], targets)
    if wrong:
        raise ConfigError(wrong)
    if ids := wordnet_ids(classes):
        lines.append("The classes are ImageNet's: they are named by their WordNet ids, as in data=imagenet.")
        return Source(ids, splits.get("train"), splits.get("val"), list(class_labels().values())), lines
    return Source(classes, splits.get("train"), splits.get("val")), lines


def _lines_of(file: str) -> list[str]:
    try:
        # an empty line within would otherwise shift the names below it
        return [line.strip() for line in Path(file).read_text(encoding="utf-8").rstrip().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        what = f"names must be a text file with a class name in each line, but {file} is not ({first_line(error)})"
        raise ConfigError(Mistake(what, ("names",), (setting("names=FILE"),))) from error


# ---- tar -------------------------------------------------------------------------------------------------------------


def _of_tar(files: list[Path], folder: Path, config: PrepareConfig) -> tuple[Source, list[str]]:
    labels = _labels(folder, config.labels)
    found, lines, wrong = tar_images.list_images(files, folder, labels)
    used = _used(found, lines, is_labelled=lambda images: any(images.classes))
    hint = (
        f"put {DEVKIT} or Kaggle's {KAGGLE} beside the archive, or set labels=FILE.csv, with the columns path and label"
    )
    for split in used.values():
        unknown = [name for name, each in zip(found[split].names, found[split].classes, strict=True) if not each]
        wrong += listed(f"the folder, the inner archive or a list must tell the class of each image of {split}",
                        unknown, hint)  # fmt: skip
    of_split = {name: found[split] for name, split in used.items()}
    train = of_split.get("train")
    classes = sorted(set((train or of_split.get("val") or tar_images.Listed()).classes))
    known = class_labels()
    foreign = sorted({each for images in of_split.values() for each in images.classes} - {*classes, ""})
    if foreign:
        wrong.append(
            f"each class of val must also be one of train, but {len(foreign)} "
            f"{'is' if len(foreign) == 1 else 'are'} not: {printable(shorten_list(foreign))}. "
            "Hint: correct the list of labels."
        )
    if wrong:
        raise ConfigError(wrong)
    positions = {name: position for position, name in enumerate(classes)}
    splits = {
        name: tar_images.TarImages(
            files, folder, images, np.array([positions[each] for each in images.classes], np.int64)
        )
        for name, images in of_split.items()
    }
    shown = [known.get(name, name) for name in classes]
    return Source(classes, splits.get("train"), splits.get("val"), shown), lines


def _used(found: Mapping[str, F], lines: list[str], is_labelled: Callable[[F], bool]) -> dict[str, str]:
    """Return train and val -> the split in the archives. test is val if there is no other, and if it has labels."""
    used = {name: name for name in ("train", "val") if name in found}
    if "test" in found:
        if "val" not in found and is_labelled(found["test"]):
            used["val"] = "test"
        else:
            lines.append("The images of test are left out.")
    return used


def _labels(folder: Path, file: str | None) -> dict[str, str]:
    """Return the path of an image, or its end, without extension -> class: of labels=, of Kaggle's list, or of the
    devkit."""
    beside = {path.name: path for path in sorted(folder.rglob("*")) if path.name in (KAGGLE, DEVKIT)}
    if file is None and KAGGLE not in beside:
        return _of_devkit(beside[DEVKIT]) if DEVKIT in beside else {}
    path = Path(file) if file is not None else beside[KAGGLE]
    if not path.is_file():
        what = f"labels must be a table of the images, but {describe_path(path)} is not a file"
        raise ConfigError(Mistake(what, ("labels",), (setting("labels=FILE.csv"),)))
    with suppress(OSError, UnicodeDecodeError, csv.Error), path.open(encoding="utf-8-sig", newline="") as lines:
        rows = csv.reader(lines)
        if next(rows, [])[:2] == ["ImageId", "PredictionString"]:
            return {row[0]: row[1].split()[0] for row in rows if len(row) > 1 and row[1].strip()}
    cells = read_cells(path, {"path": "path", "label": "label"}, "labels").columns
    if len(cells) < 2:
        what = f"labels must be a table with the columns path and label, but {path} has not both"
        raise ConfigError(Mistake(what, ("labels",), (setting("labels=FILE.csv"),)))
    found, wrong = dict[str, str](), list[str]()
    for name, label in zip(cells["path"], cells["label"], strict=True):
        key = str(PurePosixPath(name.strip()).with_suffix("")) if PurePosixPath(name.strip()).name else ""
        if found.setdefault(key, label.strip()) != label.strip() or not (key and label.strip()):
            wrong.append(f"{name} ({label})")
    if wrong:
        raise ConfigError(listed(f"each row of {path} must have a path of its own, and a label", wrong, "correct them"))
    return found


def _of_devkit(path: Path) -> dict[str, str]:
    """Return the class of each validation image of ImageNet, by its name."""
    try:
        return {f"ILSVRC2012_val_{number:08}": name for number, name in enumerate(val_classes(path), 1)}
    except (OSError, EOFError, zlib.error, tarfile.TarError, KeyError, ValueError) as error:
        what = f"{path} must be ImageNet's devkit, but cannot be read ({first_line(error).rstrip('.')})"
        raise ConfigError(Mistake(what, ("archive_dir",), hint="download it again")) from error
