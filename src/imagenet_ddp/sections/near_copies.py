"""Section: the photographs that are there more than once in another form."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.near_copies import COLUMNS, FILE, Group
from imagenet_ddp.curation.wrong_labels import KEEP
from imagenet_ddp.sections.exact_copies import originality
from imagenet_ddp.sections.section import Checked, Finding, Section, Urgency, keep_first
from imagenet_ddp.system.table_files import table_bytes
from imagenet_ddp.system.text import count_noun, percent

NAME = "near_copies"
NUM_GROUPS = 36
NUM_PICTURES = 12  # of a group


def near_copies(checked: Checked) -> Section | None:
    """The first groups are those that matter most: across the splits, then in two classes. Those of one split of which
    all are kept do not count."""
    features, found = checked.features, checked.near_copies
    if features is None or found is None:
        return None
    columns, rows = COLUMNS, found.rows(features)
    proposed = {path: word for group in found.groups for path, word in _proposed(checked, features, group).items()}
    if FILE in checked.decisions:
        words = (checked.decided(FILE, path, label) or proposed.get(path, "") for _, path, label, *_ in rows)
        columns, rows = (*COLUMNS, "decision"), [(*row, word) for row, word in zip(rows, words, strict=True)]
    file = table_bytes(columns, rows, checked.delimiter)  # empty rather than that of an earlier check
    to_mend = [group for group in found.groups if group.is_across or not all(
               checked.is_kept(FILE, features.paths[at], features.labels[features.targets[at]])
               for at in group.members)]  # fmt: skip
    if not to_mend:
        but = f", but for {count_noun(len(rows), 'file')} that you have decided to keep" if rows else ""
        text = f"No photograph is there again in another form, such as smaller, cropped or mirrored{but}."
        return Section(NAME, "", findings=[Finding(text, Urgency.GOOD)], files={FILE: file})
    num_across, num_two = _across_and_two(to_mend)
    finding = Finding(_sentence(to_mend), Urgency.FIRST if num_across or num_two else Urgency.LATER, NAME)
    groups = [
        _items(checked, features, group, found.groups.index(group) + 1, proposed) for group in to_mend[:NUM_GROUPS]
    ]
    context = {"groups": groups, "number": len(found.groups), "num_kept": len(found.groups) - len(to_mend),
               "file": FILE, "is_across": num_across > 0, "command": checked.relabel.get(FILE, ""),
               "groups_option": checked.groups, "proposes": bool(proposed)}  # fmt: skip
    return Section(
        NAME, "Near-copies", context, [finding], "The same photograph in another form", files={FILE: file}, decide=FILE
    )


def _across_and_two(groups: Sequence[Group]) -> tuple[int, int]:
    """Return how many of the groups are on both sides of the split, and how many in two classes."""
    return sum(group.is_across for group in groups), sum(group.is_two_classes for group in groups)


def _sentence(groups: Sequence[Group]) -> str:
    """Return how many photographs are there in more than one form, and what of that matters most."""
    num_across, num_two = _across_and_two(groups)
    is_one, parts = len(groups) == 1, list[str]()
    if num_across:
        are = "it is" if is_one else f"{num_across:,} {'is' if num_across == 1 else 'are'}"
        parts.append(f"{are} in training and in validation, so that the accuracy would be better than on new images")
    if num_two:
        are = "it is" if is_one else f"{num_two:,} {'is' if num_two == 1 else 'are'}"
        parts.append(f"{are} in two classes, so that one label is wrong")
    ends = f": {'; '.join(parts)}" if parts else f", and {'counts' if is_one else 'count'} double"
    return f"{count_noun(len(groups), 'photograph')} {'is' if is_one else 'are'} there in more than one form{ends}."


def _proposed(checked: Checked, features: Features, group: Group) -> dict[str, str]:
    """Return path -> what is proposed, the best first, by its pixels and then the size of its file; {} if a person has
    to choose: between two classes or the sides of a split that is not by chance, among more than are shown, or about
    exact copies first."""
    places = [features.place(at) for at in group.members]
    has_exact = any(place in places for copy in checked.copies for place in (copy.first, copy.second))
    is_open = group.is_two_classes or (group.is_across and not checked.groups) or has_exact
    if FILE not in checked.relabel or not checked.can_remove or is_open or len(places) > NUM_PICTURES:
        return {}

    def worse(at: int) -> tuple[int, int, tuple[bool, int, str]]:
        split, index = features.place(at)
        row, path = checked.quality[split][index], features.paths[at]
        return -int(row["width"]) * int(row["height"]), -_num_bytes(path), originality(path)

    paths = [features.paths[at] for at in sorted(group.members, key=worse)]
    label = features.labels[features.targets[group.members[0]]]
    return dict(zip(paths, keep_first([checked.decided(FILE, path, label) for path in paths]), strict=True))


def _num_bytes(path: str) -> int:
    with suppress(OSError):
        return Path(path).stat().st_size
    return 0


def _items(
    checked: Checked, features: Features, group: Group, number: int, proposed: Mapping[str, str]
) -> list[dict[str, object]]:
    """Return what the page shows of a group, what is proposed to be kept first. number: of the group in the list.
    proposed: path -> decision. Of a larger group, all that is shown may be removed, because the others stay."""
    num_more = len(group.members) - NUM_PICTURES
    own = "" if num_more > 0 else number

    def item(at: int) -> dict[str, object]:
        label = features.labels[features.targets[at]]
        split, index = features.place(at)
        rows = checked.quality.get(split)  # a report has none
        path = features.paths[at]
        size = "" if rows is None else f" · {rows[index]['width']} × {rows[index]['height']}"
        choice = checked.choice(FILE, path, label, group=own, chosen=proposed.get(path, ""))
        return checked.item(split, index, choice=choice, label=label + size)

    members = sorted(group.members, key=lambda at: proposed.get(features.paths[at]) != KEEP)
    items = [item(at) for at in members[:NUM_PICTURES]]
    where = (
        "training and validation"
        if group.is_across
        else "validation"
        if features.is_val[group.members[0]]
        else "training"
    )
    least = min(pair.agreement for pair in group.pairs)
    said = [
        where,
        *(["two classes"] if group.is_two_classes else []),
        f"{percent(least, 0)} of what both show is the same",
    ]
    said += [f"{num_more:,} more {'is' if num_more == 1 else 'are'} not shown, and stay"] if num_more > 0 else []
    items[0]["said"] = ", ".join(said)
    return items
