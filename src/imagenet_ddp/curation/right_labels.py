"""Find the labels that a person has said to be right: those kept in a list of doubtful labels, and those given by
prepare=relabel. No page asks for them again."""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from imagenet_ddp.curation.decision_lists import DECISIONS, RECORD, earlier_decisions
from imagenet_ddp.curation.wrong_labels import FILE, FILE_OF_REPORT, KEEP, is_keep
from imagenet_ddp.system.files import below, read_mapping
from imagenet_ddp.system.text import as_in_tables

_LISTS = (FILE, FILE_OF_REPORT)  # of doubtful labels
_RUNS = "runs"  # in which a run may lie deeper than `below` looks


def decided_labels(
    file: Path, images: Iterable[tuple[str, str]], start: Path, root: str | None, also: Iterable[Path] = ()
) -> dict[tuple[str, str, str], str]:
    """Return what a person has decided about the labels of images, as earlier_decisions does. What the list itself says
    counts, then what was kept or given with any list of the folders in `start`.

    file: the list that is about to be replaced. images: path and class of each. start: folder of relative paths. root:
    data.root. also: further folders with lists.
    """
    own = earlier_decisions(file, file.with_name(DECISIONS))
    places = [start, *below(start, Path.is_dir), *below(start / _RUNS, Path.is_dir), file.parent, *also]
    # a stranger's check may name any place
    there = [place for place in dict.fromkeys(places) if os.path.isdir(place)]  # noqa: PTH112 (Path.is_dir() may raise)
    right = {pair for place in there for pair in _right_in(place, start, start / (root or ""))}
    if not right:
        return own
    said = {(path, label) for path, label, _ in own}
    new = ((path, label) for path, label in images if (_key(start / path), label) in right)
    return own | {(path, label, ""): KEEP for path, label in new if (path, label) not in said}


def _right_in(folder: Path, start: Path, root: Path) -> Iterable[tuple[str, str]]:
    """Return path and class of the images whose labels the lists of a folder have kept or given."""
    for name in _LISTS:
        for (path, label, _), text in earlier_decisions(folder / name, folder / DECISIONS).items():
            if is_keep(text, label):
                yield _key(start / path), label
    for record in folder.glob(f"*{RECORD}"):
        yield from (pair for change in _changes(record) for pair in _given(change, root))


def _changes(record: Path) -> list[Any]:
    """Return the changes of a file that may come from anyone."""
    found = read_mapping(record).get("changes")
    return found if isinstance(found, list) else []


def _given(change: Any, root: Path) -> Iterable[tuple[str, str]]:
    """Return where an image may be that has got a class, with the class: moved, or named by the row of a table."""
    match change:
        case [str(image), str(), str(after), str(label)] if label:
            return ((_key(root / place), label) for place in (image, after))
        case _:
            return ()


def _key(path: Path) -> str:
    return as_in_tables(os.path.abspath(path))  # noqa: PTH100 (resolves no links)
