"""Read the images of a table (data=table)."""

import os
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.data.decode import Reading
from imagenet_ddp.data.sources.base import Names, Source, SourceType
from imagenet_ddp.data.sources.files import FileImages, digest
from imagenet_ddp.data.sources.listing import map_concurrently
from imagenet_ddp.data.sources.registry import TABLE_SUFFIXES
from imagenet_ddp.data.sources.split import split_validation
from imagenet_ddp.data.sources.table_rows import Table, read_table, rows_message
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.paths import describe_path

BUDGET_S = 20.0  # for looking for files; those that are not looked for count as existing
_CHUNK = 1024  # number of files that a thread looks for


class ImageTable(SourceType):
    def check(self, data: Mapping[str, Any], environ: Mapping[str, str], verb: str) -> list[str]:
        """Report each kind of mistake in the table, including paths of missing files, which verb=check finds when it
        reads them."""
        try:
            table = read_table(data, environ, verb)
        except ConfigError as error:
            return list(error.mistakes)
        rows: Sequence[int] = range(len(table.paths))
        if verb == "evaluate" and data["val_fraction"] is None:
            rows = table.rows_of("val", verb)
        missing = [] if verb == "check" else find_missing(table.folder, [table.paths[row] for row in rows])
        where, first = describe_path(table.folder), [table.paths[rows[position]] for position in missing[:3]]
        return rows_message(
            f"{table.file}: path must name an existing file, relative to {where} or absolute, but does not",
            [(table.numbers[rows[position]], table.paths[rows[position]]) for position in missing],
            f"correct those rows (a folder or a pipe is not a file), or set {_images_dir_hint(table, first)} to the "
            "folder to which the paths are relative",
        )

    def recognise(self, root: str, folder: Path, otherwise: str) -> list[str]:
        is_table = folder.suffix.lower() in TABLE_SUFFIXES and not folder.is_dir() and "://" not in root
        return ["data=table", f"data.root={root}"] if is_table else []

    def open(self, data: Mapping[str, Any], seed: int, environ: Mapping[str, str], verb: str) -> Source:
        """This function does not check whether the images exist."""
        table = read_table(data, environ, verb)
        reading = Reading(data["decoder"], data["exif_orientation"])
        if data["val_fraction"] is not None:
            classes = sorted(set(table.labels))
            whole = _images(table, range(len(table.paths)), classes, reading)
            train, val, digits = split_validation(whole, data["val_fraction"], seed, data["val_fold"])
        else:
            train_rows = [] if verb == "evaluate" else table.rows_of("train", verb)
            val_rows = table.rows_of("val", verb)
            classes = sorted({table.labels[row] for row in (*train_rows, *val_rows)})
            train = None if verb == "evaluate" else _images(table, train_rows, classes, reading)
            val = _images(table, val_rows, classes, reading)
            digits = digest(train, val)
        val.weights = None  # validation weights all images equally
        return Source(classes, train, val, notes=[table.note, *_weights_note(train)], digest=digits)


def _images(table: Table, rows: Sequence[int], classes: Sequence[str], reading: Reading) -> FileImages:
    positions = {name: position for position, name in enumerate(classes)}
    targets = np.fromiter((positions[table.labels[row]] for row in rows), np.int64, len(rows))
    images = FileImages(table.folder, Names.of(table.paths[row] for row in rows), targets, reading)
    if table.weights is not None:
        images.weights = np.fromiter((table.weights[row] for row in rows), np.float32, len(rows))
    return images


def _weights_note(train: FileImages | None) -> list[str]:
    if train is None or not len(train) or (weights := train.weights) is None:
        return []
    return [
        f"The loss of each training image is multiplied by its weight, {weights.min():g} to {weights.max():g}, "
        f"{weights.mean():.4g} on average."
    ]


def find_missing(folder: Path, paths: Sequence[str], budget_s: float = BUDGET_S) -> list[int]:
    """Return the positions of the paths (relative to the folder, or absolute) that are missing or not regular files, of
    those that could be looked for within budget_s seconds."""
    end_s = time.monotonic() + budget_s

    def look(begin: int) -> list[int]:
        part = range(begin, min(begin + _CHUNK, len(paths)))
        return [at for at in part if time.monotonic() < end_s and not os.path.isfile(os.path.join(folder, paths[at]))]  # noqa: PTH113, PTH118 (hot loop)

    return [at for found in map_concurrently(look, range(0, len(paths), _CHUNK)) for at in found]


def _images_dir_hint(table: Table, paths: Sequence[str]) -> str:
    """Return data.images_dir= with a folder nearby that has these images, or else with FOLDER."""
    try:
        near = [Path(), table.file.parent, table.file.parent.parent]
        inside = [path for folder in near[:2] for path in sorted(folder.iterdir())[:200] if path.is_dir()]
        found = next((folder for folder in near + inside if all((folder / path).is_file() for path in paths)), None)
    except OSError:
        found = None
    return shlex.quote(f"data.images_dir={found}") if found and paths else "data.images_dir=FOLDER"
