"""Find the images about which a person has decided in a list, and what is wrong with the decisions."""

import itertools
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from imagenet_ddp.curation.decision_lists import WORDS, Decision, may_be
from imagenet_ddp.curation.wrong_labels import KEEP, MOVE, REMOVE
from imagenet_ddp.data.sources.base import Source
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.table_rows import rows_message
from imagenet_ddp.prepare.label_changes import Change, Labels, Wanted
from imagenet_ddp.system.text import as_in_tables, class_list, printable

# what people mean by other words
OTHER_WORDS = dict.fromkeys(("delete", "del", "rm", "discard", "drop", "trash"), REMOVE) | {"yes": MOVE, "y": MOVE}


@dataclass(frozen=True)
class Decided:
    """wanted: the images that shall have another class, or be removed. num_kept, num_made: decisions that keep the
    label, and that were carried out before. made_by: another list -> how many of these were carried out with it.
    skipped: sentences about those for which nothing is done."""

    wanted: list[Wanted]
    num_kept: int
    num_made: int
    made_by: Mapping[Path, int]
    skipped: list[str]


def match(
    file: Path,
    decisions: Sequence[Decision],
    source: Source,
    labels: Labels,
    made: Sequence[Change],
    by_others: Mapping[Path, Sequence[Change]],
    unlabelled: Sequence[FileImages],
) -> tuple[Decided, list[str]]:
    """Return (what is decided, the mistakes). Only images of the source and unlabelled ones are found, whatever the
    paths of the list are. made: the changes of earlier commands with this list. by_others: another list -> the changes
    with it."""
    base, splits = labels.base, [images for images in source.splits.values() if isinstance(images, FileImages)]
    loose = [images.loose_images() for images in splits]
    others = [*unlabelled, *loose]
    folders = [images.folder.absolute() for images in (*others, *splits)]
    bases = dict.fromkeys((Path.cwd(), base.absolute(), *folders))
    keys = [[_key(folder / each.path) for folder in bases] for each in decisions]
    named = {key for of_row in keys for key in of_row}
    changes = {_key(base.absolute() / each.image): each for each in made}
    moved = {_key(base.absolute() / each.image): (at, each) for at, of_list in by_others.items() for each in of_list}
    removed = {
        _key(base.absolute() / each.image) for each in itertools.chain(made, *by_others.values()) if not each.label
    }
    places = {
        key: (images, index)
        for images in (*others, *splits)  # an image of the data in a folder of both has a label
        for index in range(len(images))
        if (key := _key(Path(images.path(index)))) in named
    }

    gone, unknown, stale, redone, several, anew = (list[tuple[int, str]]() for _ in range(6))
    first: dict[str, tuple[int, str]] = {}  # image -> row and class of its decision
    offered = set[str]()  # what the rows without a meaning may have
    wanted, num_kept, num_made, made_by, skipped = list[Wanted](), 0, 0, Counter[Path](), Counter[str]()
    for each, of_row in zip(decisions, keys, strict=True):
        key = next((key for key in of_row if key in changes or key in places), None)
        if key is None:
            if found := next((moved[key] for key in of_row if key in moved), None):
                at, change = found
                if each.meaning(each.label, source.classes) == change.label:
                    made_by[at] += 1
                else:
                    skipped[f"{at.name} has {'moved' if change.label else 'removed'}"] += 1
            else:
                gone.append((each.number, each.path))
            continue
        change, (images, index) = changes.get(key), places.get(key, (None, 0))
        label: str | None = each.label
        if change is None and images is not None:
            label = None if images in others else source.classes[int(images.targets[index])]
        target = each.meaning(label or "", source.classes)
        if change is not None and images is not None and change.image == change.before:  # which was moved from there
            anew.append((each.number, each.path))
        elif target is None:
            can = {KEEP: bool(label), MOVE: each.suggested in source.classes, REMOVE: labels.can_remove}
            words = [word for word in WORDS if can[word]]
            unknown.append((each.number, each.text + _why(each, words, source.classes)))
            offered.update(words)
        elif first.setdefault(key, (each.number, target))[1] != target:
            several.append((each.number, f"{each.path}, as row {first[key][0]}"))
        elif first[key][0] != each.number:
            pass  # the same decision twice
        elif change:
            num_made += 1
            if change.label != target:
                redone.append(
                    (each.number, f"{each.path} {f'has got {change.label}' if change.label else 'was removed'}")
                )
        elif target == label:
            num_kept += 1
        elif label and each.label not in ("", label, source.labels[source.classes.index(label)]):
            stale.append((each.number, f"{each.path} has {label}"))
        elif images is not None:
            home = splits[0] if images in unlabelled else images  # the training images
            wanted.append(Wanted(images, index, target, label or "", home.folder))
    notes = [f"{'1 row is about an image' if number == 1 else f'{number:,} rows are about images'} that {where}: "
             f"nothing is done for {'it' if number == 1 else 'them'}" for where, number in skipped.items()]  # fmt: skip
    return Decided(wanted, num_kept, num_made, made_by, notes), [
        *rows_message(f"{file}: path must name an image of the data{' or of unlabelled' if unlabelled else ''}, but "
                      "does not", gone,
                      _of_gone(decisions, labels, is_with_others=bool(unlabelled))),
        *rows_message(f"{file}: decision must be {may_be(offered, 'the name of one class')}, but is not", unknown,
                      f"the classes are {printable(class_list(source.classes, 10))}; {labels.to_name}"),
        *rows_message(f"{file}: an image must have one decision, but has two", several, "clear one of them"),
        *rows_message(f"{file}: an image of each group must stay, but all are removed",
                      _lost(decisions, keys, removed),
                      "write keep into one row of the group, or clear their cells in the column group to remove all"),
        *rows_message(f"{file}: label must be that of the image, but is not", stale, "make a new list"),
        *rows_message(f"{file}: a decision that was carried out must stay, but is another", redone,
                      "undo it first (undo=true)"),
        *rows_message(f"{file}: path must not be that of an earlier image, which was moved from there, but is", anew,
                      "give the list another name, which will be undone by itself"),
    ]  # fmt: skip


