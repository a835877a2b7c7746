"""Find the images in Parquet files, as Hugging Face's datasets stores them, and read them one by one.

The image is a column of bytes, or of `bytes` and `path`; the label is a column of numbers, of which the metadata of the
schema or a file has the names, or of names.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from imagenet_ddp.data.decoding.errors import UnreadableImage
from imagenet_ddp.data.sources.base import Names
from imagenet_ddp.data.sources.image_files import MAX_FILE_BYTES
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.archives.archive_images import ArchiveImages, listed
from imagenet_ddp.system.text import first_line, shorten_list

# A small file may declare any number of rows, or repeat one long value in all of them. So images are read one by one,
# which takes no longer, and labels in small batches, which take 4 s for ImageNet.
LABEL_ROWS = 16
LEAST_BYTES = 16  # of a file for each row: no image is smaller
MAX_TEXT = 255  # characters of a name or a label
MAX_TEXT_BYTES = 2**12  # mean size of a label, or of the path of an image
NO_ROW: tuple[int, Any] = -1, None


@dataclass(frozen=True)
class Columns:
    """The columns of a file. image: the path of the bytes, such as image.bytes. name: the path of the images' names, ""
    if there are none. classes: names of the labels; [] if the labels are names, or numbers without names."""

    image: str
    name: str
    label: str
    is_number: bool
    classes: list[str]
    is_struct: bool


def find_columns(path: Path, wanted: Mapping[str, Any]) -> Columns:
    """Return the columns of a file. wanted: data.args, in which image and label may name columns. Raises ConfigError if
    they are not there, or not the only ones of their kind, and any exception of pyarrow for a file of another kind."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    schema = parquet.read_schema(path)
    described: Any = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = described.get("info", {}).get("features", {}) if isinstance(described, dict) else {}
    kind_of = {name: each.get("_type") for name, each in features.items() if isinstance(each, dict)}

    def has_bytes(kind: Any) -> bool:
        if arrow.types.is_struct(kind):
            return kind.get_field_index("bytes") >= 0 and has_bytes(kind.field("bytes").type)
        return arrow.types.is_binary(kind) or arrow.types.is_large_binary(kind)

    def is_text(kind: Any) -> bool:
        return arrow.types.is_string(kind) or arrow.types.is_large_string(kind)

    def is_label(kind: Any) -> bool:
        return arrow.types.is_integer(kind) or is_text(kind)

    images = [field.name for field in schema if has_bytes(field.type)]
    labels = [field.name for field in schema if is_label(field.type)]
    labels = [name for name in labels if kind_of.get(name) == "ClassLabel"] or labels
    labels = [name for name in labels if name in ("label", "labels")] or labels
    found = {"image": images, "label": labels}
    for purpose, names in found.items():
        if purpose in wanted:
            names[:] = [name for name in names if name == wanted[purpose]]
        if len(names) != 1:
            got = f"has {shorten_list(names)}" if names else f"its columns are {shorten_list(schema.names)}"
            raise ConfigError(
                f"{path} must have one column for the {purpose}, but {got}. Hint: set +data.args.{purpose}=COLUMN."
            )
    image, label = schema.field(images[0]), schema.field(labels[0])
    is_struct = arrow.types.is_struct(image.type)
    has_name = is_struct and image.type.get_field_index("path") >= 0 and is_text(image.type.field("path").type)
    names = features.get(label.name, {}).get("names") if kind_of.get(label.name) == "ClassLabel" else []
    is_list = isinstance(names, list) and all(isinstance(each, str) for each in names)
    classes: list[str] = [*names] if is_list else []  # leaving one out would shift the others
    return Columns(
        f"{image.name}.bytes" if is_struct else image.name,
        f"{image.name}.path" if has_name else "",
        label.name,
        arrow.types.is_integer(label.type),
        classes,
        is_struct,
    )


class ParquetImages(ArchiveImages):
    """Images of one split. targets: int64 (N,), positions in the classes."""

    def __init__(self, paths: Sequence[Path], folder: Path, columns: Columns, labels: "Labels", targets: np.ndarray):
        self.location, self.targets, self.names = str(folder), targets, Names.of(labels.names)
        self.parts = np.repeat(np.arange(len(labels.groups)), [each.num_rows for each in labels.groups])
        self._paths, self._column, self._groups = [*paths], columns.image, labels.groups
        self._is_struct = columns.is_struct
        self._first = np.cumsum([0, *(each.num_rows for each in labels.groups)])
        self._rows: Iterator[tuple[int, Any]] = iter(())  # (position, image) of the current part
        self._row = NO_ROW

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_rows": iter(()), "_row": NO_ROW}

    def encoded(self, index: int) -> bytes:
        """Return the bytes of the image, b"" if it has none. Fast if the images of a part are read in their order."""
        if self._row[0] != index:
            part = int(np.searchsorted(self._first, index, side="right")) - 1
            if not self._first[part] <= self._row[0] < index:
                self._rows = self._read(part)
            self._row = NO_ROW
            try:
                found = next((row for row in self._rows if row[0] == index), None)
                if found is None:
                    raise EOFError("rows are missing")
            except Exception as error:  # of pyarrow
                reason = f"its part of the file is damaged: {reason_of(error)}"
                raise UnreadableImage(self.path(index), reason) from error
            self._row = found
        data = self._row[1].as_buffer()
        if data is not None and data.size > MAX_FILE_BYTES:
            raise UnreadableImage(self.path(index), f"the file is too large ({data.size / 2**30:,.1f} GiB)")
        return b"" if data is None else data.to_pybytes()

    def _read(self, part: int) -> Iterator[tuple[int, Any]]:
        import pyarrow.parquet as parquet

        group, first = self._groups[part], int(self._first[part])
        with parquet.ParquetFile(self._paths[group.file], memory_map=True) as file:
            batches = file.iter_batches(1, row_groups=[group.number], columns=[self._column])
            for index, batch in enumerate(batches, first):
                column = batch.column(0)
                if self._is_struct:
                    column = _field(column, "bytes")
                yield index, column[0]

    def sizes(self) -> np.ndarray:
        return np.array([path.stat().st_size for path in self._paths], np.int64)


