"""Define a change of the labels of images, and what stores them: class folders (folder_labels.py) or a table
(table_labels.py)."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.text import printable, shorten_list

MAX_NAMED = 10  # images named in a message


class Change(NamedTuple):
    """image: its path before, relative to data.root, absolute if it had no label, or as the table's row has it.
    before, after: paths of the file, relative to data.root, or absolute outside of it, or the cells of the label as
    they are written. label: the class afterwards; "": removed."""

    image: str
    before: str
    after: str
    label: str

    @property
    def adds(self) -> bool:
        """Return whether the image is moved between the unlabelled ones and a class folder."""
        return self.image in (self.before, self.after) and Path(self.image).is_absolute()

    @property
    def reverse(self) -> "Change":
        return Change(self.image, self.after, self.before, self.label)


class Wanted(NamedTuple):
    """An image, by its position in a split or among the unlabelled images. label: the class that it shall get; "": it
    shall be removed. old: the class that it has; "": none. home: folder of its class folders."""

    images: FileImages
    index: int  # type: ignore[assignment]  # hides tuple.index
    label: str
    old: str
    home: Path


class Labels:
    """Where the labels of a data set are stored. kind: words for it. can_remove: whether images can be removed. to_add,
    to_name: what to do about images that are not of the data, and about a further class. base: folder of the images'
    paths in a Change."""

    kind: str
    can_remove = True
    to_add: str
    to_name: str
    base: Path

    def plan(self, wanted: Sequence[Wanted], made: Sequence[Change]) -> tuple[list[Change], list[Mistake]]:
        """Return (the changes, what is wrong with them). made: changes of earlier commands, also with other
        lists, which can be undone."""
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


def broken_rule(images: Sequence[str], rule: str, verb: str, hint: str) -> list[Mistake]:
    """Return a mistake about the images that break a rule, [] if there are none. rule: with {} for their number and
    `verb`, a verb in the plural."""
    if not images:
        return []
    singular = {"are": "is", "do": "does", "have": "has"}[verb]
    who = f"{len(images):,} {singular if len(images) == 1 else verb}"
    named = printable(shorten_list(images, MAX_NAMED))
    return [Mistake(f"{rule.format(who)}: {named}", ("decisions", "data.root"), hint=hint)]
