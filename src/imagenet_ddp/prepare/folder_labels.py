"""Change labels that are the names of class folders: move files between them, or out of them. Nothing is ever
overwritten, and a command that was interrupted can be typed again."""

import errno
import os
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from filecmp import cmp
from pathlib import Path
from shutil import copy2

from imagenet_ddp.data.sources.base import one_form
from imagenet_ddp.data.sources.walk import class_folders, is_image
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.prepare.label_changes import MAX_NAMED, Change, Labels, Wanted, broken_rule
from imagenet_ddp.system.files import not_writable_reason
from imagenet_ddp.system.text import count_noun, shorten_list


class FolderLabels(Labels):
    """Labels that are the names of class folders. root: data.root. removed: folder to which images are moved that
    shall be removed. unlabelled: folder of images that may get a class. Outside of them, nothing is touched."""

    kind = "class folders"
    to_add = "set unlabelled=FOLDER to the folder of images that have no label yet"
    to_name = "make the folder of a further class beside theirs first"

    def __init__(self, root: Path, removed: Path, unlabelled: Path | None):
        self.base, self._real, self._unlabelled = root, root.resolve(), unlabelled
        self._removed = removed.parent.resolve() / removed.name

    def plan(self, wanted: Sequence[Wanted], made: Sequence[Change]) -> tuple[list[Change], list[Mistake]]:
        changes, outside, loose, taken, locked = list[Change](), list[str](), list[str](), list[str](), list[str]()
        names: dict[Path, dict[str, str]] = {}  # split -> class -> its folder, whose Unicode form may differ
        reserved = {_folded(self.base / each.before) for each in made}  # where undo=true moves images back to
        tops = {"data.root": self.base, **({"unlabelled": self._unlabelled} if self._unlabelled else {})}
        inside = [name for name, top in tops.items() if self._removed.is_relative_to(top.resolve())]
        if inside and any(not each.label for each in wanted):
            where = f"{inside[0]} ({tops[inside[0]]})"
            what = f"decisions must be a file outside {where} for remove, which moves images beside it"
            return [], [Mistake(what, ("decisions", inside[0]), hint="move the list to another folder")]
        for images, index, label, own, home in wanted:
            path, name = Path(images.path(index)), Path(images.name(index))
            old, *rest = name.parts if own else (images.folder.resolve().name, *name.parts)
            if not own and rest[1:] and one_form(rest[0]) == label:  # its folder there has the name of the class, too
                rest = rest[1:]
            if home not in names:
                names[home] = {one_form(name): name for name in reversed(class_folders(home))}
            target = home / names[home].get(label, label) / Path(*rest)
            before = os.path.relpath(path, self.base) if own else str(_absolute(path))
            if not label:
                target = self._removed / (before if own else name)
            # images that are numbered within each class have the same names in all
            if _is_taken(target, reserved):
                target = target.with_name(f"{target.stem}-{old}{target.suffix}")
            after = os.path.relpath(target, self.base) if label else str(target)
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
        where = f"in {' or '.join(f'{name} ({top})' for name, top in tops.items())}"
        return changes, [
            *broken_rule(outside, f"the images to move must lie {where}, also after following links, but {{}} not",
                         "do", f"set data.root to the folder that contains them, or {self.to_add}"),
            *broken_rule(loose, "a link to an image must lead to it after the move, too, but {} not", "do",
                         "replace the link by its image, or leave its decision empty"),
            *broken_rule(taken, "nothing is overwritten, but {} there already", "are", "rename those files"),
            *broken_rule(list(dict.fromkeys(locked)), "the folders of the images must be writable, but {} not", "are",
                         "change their permissions (chmod u+w)"),
        ]  # fmt: skip

    def pending(self, changes: Sequence[Change]) -> tuple[list[Change], list[str], list[Mistake]]:
        foreign = [
            path for each in changes for path in each[1:3] if not (is_image(Path(path).name) and self._is_inside(path))
        ]
        if foreign:
            return [], [], broken_rule(
                foreign, f"the changes of labels must be of images in {self.base}, but {{}} not", "are",
                f"use the file that prepare=relabel wrote for this folder, and {self.to_add}, as then",
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
        return (
            todo,
            gone,
            broken_rule(taken, "nothing is overwritten, but {} there already", "are", "rename those files"),
        )

    def apply(self, changes: Sequence[Change]) -> None:
        for each in changes:
            target = self.base / each.after
            target.parent.mkdir(parents=True, exist_ok=True)
            _move(self.base / each.before, target)

    def notes(self, changes: Sequence[Change]) -> list[str]:
        renamed = [each.after for each in changes if Path(each.before).name != Path(each.after).name]
        what = f"{count_noun(len(renamed), 'file')} got the old folder in the name, because the name was taken"
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
        """Return whether a path relative to data.root, or an absolute one of the removed or the unlabelled images or of
        those outside the class folders, stays below it, also through the links of its folders."""
        whole, top = Path(path), self._real
        if whole.is_absolute() and whole.is_relative_to(self._removed):
            top = self._removed.parent
        elif self._unlabelled is not None and whole.is_relative_to(_absolute(self._unlabelled)):
            top = self._unlabelled.resolve()
        elif not whole.parts or (whole.is_absolute() and not whole.is_relative_to(_absolute(self.base))):
            return False
        is_below = ".." not in whole.parts and "\0" not in path
        return is_below and (self.base / path).parent.resolve().is_relative_to(top)


def _absolute(path: Path) -> Path:
    return Path(os.path.normpath(path.absolute()))


def _folded(path: Path) -> str:
    """Return a path that is equal for all names that some disks do not distinguish: A.jpg and a.jpg, or both forms of
    é.jpg."""
    return one_form(os.path.normpath(path)).casefold()


def _is_taken(path: Path, reserved: set[str]) -> bool:
    return os.path.lexists(path) or _folded(path) in reserved


def _is_same(one: Path, other: Path) -> bool:
    """Return whether two places have the same file, or a file and its copy on another disk: between making the new name
    and removing the old one, both exist. Two paths to one place do not: removing one of them would lose the file."""
    stats = one.lstat(), other.lstat()
    if os.path.samestat(*stats):
        is_place = one.parent.samefile(other.parent) and _folded(Path(one.name)) == _folded(Path(other.name))
        return stats[0].st_nlink > 1 and not is_place
    is_other_disk = stats[0].st_dev != stats[1].st_dev and stat.S_IFMT(stats[0].st_mode) == stat.S_IFMT(
        stats[1].st_mode
    )
    return is_other_disk and cmp(one, other, shallow=False)


def _move(source: Path, target: Path) -> None:
    """Move a file. Raises FileExistsError rather than replace another one."""
    try:
        os.link(source, target, follow_symlinks=False)  # unlike a rename, this never replaces a file
    except FileNotFoundError:
        raise
    except OSError as error:  # the file is there, the folder is on another disk, or the disk has no hard links (exFAT)
        if error.errno == errno.EXDEV:
            # a name that nobody else can have written to, or made a link of
            draft = target.with_name(f".{secrets.token_hex(8)}.part")
            try:
                copy2(source, draft, follow_symlinks=False)
                if not draft.is_symlink():
                    with draft.open("rb") as file:
                        os.fsync(file.fileno())  # before the only other copy is gone
                _move(draft, target)
            finally:
                draft.unlink(missing_ok=True)
        elif not os.path.lexists(target):
            source.rename(target)
            return
        elif not _is_same(source, target):
            raise
    source.unlink()
