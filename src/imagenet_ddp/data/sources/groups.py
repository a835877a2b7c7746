"""Read which images belong together (data.groups), such as near-copies or the photographs of one person."""

import os
from pathlib import Path

import numpy as np

from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, did_you_mean, setting
from imagenet_ddp.system.files import beside, describe_path
from imagenet_ddp.system.table_files import of_text_cell
from imagenet_ddp.system.text import count_noun, printable, shorten_list

COLUMNS = ("path", "group")
MAX_ROWS = 10  # named in a message


def read_groups(
    file: str | None, images: FileImages, *, whole: bool = True, notes: list[str] | None = None
) -> np.ndarray:
    """Return the pairs of positions (P, 2) of images that belong together. file: a table with the columns path, group.
    A path is absolute, or relative to the folder of the images or to the current folder. whole: False if `images` has
    only some of the images, so that a path may be that of another. notes: gets a sentence about rows that are left out,
    because their images are gone, and not in another folder under the same name. Raises ConfigError."""
    if file is None:
        return np.zeros((0, 2), np.int64)
    path = Path(file)
    if not path.is_file():
        what = f"data.groups must be a table of images and their groups, but {describe_path(path)} is not a file"
        near = beside(path, Path.is_file)
        way = did_you_mean(f"data.groups={near}") if near else setting("data.groups=null")
        raise ConfigError(Mistake(what, ("data.groups",), (way,)))
    cells = read_cells(path, {name: name for name in COLUMNS}, "data.groups")
    if missing := [name for name in COLUMNS if name not in cells.columns]:
        what = (
            f"data.groups must be a table with the columns {' and '.join(COLUMNS)}, but {path} has no "
            f"{' and no '.join(missing)}: its columns are {shorten_list(cells.header, MAX_ROWS) or 'none'}"
        )
        raise ConfigError(
            Mistake(what, ("data.groups",), hint=f"name the columns {','.join(COLUMNS)} in its first row")
        )
    meant = [_meanings(of_text_cell(cell), images.location) for cell in cells.columns["path"]]
    wanted = {each for both in meant for each in both}
    names = ((_absolute(images.path(at)), at) for at in range(len(images)))
    positions = {name: at for name, at in names if name in wanted}
    first: dict[str, int] = {}
    pairs, wrong, gone = list[tuple[int, int]](), list[str](), list[str]()
    by_name: dict[str, int | None] = {}
    is_list = bool(positions)  # else the paths are not relative to one of the two folders
    for number, cell, both, group in zip(
        cells.numbers, cells.columns["path"], meant, cells.columns["group"], strict=True
    ):
        found = next((positions[each] for each in both if each in positions), None)
        is_gone = found is None and is_list and whole and not any(map(os.path.lexists, both))
        if is_gone:  # a file with a name of its own has been moved, as to its right class
            by_name = by_name or _by_name(images)
            found = by_name.get(os.path.basename(both[0]))  # noqa: PTH119
        if found is None:
            (gone if is_gone else wrong).append(f"row {number} ({printable(cell)})")
        elif group.strip():
            pairs.append((found, first.setdefault(group.strip(), found)))
    if wrong and whole:
        what = (
            f"data.groups must name images of {images.location}, but {count_noun(len(wrong), 'row')} of {path} "
            f"{'does' if len(wrong) == 1 else 'do'} not: {shorten_list(wrong, MAX_ROWS)}"
        )
        hint = "remove those rows, or correct their paths: absolute, or relative to that folder or to the current one"
        raise ConfigError(Mistake(what, ("data.groups",), hint=hint))
    if gone and whole and notes is not None:
        rows = f"{count_noun(len(gone), 'row')} of {path} {'is' if len(gone) == 1 else 'are'} left out"
        notes.append(f"{rows}, because there are no such images any more: {shorten_list(gone, MAX_ROWS)}.")
    return np.array(pairs, np.int64).reshape(-1, 2)


def _by_name(images: FileImages) -> dict[str, int | None]:
    """Return file name -> position of the image; None for a name of several."""
    found: dict[str, int | None] = {}
    for at in range(len(images)):
        name = os.path.basename(images.path(at))  # noqa: PTH119
        found[name] = None if name in found else at
    return found


def wrong_groups(file: str | None, images: FileImages, *, whole: bool = True) -> list[Mistake]:
    """Return the mistakes that read_groups raises."""
    try:
        read_groups(file, images, whole=whole)
    except ConfigError as error:
        return error.mistakes
    return []


def _meanings(name: str, folder: str) -> tuple[str, str]:
    """Return what a path may mean: relative to the folder of the images, or to the current one."""
    return _absolute(os.path.join(folder, name)), _absolute(name)  # noqa: PTH118


def _absolute(path: str) -> str:
    """Return the absolute path as text: resolving links would take one disk request per image."""
    return os.path.abspath(path)  # noqa: PTH100


def first_of_each(number: int, pairs: np.ndarray) -> np.ndarray:
    """Return for each of `number` images the first one to which pairs connect it, by any number of steps, int64
    (number,): its own position if there is none before. pairs: int64 (P, 2), positions."""
    first = np.arange(number, dtype=np.int64)
    for a, b in pairs.tolist():
        a, b = _root(first, a), _root(first, b)
        first[max(a, b)] = min(a, b)
    while (shorter := first[first] != first).any():
        first[shorter] = first[first[shorter]]
    return first


def _root(first: np.ndarray, position: int) -> int:
    while (above := int(first[position])) != position:
        first[position] = first[above]
        position = above
    return position
