"""Change the labels of images so that each change can be undone: move files between class folders, or out of them, or
replace cells in the label column of a table. Nothing is ever overwritten, and a command that was interrupted can be
typed again."""

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from filecmp import cmp
from pathlib import Path
from shutil import copy2, copymode
from typing import NamedTuple

from imagenet_ddp.config.schema.data import TableData
from imagenet_ddp.data.sources.base import one_form
from imagenet_ddp.data.sources.cells import CsvText, find_columns, read_cells
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.table import NEEDED
from imagenet_ddp.data.sources.walk import class_folders, is_image
from imagenet_ddp.errors import RunError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.files import atomic_path, not_writable_reason
from imagenet_ddp.system.text import count_noun, printable, shorten_list

MAX_NAMED = 10  # images named in a message


class Change(NamedTuple):
    """image: its path before, relative to data.root, or as the table's row has it. before, after: paths of the file,
    relative to data.root, or absolute outside of it, or the cells of the label as they are written. label: the class
    afterwards; "": removed."""

    image: str
    before: str
    after: str
    label: str

    @property
    def reverse(self) -> "Change":
        return Change(self.image, self.after, self.before, self.label)


class Wanted(NamedTuple):
    """An image, by its position in a split, and the class that it shall get; "": it shall be removed."""

    images: FileImages
    index: int  # type: ignore[assignment]  # hides tuple.index
    label: str


class Labels:
    """Where the labels of a data set are stored. kind: words for it. base: folder of the images' paths in a Change."""

    kind: str
    base: Path

    def plan(self, wanted: Sequence[Wanted], made: Sequence[Change]) -> tuple[list[Change], list[Mistake]]:
        """Return (the changes, what is wrong with them). made: changes of earlier commands, which can be undone."""
        raise NotImplementedError

    def pending(self, changes: Sequence[Change]) -> tuple[list[Change], list[str], list[Mistake]]:
        """Return (the changes that are still to be made, the images that are gone, what is in the way)."""
        raise NotImplementedError

    def apply(self, changes: Sequence[Change]) -> None:
        """Make pending changes. Raises OSError."""
        raise NotImplementedError

    def notes(self, changes: Sequence[Change]) -> list[str]:
        """Return sentences about what a person may not expect of the changes."""
        return []

    def new_folders(self, changes: Sequence[Change]) -> list[str]:
        """Return the folders that the changes make, relative to `base`, those inside others first."""
        return []

    def remove(self, folders: Sequence[str]) -> None:
        """Remove those of the folders that are empty."""


