"""Open the images of a table."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from imagenet_ddp.data.decode import Reading
from imagenet_ddp.data.sources.base import Names, Source
from imagenet_ddp.data.sources.folder.images import FileImages, digest
from imagenet_ddp.data.sources.folder.split import split_validation
from imagenet_ddp.data.sources.table.table import Table, read_table


def open_table(data: Mapping[str, Any], seed: int, environ: Mapping[str, str], verb: str) -> Source:
    """Open a table of images. data: the resolved data.* keys. verb: evaluate needs only the validation images. Raises
    ConfigError if the table has mistakes. This function does not check whether the images exist."""
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
    return Source(classes, train, val, notes=[table.note, *_notes(train)], digest=digits)


def _images(table: Table, rows: Sequence[int], classes: Sequence[str], reading: Reading) -> FileImages:
    positions = {name: position for position, name in enumerate(classes)}
    targets = np.fromiter((positions[table.labels[row]] for row in rows), np.int64, len(rows))
    images = FileImages(table.folder, Names.of(table.paths[row] for row in rows), targets, reading)
    if table.weights is not None:
        images.weights = np.fromiter((table.weights[row] for row in rows), np.float32, len(rows))
    return images


def _notes(train: FileImages | None) -> list[str]:
    """Return sentences for the start of the log of a training run."""
    if train is None or not len(train):
        return []
    notes = []
    if (weights := train.weights) is not None:
        notes.append(
            f"The loss of each training image is multiplied by its weight, {weights.min():g} to {weights.max():g}, "
            f"{weights.mean():.4g} on average."
        )
    return notes