def _field(column: Any, name: str) -> Any:
    import pyarrow.compute

    compute: Any = pyarrow.compute
    return compute.struct_field(column, name)


@dataclass(frozen=True)
class Group:
    """A row group: the position of its file in the list of files, its number there, and its rows."""

    file: int
    number: int
    num_rows: int


@dataclass(frozen=True)
class Labels:
    """What is read of the files before the images: the names, labels and row groups of one split. labels: int64 (N,),
    or text; None for a missing one."""

    names: list[str]
    labels: list[Any]
    groups: list[Group]


def read_labels(paths: Sequence[Path], folder: Path, columns: Columns) -> Labels:
    """Read names and labels. Raises ConfigError for a file with more rows than it can have images."""
    import pyarrow.parquet as parquet

    found, wanted = Labels([], [], []), [columns.label, *([columns.name] if columns.name else [])]
    for number, path in enumerate(paths):
        top = str(path.relative_to(folder).with_suffix(""))
        with parquet.ParquetFile(path, memory_map=True) as file:
            num_rows, num_bytes, num_before = file.metadata.num_rows, path.stat().st_size, len(found.names)
            if num_rows * LEAST_BYTES > num_bytes:
                raise ConfigError(
                    f"{path} must have an image in each row, but has {num_rows:,} rows in {num_bytes:,} bytes. "
                    "Hint: download it again, or move it away."
                )
            of_each = [file.metadata.row_group(group) for group in range(file.num_row_groups)]
            rows_of_each = [group.num_rows for group in of_each]
            if sum(rows_of_each) != num_rows or min(rows_of_each, default=0) < 0:
                raise ValueError(f"{path} declares other numbers of rows for its parts than for the whole")
            for group in of_each:
                for column in map(group.column, range(group.num_columns)):
                    if column.path_in_schema in wanted and column.total_uncompressed_size > (
                        MAX_TEXT_BYTES * group.num_rows + 2**20
                    ):
                        raise ValueError(f"{path}: {column.path_in_schema} has too long texts")
            found.groups.extend(Group(number, group, num_rows) for group, num_rows in enumerate(rows_of_each))
            for batch in file.iter_batches(LABEL_ROWS, columns=wanted):
                labels = batch.column(columns.label).to_pylist()
                if any(isinstance(each, str) and len(each) > MAX_TEXT for each in labels):
                    raise ValueError(f"{path}: a label has more than {MAX_TEXT} characters")
                found.labels.extend(labels)
                names = [None] * len(labels)
                if columns.name:
                    first, _, last = columns.name.rpartition(".")
                    names = _field(batch.column(first), last).to_pylist()
                for name in names:
                    parts = [PurePosixPath(name).name[-MAX_TEXT:]] if name else []
                    found.names.append("/".join([top, str(len(found.names) - num_before), *parts]))
            if len(found.names) - num_before != num_rows:
                raise ValueError(f"{path} has fewer rows than it declares")
    return found


def targets_of(found: Labels, classes: Sequence[str], split: str, is_number: bool) -> tuple[np.ndarray, list[str]]:
    """Return (int64 (N,), messages about the rows without a label of a class)."""
    positions = {name: position for position, name in enumerate(classes)}
    known: Any = range(len(classes)) if is_number else positions
    wrong = [f"{name} ({label})" for name, label in zip(found.names, found.labels, strict=True) if label not in known]
    hint = f"remove the files of {split}, or these rows"
    messages = listed(f"each label of {split} must be one of {len(classes)} classes", wrong, hint)
    if messages:
        return np.empty(0, np.int64), messages
    return np.array([label if is_number else positions[label] for label in found.labels], np.int64), []


def class_names(paths: Sequence[Path], found: Sequence[Columns], names: list[str], labels: list[Any]) -> list[str]:
    """Return the classes in the order of the labels. names: from a file of the user's; [] without one. labels: of all
    splits. Raises ConfigError if they are unknown, or differ between the files."""
    if not found[0].is_number:
        return sorted({label for label in labels if label})
    stored = [each.classes for each in found]
    if not names and any(each != stored[0] for each in stored):
        other = next(path for path, each in zip(paths, stored, strict=True) if each != stored[0])
        raise ConfigError(
            f"all files must name the same classes, but {other} names others than {paths[0]}. Hint: move the files of "
            "another data set away, or set names=FILE."
        )
    classes = names or stored[0]
    if not classes:
        raise ConfigError(
            f"{paths[0]} must name its classes in the metadata of its schema, but does not. Hint: set names=FILE, with "
            "the name of a class in each line, in the order of the labels."
        )
    if twice := [name for name, count in Counter(classes).items() if count > 1 or not name.strip()]:
        raise ConfigError(
            f"each class must have a name of its own, but {shorten_list([repr(each) for each in twice])} is not one. "
            "Hint: set names=FILE, with the name of a class in each line, in the order of the labels."
        )
    return classes


def reason_of(error: Exception) -> str:
    """Return why pyarrow cannot read a file."""
    return first_line(error)[:300].rstrip(".")