class FolderLabels(Labels):
    """Labels that are the names of class folders. root: data.root. removed: folder to which images are moved that
    shall be removed. Outside of both, nothing is touched."""

    kind = "class folders"

    def __init__(self, root: Path, removed: Path):
        self.base, self._real = root, root.resolve()
        self._removed = removed.parent.resolve() / removed.name

    def plan(self, wanted: Sequence[Wanted], made: Sequence[Change]) -> tuple[list[Change], list[Mistake]]:
        changes, outside, loose, taken, locked = list[Change](), list[str](), list[str](), list[str](), list[str]()
        names: dict[Path, dict[str, str]] = {}  # split -> class -> its folder, whose Unicode form may differ
        reserved = {_folded(self.base / each.before) for each in made}  # where undo=true moves images back to
        if self._removed.is_relative_to(self._real) and any(not each.label for each in wanted):
            what = f"decisions must be a file outside data.root ({self.base}) for remove, which moves images beside it"
            return [], [Mistake(what, ("decisions", "data.root"), hint="move the list to another folder")]
        for images, index, label in wanted:
            path = Path(images.path(index))
            old, *rest = Path(images.name(index)).parts
            if images.folder not in names:
                names[images.folder] = {one_form(name): name for name in reversed(class_folders(images.folder))}
            target = images.folder / names[images.folder].get(label, label) / Path(*rest)
            if not label:
                target = self._removed / os.path.relpath(path, self.base)
            # images that are numbered within each class have the same names in all
            if _is_taken(target, reserved):
                target = target.with_name(f"{target.stem}-{old}{target.suffix}")
            before, after = (
                os.path.relpath(path, self.base),
                os.path.relpath(target, self.base) if label else str(target),
            )
            if not (self._is_inside(before) and self._is_inside(after)):
                outside.append(before)
            elif path.is_symlink() and (target.parent / path.readlink()).resolve() != path.resolve():
                loose.append(before)
            elif _is_taken(target, reserved):
                taken.append(after)
            elif reason := not_writable_reason(path.parent) or not_writable_reason(target.parent):
                locked.append(reason)
            reserved.add(_folded(target))
            changes.append(Change(before, before, after, label))
        where = f"in data.root ({self.base})"
        return changes, [
            *_message(outside, f"the images to move must lie {where}, also after following links, but {{}} not", "do",
                      "set data.root to the folder that contains them"),
            *_message(loose, "a link to an image must lead to it after the move, too, but {} not", "do",
                      "replace the link by its image, or leave its decision empty"),
            *_message(taken, "nothing is overwritten, but {} there already", "are", "rename those files"),
            *_message(list(dict.fromkeys(locked)), "the folders of the images must be writable, but {} not", "are",
                      "change their permissions (chmod u+w)"),
        ]  # fmt: skip

    def pending(self, changes: Sequence[Change]) -> tuple[list[Change], list[str], list[Mistake]]:
        foreign = [
            path for each in changes for path in each[1:3] if not (is_image(Path(path).name) and self._is_inside(path))
        ]
        if foreign:
            return [], [], _message(
                foreign, f"the changes of labels must be of images in {self.base}, but {{}} not", "are",
                "use the file that prepare=relabel wrote for this folder",
            )  # fmt: skip
        todo, gone, taken = list[Change](), list[str](), list[str]()
        for each in changes:
            before, after = self.base / each.before, self.base / each.after
            match os.path.lexists(before), os.path.lexists(after):
                case True, True if not _is_same(before, after):
                    taken.append(each.after)
                case True, _:
                    todo.append(each)
                case False, False:
                    gone.append(each.before)
                case _:
                    pass  # made before
        return todo, gone, _message(taken, "nothing is overwritten, but {} there already", "are", "rename those files")

    def apply(self, changes: Sequence[Change]) -> None:
        for each in changes:
            target = self.base / each.after
            target.parent.mkdir(parents=True, exist_ok=True)
            _move(self.base / each.before, target)

    def notes(self, changes: Sequence[Change]) -> list[str]:
        renamed = [each.after for each in changes if Path(each.before).name != Path(each.after).name]
        what = f"{count_noun(len(renamed), 'file')} got the old class in the name, because the name was taken"
        return [f"{what}: {shorten_list(renamed, MAX_NAMED)}"] if renamed else []

    def new_folders(self, changes: Sequence[Change]) -> list[str]:
        parents = {parent for each in changes for parent in Path(each.after).parents}
        return sorted((str(each) for each in parents if not os.path.lexists(self.base / each)), reverse=True)

    def remove(self, folders: Sequence[str]) -> None:
        for folder in folders:
            if self._is_inside(folder):
                with suppress(OSError):
                    (self.base / folder).rmdir()

    def _is_inside(self, path: str) -> bool:
        """Return whether a path relative to data.root, or an absolute one of the folder of removed images, stays below
        it, also through the links of its folders."""
        whole, top = Path(path), self._real
        if whole.is_absolute() and whole.is_relative_to(self._removed):
            top = self._removed.parent
        elif whole.is_absolute() or not whole.parts:
            return False
        is_below = ".." not in whole.parts and "\0" not in path
        return is_below and (self.base / path).parent.resolve().is_relative_to(top)


