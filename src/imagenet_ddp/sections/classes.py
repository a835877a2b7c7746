"""Section: how many images each class has."""

from collections.abc import Mapping, Sequence

import numpy as np

from imagenet_ddp.sections.section import Checked, Finding, Section, Urgency
from imagenet_ddp.system.text import alphabetical, class_list, count_noun, shorten_list

FEW = 20  # images of a class; a fifth of them is held out, and four images say little
UNEVEN = 10  # ratio of the largest class to the smallest


def classes(checked: Checked) -> Section:
    """Only images that can be read count: no net learns from the others."""
    counts = {name: _counts(checked, name).tolist() for name in checked.images}
    totals = [sum(column) for column in zip(*counts.values(), strict=True)]
    rows = sorted(zip(checked.labels, totals, *counts.values(), strict=True), key=lambda row: alphabetical(row[0]))
    few = [f"{label} ({total:,})" for label, total, *_ in rows if total < FEW]
    least, most = min(totals, default=0), max(totals, default=0)
    findings = _in_one_split(checked.labels, counts)
    if few:
        text = f"{count_noun(len(few), 'class')} {'has' if len(few) == 1 else 'have'} fewer than {FEW} images, too few "
        text += f"to learn from and to judge by: {shorten_list(few, 4)}."
        findings.append(Finding(text, Urgency.SOON, "classes"))
    if least * UNEVEN < most:
        text = (
            f"The largest class has {most:,} images, the smallest {least:,}: the small ones will be recognised worst."
        )
        findings.append(Finding(text, Urgency.LATER, "classes"))
    if not findings:
        span = f"{least:,} to " if least < most else ""
        text = f"Each of the {count_noun(len(totals), 'class')} has {span}{count_noun(most, 'image')}."
        findings.append(Finding(text, Urgency.GOOD, "classes"))
    context = {
        "splits": list(counts),
        "rows": rows,
        "most": max(most, 1),
        "num_unreadable": len(checked.unreadable),
    }
    return Section("classes", "Classes", context, findings, "Images of each class")


def _in_one_split(labels: Sequence[str], counts: Mapping[str, Sequence[int]]) -> list[Finding]:
    """Return a finding about the classes that have validation images alone, and one about those without any."""
    if counts.keys() != {"train", "val"}:
        return []
    having = {
        split: {label for label, number in zip(labels, each, strict=True) if number} for split, each in counts.items()
    }
    kinds = (
        (
            having["val"] - having["train"],
            "validation images alone, from which no net can learn (train refuses such a class folder)",
            "Add training images, or remove the class",
            Urgency.FIRST,
        ),
        (
            having["train"] - having["val"],
            "training images alone, so that nothing says how often such images are recognised",
            "Add validation images, or more images where a share of them is held out",
            Urgency.SOON,
        ),
    )
    return [
        Finding(
            f"{count_noun(len(names), 'class')} {'has' if len(names) == 1 else 'have'} {what}: {class_list(names)}. "
            f"{advice}.",
            urgency,
            "classes",
        )
        for names, what, advice, urgency in kinds
        if names
    ]


def _counts(checked: Checked, split: str) -> np.ndarray:
    """Return the number of images of each class that can be read, int64 (classes,)."""
    images, number = checked.images[split], len(checked.labels)
    bad = images.targets[[index for name, index, _ in checked.unreadable if name == split]]
    return images.num_of_each(number) - (bad.sum(0) if bad.ndim == 2 else np.bincount(bad, minlength=number))
