"""Section: the images that are there twice, byte for byte."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePath
from typing import NamedTuple

import numpy as np

from imagenet_ddp.data.sources.groups import first_of_each
from imagenet_ddp.sections.section import Checked, Copy, Finding, Section, Urgency, keep_first
from imagenet_ddp.system.table_files import table_bytes
from imagenet_ddp.system.text import count_noun

NUM_PAIRS = 36
FILE = "duplicates.csv"
COLUMNS = ("group", "path", "label", "split", "decision")
# how programs and people name a copy: "IMG_1 (1)", "IMG_1 - Copy", "copy_2", "IMG_1 Kopie"
COPY = re.compile(r"\(\d+\)$|(?<![^\W\d_])(copy|kopie|copie|copia)(?![^\W\d_])", re.IGNORECASE)


class _File(NamedTuple):
    """place: its split and position. decided: by a person. proposed: unless a person decides. "": nothing."""

    place: tuple[str, int]
    path: str
    label: str
    decided: str
    proposed: str = ""


def exact_copies(checked: Checked) -> Section:
    """The first pairs are those that matter most: across the splits, then in two classes. Those of one split of which
    both are kept do not count."""
    copies = [copy for copy in checked.copies if _kind(copy.where) == 0 or not (_is_kept(checked, copy.first) and
              _is_kept(checked, copy.second))]  # fmt: skip
    kinds = Counter(_kind(copy.where) for copy in copies)
    listed = _groups(checked)
    rows = [(number, file.path, file.label, file.place[0], file.decided or file.proposed)
            for number, files in enumerate(listed, 1) for file in files]  # fmt: skip
    files = {FILE: table_bytes(COLUMNS, rows, checked.delimiter)}
    findings = list[Finding]()
    if number := kinds[0]:
        text = f"{count_noun(number, 'validation image')} {_is(number)} among the training images, too: the accuracy "
        text += "would be better than it is for new images. Remove one of each pair."
        findings.append(Finding(text, Urgency.FIRST, "exact_copies"))
    elif len(checked.images) > 1 and copies:
        text = "No validation image is an exact copy of a training image."
        findings.append(Finding(text, Urgency.GOOD))
    if number := kinds[1]:
        text = f"{count_noun(number, 'image')} {_is(number)} in two classes, so that one label is wrong: "
        text += "keep only the right one of each pair."
        findings.append(Finding(text, Urgency.FIRST, "exact_copies"))
    if number := kinds[2]:
        count = "counts" if number == 1 else "count"
        text = f"{count_noun(number, 'image')} {_is(number)} twice in a class, and {count} double."
        findings.append(Finding(text, Urgency.LATER, "exact_copies"))
    if not copies:
        but = f", but for {count_noun(len(rows), 'file')} that you have decided to keep" if rows else ""
        which = "No file in a class folder" if checked.copies_outside else "No file"
        finding = Finding(f"{which} is an exact copy of another{but}.", Urgency.GOOD)
        return Section("exact_copies", "", findings=[finding], files=files)
    pairs = sorted(copies, key=lambda copy: _kind(copy.where))[:NUM_PAIRS]
    number_of = {file.place: number for number, files in enumerate(listed) for file in files}
    numbers = [number_of[copy.second] for copy in pairs]
    shown = [_shown(copy, listed[at]) for copy, at in zip(pairs, numbers, strict=True)]
    places = {file.place for files in shown for file in files}
    whole = {at for at in numbers if places.issuperset(file.place for file in listed[at])}
    groups = [_items(checked, copy, files, at + 1 if at in whole else "")
              for copy, files, at in zip(pairs, shown, numbers, strict=True)]  # fmt: skip
    context = {"groups": groups, "number": len(copies), "num_files": len(rows), "file": FILE,
               "command": checked.relabel.get(FILE, "")}  # fmt: skip
    return Section("exact_copies", "Exact copies", context, findings, files=files, decide=FILE)


def _shown(copy: Copy, files: Sequence[_File]) -> list[_File]:
    """Return the two files of a group that are shown, in the order of the list. Where all are in one class and one
    split, each is shown beside the first."""
    if _is_one_class(files):
        first = files[0].place
        pair = {first, copy.first if copy.second == first else copy.second}
    else:
        pair = {copy.first, copy.second}
    return [file for file in files if file.place in pair]


def _items(checked: Checked, copy: Copy, files: Sequence[_File], number: int | str) -> list[dict[str, object]]:
    """Return what the page shows of a pair. number: of the group in the list; "" if not all of it is shown, so that
    both may be removed, because the others stay."""
    items = [
        checked.item(
            *file.place, choice=checked.choice(FILE, file.path, file.label, group=number, chosen=file.proposed)
        )
        for file in files
    ]
    items[0]["where"] = _in_words(copy.where)
    return items


def _is_kept(checked: Checked, place: tuple[str, int]) -> bool:
    return checked.is_kept(FILE, checked.images[place[0]].path(place[1]), checked.label(*place))


def _groups(checked: Checked) -> list[list[_File]]:
    """Return the files with each content that is there more than once, those that a person has to decide first. Of
    files in one class and one split, it is proposed to keep the first."""
    places = [*dict.fromkeys(place for copy in checked.copies for place in (copy.first, copy.second))]
    number_of = {place: number for number, place in enumerate(places)}
    pairs = [(number_of[copy.first], number_of[copy.second]) for copy in checked.copies]
    groups: dict[int, list[_File]] = {}
    for place, first in zip(places, first_of_each(len(places), np.array(pairs, np.int64).reshape(-1, 2)), strict=True):
        path, label = checked.images[place[0]].path(place[1]), checked.label(*place)
        groups.setdefault(int(first), []).append(_File(place, path, label, checked.decided(FILE, path, label)))
    for files in filter(_is_one_class, groups.values()):
        files.sort(key=lambda file: originality(file.path))
        proposed = keep_first([file.decided for file in files])
        files[:] = [_File(*file[:4], word) for file, word in zip(files, proposed, strict=True)]
    return sorted(groups.values(), key=_is_one_class)


def originality(path: str) -> tuple[bool, int, str]:
    """Return what sorts an original before its copies: its name does not say that it is one, and is not longer."""
    return COPY.search(PurePath(path).stem) is not None, len(path), path


def _is_one_class(files: Sequence[_File]) -> bool:
    return len({(file.label, file.place[0]) for file in files}) == 1


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _in_words(where: str) -> str:
    splits = where.partition(",")[0]
    words = {"train": "training", "val": "validation", "train and val": "training and validation"}
    return where.replace(splits, words[splits], 1)


def _kind(where: str) -> int:
    """Return 0 for a copy across the splits, 1 in two classes, 2 in one class."""
    return 0 if where.startswith("train and val") else 1 if where.endswith("two classes") else 2
