"""Section: the images that are there twice, byte for byte."""

from collections import Counter

from imagenet_ddp.pages.section import Checked, Finding, Section, Urgency
from imagenet_ddp.system.text import count_noun

NUM_PAIRS = 36


def exact_copies(checked: Checked) -> Section:
    """The first pairs are those that matter most: across the splits, then in two classes."""
    kinds = Counter(_kind(copy.where) for copy in checked.copies)
    findings = list[Finding]()
    if number := kinds[0]:
        text = f"{count_noun(number, 'validation image')} {_is(number)} among the training images, too: the accuracy "
        text += "would be better than it is for new images. Remove one of each pair in duplicates.csv."
        findings.append(Finding(text, Urgency.FIRST, "exact_copies"))
    elif len(checked.images) > 1 and checked.copies:
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
    if not checked.copies:
        return Section("exact_copies", "", findings=[Finding("No image is there twice, byte for byte.", Urgency.GOOD)])
    pairs = sorted(checked.copies, key=lambda copy: _kind(copy.where))[:NUM_PAIRS]
    groups = [[checked.item(*copy.first, where=_in_words(copy.where)), checked.item(*copy.second)] for copy in pairs]
    context = {"groups": groups, "number": len(checked.copies)}
    return Section("exact_copies", "Exact copies", context, findings)


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _in_words(where: str) -> str:
    splits = where.partition(",")[0]
    words = {"train": "training", "val": "validation", "train and val": "training and validation"}
    return where.replace(splits, words[splits], 1)


def _kind(where: str) -> int:
    """Return 0 for a copy across the splits, 1 in two classes, 2 in one class."""
    return 0 if where.startswith("train and val") else 1 if where.endswith("two classes") else 2
