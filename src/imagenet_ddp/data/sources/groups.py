"""Find which images belong together, such as near-copies or the photographs of one person: those of data.groups, and
those of the column `group` of a table."""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, did_you_mean, setting
from imagenet_ddp.system.files import beside, describe_path
from imagenet_ddp.system.table_files import of_text_cell
from imagenet_ddp.system.text import count_noun, printable, shorten_list

COLUMNS = ("path", "group")
MAX_ROWS = 10  # named in a message


def number_groups(file: str | None, *splits: FileImages, whole: bool = True, notes: list[str] | None = None) -> None:
    """Set the groups of the images of all splits, to those of the file and of their table. Arguments and errors are
    those of read_groups."""
    given = groups_of(*splits)
    if file is None and given is None:
        return
    pairs = [read_groups(file, *splits, whole=whole, notes=notes), *([] if given is None else [pairs_of(given)])]
    ends = np.cumsum([len(each) for each in splits])
    groups = first_of_each(int(ends[-1]), np.concatenate(pairs))
    for images, part in zip(splits, np.split(groups, ends[:-1]), strict=True):
        images.groups = part
    if notes is not None:
        count = count_noun(int((np.unique(groups, return_counts=True)[1] > 1).sum()), "group")
        notes.append(f"{count} of two or more images: those of a group are on one side of each split.")


def groups_of(*splits: Images) -> np.ndarray | None:
    """Return the groups of the images of all splits, int64 (N,), as number_groups sets them; None if there are none."""
    found = [images.groups for images in splits if isinstance(images, FileImages) and images.groups is not None]
    return np.concatenate(found) if found and len(found) == len(splits) else None


def pairs_of(groups: np.ndarray) -> np.ndarray:
    """Return the pairs of positions (P, 2), of each image and the first one of its group. groups: int64 (N,)."""
    _, first, inverse = np.unique(groups, return_index=True, return_inverse=True)
    return np.stack([np.arange(len(groups)), first[inverse]], 1)


def read_groups(
    file: str | None, *splits: FileImages, whole: bool = True, notes: list[str] | None = None
) -> np.ndarray:
    """Return the pairs of positions (P, 2) of images that belong together, counted through the splits. file: a table
    with the columns path, group. A path is absolute, or relative to the folder of the images, which is the one above
    the folders of two splits, or to the current folder. whole: False if `splits` have only some of the images, so that
    a path may be that of another. notes: gets a sentence about rows that are left out, because their images are gone,
    and not in another folder under the same name. Raises ConfigError."""
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
    folder = os.path.commonpath([_absolute(each.location) for each in splits])
    paths = [each.path(at) for each in splits for at in range(len(each))]
    meant = [_meanings(of_text_cell(cell), folder) for cell in cells.columns["path"]]
    wanted = {each for both in meant for each in both}
    names = ((_absolute(each), at) for at, each in enumerate(paths))
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
            by_name = by_name or _by_name(paths)
            found = by_name.get(os.path.basename(both[0]))  # noqa: PTH119
        if found is None:
            (gone if is_gone else wrong).append(f"row {number} ({printable(cell)})")
        elif group.strip():
            pairs.append((found, first.setdefault(group.strip(), found)))
    if wrong and whole:
        what = (
            f"data.groups must name images of {folder}, but {count_noun(len(wrong), 'row')} of {path} "
            f"{'does' if len(wrong) == 1 else 'do'} not: {shorten_list(wrong, MAX_ROWS)}"
        )
        hint = "remove those rows, or correct their paths: absolute, or relative to that folder or to the current one"
        raise ConfigError(Mistake(what, ("data.groups",), hint=hint))
    if gone and whole and notes is not None:
        rows = f"{count_noun(len(gone), 'row')} of {path} {'is' if len(gone) == 1 else 'are'} left out"
        notes.append(f"{rows}, because there are no such images any more: {shorten_list(gone, MAX_ROWS)}.")
    return np.array(pairs, np.int64).reshape(-1, 2)


def _by_name(paths: Sequence[str]) -> dict[str, int | None]:
    """Return file name -> position of the image; None for a name of several."""
    found: dict[str, int | None] = {}
    for at, path in enumerate(paths):
        name = os.path.basename(path)  # noqa: PTH119
        found[name] = None if name in found else at
    return found


def wrong_groups(file: str | None, *splits: FileImages, whole: bool = True, way: str = "") -> list[Mistake]:
    """Return the mistakes that number_groups raises and, of two splits, that a group is in both. way: what to do."""
    try:
        number_groups(file, *splits, whole=whole)
    except ConfigError as error:
        return error.mistakes
    groups = [each.groups for each in splits if each.groups is not None]
    if len(groups) < 2 or not len(both := np.intersect1d(groups[0], groups[1])):
        return []
    one, other = (each.path(int(np.flatnonzero(of == both[0])[0])) for each, of in zip(splits, groups, strict=True))
    what = (
        f"the images of a group must all be for training or all for validation, but {count_noun(len(both), 'group')} "
        f"{'has' if len(both) == 1 else 'have'} images in both, such as {one} and {other}"
    )
    return [Mistake(what, ("data.groups",) if file else ("data.root",), hint=way)]


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
