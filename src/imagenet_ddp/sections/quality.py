"""Section: the images of poor quality, the worst of each kind."""

import math
from collections.abc import Mapping

import numpy as np

from imagenet_ddp.curation.quality import GREY, ISSUES, ROW, badness
from imagenet_ddp.sections.section import Checked, Finding, Section, Urgency
from imagenet_ddp.system.table_files import table_bytes
from imagenet_ddp.system.text import count_noun

FILE = "quality.csv"
NUM_WORST = 12  # shown of each kind
HEADER = ("path", "label", "split", "issues", *ROW.names, "decision")  # type: ignore[misc]


def quality(checked: Checked) -> Section | None:
    """What more than half of the images have is a trait of the collection, such as the grey of X-rays, and no fault.
    Images that a person has decided to keep are not shown, and the others once, though they may be poor in several
    ways."""
    rows = {name: rows for name, rows in checked.quality.items() if len(rows)}
    if not rows:
        return None
    how_bad = {name: badness(of_split) for name, of_split in rows.items()}
    poor = {name: {issue: values > 1 for issue, values in each.items()} for name, each in how_bad.items()}
    is_shown = {name: ~_is_kept(checked, name, len(of_split)) for name, of_split in rows.items()}
    total = sum(int((of_split["width"] > 0).sum()) for of_split in rows.values())
    kinds, traits, shown = list[dict[str, object]](), list[str](), set[tuple[str, int]]()
    for issue in ISSUES:
        number = sum(int(each[issue.name].sum()) for each in poor.values())
        if 2 * number > total:
            traits.append(issue.name)
            for each in poor.values():
                each[issue.name][:] = False
    for issue in ISSUES:
        places = [(split, int(index)) for split, each in poor.items()
                  for index in np.flatnonzero(each[issue.name] & is_shown[split])]  # fmt: skip
        if not places:
            continue
        places.sort(key=lambda place: -float(how_bad[place[0]][issue.name][place[1]]))
        new = [place for place in places if place not in shown]
        shown.update(new[:NUM_WORST])
        worst = [
            checked.item(
                split,
                index,
                size=f"{rows[split][index]['width']} × {rows[split][index]['height']}",
                also=", ".join(name for name, has in poor[split].items() if has[index] and name != issue.name),
                choice=checked.choice(FILE, checked.images[split].path(index), checked.label(split, index)),
            )
            for split, index in new[:NUM_WORST]
        ]
        kinds.append({"name": issue.name, "number": len(places), "num_above": len(places) - len(new),
                      "reason": issue.reason, "worst": worst})  # fmt: skip
    counts = {str(kind["name"]): kind["number"] for kind in kinds if kind["name"] != GREY}
    faults = np.concatenate(
        [
            np.sum([each[issue.name] & is_shown[split] for issue in ISSUES if issue.name != GREY], axis=0)
            for split, each in poor.items()
        ]
    )
    but = "" if all(each.all() for each in is_shown.values()) else ", but for those that you have decided to keep"
    finding = Finding(f"No image is blurry, dark, too small or of an odd shape{but}.", Urgency.GOOD)
    if number := int((faults > 0).sum()):
        are = "is" if number == 1 else "are"
        if all(each == number for each in counts.values()):
            how = " and ".join(counts)
        else:
            how = ", ".join(f"{each:,} {name}" for name, each in counts.items())
            how += "; some are more than one of these" if faults.max() > 1 else ""
        text = f"{count_noun(number, 'image')} {are} hard to recognise: {how}."
        finding = Finding(text, Urgency.LATER, "quality")
    context = {"kinds": kinds, "traits": traits, "file": FILE, "total": total, "command": checked.relabel.get(FILE, "")}
    files = {FILE: _table(checked, rows, poor)}
    decide = FILE if number else ""
    return Section("quality", "Quality", context, [finding], "Quality of the images", files=files, decide=decide)


def _is_kept(checked: Checked, split: str, number: int) -> np.ndarray:
    """Return which of the images of a split a person has decided to keep, bool (number,)."""
    if not checked.decisions.get(FILE):
        return np.zeros(number, bool)
    places = ((checked.images[split].path(index), checked.label(split, index)) for index in range(number))
    return np.array([checked.is_kept(FILE, *each) for each in places], bool)


def _table(checked: Checked, rows: Mapping[str, np.ndarray], poor: Mapping[str, Mapping[str, np.ndarray]]) -> bytes:
    """Return the list, in which a person decides: those with issues come first."""
    cells = [
        (checked.images[split].path(index), checked.label(split, index), split,
         ", ".join(name for name, has in poor[split].items() if has[index]), *map(_cell, row.tolist()),
         checked.decided(FILE, checked.images[split].path(index), checked.label(split, index)))
        for split, of_split in rows.items()
        for index, row in enumerate(of_split)
        if row["width"]
    ]  # fmt: skip
    cells.sort(key=lambda row: not row[HEADER.index("issues")])
    return table_bytes(HEADER, cells, checked.delimiter)


def _cell(value: float) -> object:
    if math.isnan(value):
        return ""
    return f"{value:.3g}" if isinstance(value, float) else int(value)