def _of_gone(decisions: Sequence[Decision], labels: Labels, *, is_with_others: bool) -> str:
    """Return what to do about rows that name no image of the data. is_with_others: unlabelled images are given, too."""
    correct = "correct those rows, or clear their decision"
    if is_with_others or all(each.label for each in decisions):  # those of predict have none
        return correct
    return f"if this is the list of predict's page, {labels.to_add}; else {correct}"


def _lost(decisions: Sequence[Decision], keys: Sequence[Sequence[str]], removed: set[str]) -> list[tuple[int, str]]:
    """Return the rows of the groups of which no image would be left. keys: of each row. removed: those of images that
    earlier commands have removed."""
    groups: dict[str, list[tuple[Decision, bool]]] = {}
    for each, of_row in zip(decisions, keys, strict=True):
        if each.group:
            groups.setdefault(each.group, []).append((each, not removed.isdisjoint(of_row)))
    return [
        (each.number, each.path)
        for rows in groups.values()
        if len(rows) > 1 and not all(is_gone for _, is_gone in rows)
        if all(is_gone or each.text.casefold() == REMOVE for each, is_gone in rows)
        for each, _ in rows
    ]


def _why(decision: Decision, offered: Sequence[str], classes: Sequence[str]) -> str:
    """Return why a decision has no meaning, or what is close to it; "" if nothing is. offered: the words that its row
    may have beside a class."""
    text = decision.text
    word = text.casefold()
    if word in WORDS:
        needs = f"{decision.suggested} is no class" if decision.suggested else "no class is suggested"
        return ", which is a class, too" if word in offered else f", but {needs if word == MOVE else 'it has no label'}"
    if (other := OTHER_WORDS.get(word)) in offered:
        return f", close to {other}"
    close = get_close_matches(text, [*classes, *offered], 1)
    return f", close to {close[0]}" if close else ""


def _key(path: Path) -> str:
    """Return an absolute path as lists have it."""
    return as_in_tables(os.path.normpath(path.absolute()))
