"""Section: the images that are there twice, byte for byte."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from imagenet_ddp.curation.wrong_labels import KEEP, REMOVE
from imagenet_ddp.data.sources.groups import first_of_each
from imagenet_ddp.pages.section import Checked, Finding, Section, Urgency
from imagenet_ddp.system.table_files import table_bytes
from imagenet_ddp.system.text import count_noun

NUM_PAIRS = 36
FILE = "duplicates.csv"
COLUMNS = ("group", "path", "label", "split", "decision")


def exact_copies(checked: Checked) -> Section:
    """The first pairs are those that matter most: across the splits, then in two classes. Those of one split of which
    both are kept do not count."""
    copies = [copy for copy in checked.copies if _kind(copy.where) == 0 or not (_is_kept(checked, copy.first) and
              _is_kept(checked, copy.second))]  # fmt: skip
    kinds = Counter(_kind(copy.where) for copy in copies)
    rows = _rows(checked)
    files = {FILE: table_bytes(COLUMNS, rows, checked.delimiter)}
    findings = list[Finding]()
    if number := kinds[0]:
        text = f"{count_noun(number, 'validation image')} {_is(number)} among the training images, too: the accuracy "
        text += "would be better than it is for new images. Remove one of each pair in duplicates.csv."
        findings.append(Finding(text, Urgency.FIRST, "exact_copies"))
    elif len(checked.images) > 1 and copies:
        text = "No validation image is among the training images, byte for byte."
        findings.append(Finding(text, Urgency.GOOD))
    if number := kinds[1]:
        text = f"{count_noun(number, 'image')} {_is(number)} in two classes, so that one label is wrong: "
        text += "keep only the right one of each pair in duplicates.csv."
        findings.append(Finding(text, Urgency.FIRST, "exact_copies"))
    if number := kinds[2]:
        count = "counts" if number == 1 else "count"
        text = f"{count_noun(number, 'image')} {_is(number)} twice in a class, and {count} double."
        findings.append(Finding(text, Urgency.LATER, "exact_copies"))
    if not copies:
        but = f", but for {count_noun(len(rows), 'file')} that you have decided to keep" if rows else ""
        finding = Finding(f"No image is there twice, byte for byte{but}.", Urgency.GOOD)
        return Section("exact_copies", "", findings=[finding], files=files)
    pairs = sorted(copies, key=lambda copy: _kind(copy.where))[:NUM_PAIRS]
    groups = [[checked.item(*copy.first, where=_in_words(copy.where)), checked.item(*copy.second)] for copy in pairs]
    context = {"groups": groups, "number": len(copies), "num_files": len(rows), "file": FILE,
               "command": checked.relabel.get(FILE, "")}  # fmt: skip
    return Section("exact_copies", "Exact copies", context, findings, files=files, decide=FILE)


def _is_kept(checked: Checked, place: tuple[str, int]) -> bool:
    return checked.is_kept(FILE, checked.images[place[0]].path(place[1]), checked.label(*place))


def _rows(checked: Checked) -> list[tuple[object, ...]]:
    """Return a row for each file that is there more than once, those that a person has to decide first. Of files in one
    class and one split, it is proposed to keep the one with the shortest name, which those of copies extend, unless
    something was decided about one of them."""
    places = [*dict.fromkeys(place for copy in checked.copies for place in (copy.first, copy.second))]
    number_of = {place: number for number, place in enumerate(places)}
    pairs = [(number_of[copy.first], number_of[copy.second]) for copy in checked.copies]
    groups: dict[int, list[tuple[str, str, str]]] = {}  # path, label and split of the files with one content
    for place, first in zip(places, first_of_each(len(places), np.array(pairs, np.int64).reshape(-1, 2)), strict=True):
        file = checked.images[place[0]].path(place[1]), checked.label(*place), place[0]
        groups.setdefault(int(first), []).append(file)
    rows = list[tuple[object, ...]]()
    for number, group in enumerate(sorted(groups.values(), key=_is_one_class), 1):
        files = sorted(group, key=lambda file: len(file[0])) if _is_one_class(group) else group
        decisions = [checked.decided(FILE, path, label) for path, label, _ in files]
        if _is_one_class(files) and not any(decisions):
            decisions = [KEEP, *[REMOVE] * (len(files) - 1)]
        rows += [(number, *file, text) for file, text in zip(files, decisions, strict=True)]
    return rows


def _is_one_class(files: Sequence[tuple[str, str, str]]) -> bool:
    return len({(label, split) for _, label, split in files}) == 1


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _in_words(where: str) -> str:
    splits = where.partition(",")[0]
    words = {"train": "training", "val": "validation", "train and val": "training and validation"}
    return where.replace(splits, words[splits], 1)


def _kind(where: str) -> int:
    """Return 0 for a copy across the splits, 1 in two classes, 2 in one class."""
    return 0 if where.startswith("train and val") else 1 if where.endswith("two classes") else 2