class TableLabels(Labels):
    """Labels that are a column of a CSV file. data: of the table."""

    kind = "a table"

    def __init__(self, data: TableData):
        self._file = Path(str(data.root)).resolve()  # a link to the table stays a link
        self.base = Path(data.images_dir) if data.images_dir else Path(str(data.root)).parent
        self._columns = {purpose: str(data.args.get(purpose) or purpose) for purpose in NEEDED}

    def plan(self, wanted: Sequence[Wanted], made: Sequence[Change]) -> tuple[list[Change], list[Mistake]]:
        text, row_of, column = self._read()
        removed = [images.name(index) for images, index, label in wanted if not label]
        changes, several = list[Change](), list[str]()
        for images, index, label in wanted:
            path = images.name(index)
            if len(row_of[path]) > 1:
                several.append(path)
            like = text.rows[row_of[path][0]][column]
            changes.append(Change(path, like, text.written(label, like), label))
        rule = f"each image must have one row in {self._file}, but {{}} not"
        reason = not_writable_reason(self._file.parent)
        return changes, [
            *_message(removed, "no image of a table can have the decision remove, but {}", "do",
                      f"remove their rows from {self._file}, and clear those decisions"),
            *_message(several, rule, "do", "remove the other rows"),
            *_message([reason] if reason else [], "the folder of the table must be writable, but {} not", "are",
                      "change its permissions (chmod u+w)"),
        ]  # fmt: skip

    def pending(self, changes: Sequence[Change]) -> tuple[list[Change], list[str], list[Mistake]]:
        text, row_of, column = self._read()
        todo, gone, edited = list[Change](), list[str](), list[str]()
        for each in changes:
            rows = row_of.get(each.image, [])
            cells = {text.rows[row][column] for row in rows}
            if not rows:
                gone.append(each.image)
            elif cells == {each.before} and len(rows) == 1:
                todo.append(each)
            elif cells != {each.after}:
                edited.append(each.image)
        rule = f"the labels in {self._file} must be those of this list, but {{}} others"
        return todo, gone, _message(edited, rule, "have", "correct the labels of those rows by hand")

    def apply(self, changes: Sequence[Change]) -> None:
        text, row_of, column = self._read()
        wanted = text.values()
        for each in changes:
            [row] = row_of[each.image]
            text.rows[row][column] = each.after
            wanted[row][column] = CsvText(each.after).values()[0][0]
        if text.values() != wanted:
            raise RunError(f"{self._file} cannot be rewritten without other changes. Hint: save it as CSV again.")
        with atomic_path(self._file) as draft:
            draft.write_bytes(str(text).encode())
            copymode(self._file, draft)

    def _read(self) -> tuple[CsvText, dict[str, list[int]], int]:
        """Return (the table, the rows of each path, the column of the label)."""
        header = read_cells(self._file, self._columns).header  # raises ConfigError for a file that is no table
        position = find_columns(self._file, header, self._columns)
        text = CsvText(self._file.read_bytes().decode())
        row_of: dict[str, list[int]] = {}
        for number, cells in enumerate(text.values()):
            if number and len(cells) == len(header):
                row_of.setdefault(cells[position["path"]], []).append(number)
        return text, row_of, position["label"]


def _folded(path: Path) -> str:
    return os.path.normpath(path).casefold()  # some disks do not distinguish A.jpg from a.jpg


def _is_taken(path: Path, reserved: set[str]) -> bool:
    return os.path.lexists(path) or _folded(path) in reserved


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two names are of one file, or of a file and its copy on another disk: between making the new name
    and removing the old one, both exist."""
    stats = one.lstat(), other.lstat()
    return os.path.samestat(*stats) or (stats[0].st_dev != stats[1].st_dev and cmp(one, other, shallow=False))


def _move(source: Path, target: Path) -> None:
    """Move a file. Raises FileExistsError rather than replace another one."""
    try:
        os.link(source, target, follow_symlinks=False)  # unlike a rename, this never replaces a file
    except FileNotFoundError:
        raise
    except OSError as error:  # the file is there, the folder is on another disk, or the disk has no hard links (exFAT)
        if error.errno == errno.EXDEV:
            draft = target.with_name(f".{target.name}.part")
            copy2(source, draft, follow_symlinks=False)
            if not draft.is_symlink():
                with draft.open("rb") as file:
                    os.fsync(file.fileno())  # before the only other copy is gone
            _move(draft, target)
        elif not os.path.lexists(target):
            source.rename(target)
            return
        elif not _is_same(source, target):
            raise
    source.unlink()


def _message(images: Sequence[str], rule: str, verb: str, hint: str) -> list[Mistake]:
    """Return a mistake about the images that break a rule, [] if there are none. rule: with {} for their number and
    `verb`, a verb in the plural."""
    if not images:
        return []
    singular = {"are": "is", "do": "does", "have": "has"}[verb]
    who = f"{len(images):,} {singular if len(images) == 1 else verb}"
    named = printable(shorten_list(images, MAX_NAMED))
    return [Mistake(f"{rule.format(who)}: {named}", ("decisions", "data.root"), hint=hint)]
