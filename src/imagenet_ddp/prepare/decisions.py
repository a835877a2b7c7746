"""Read a list of a check after a person has written decisions into it, and find the images that it names."""

import itertools
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from imagenet_ddp.curation.wrong_labels import FILE, KEEP, MOVE, REMOVE, is_keep
from imagenet_ddp.data.sources.base import Source, one_form
from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.sources.table_rows import rows_message
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.prepare.label_changes import Change, Labels, Wanted
from imagenet_ddp.system.table_files import of_text_cell
from imagenet_ddp.system.text import as_in_tables, class_list, count_noun, printable, shorten_list

COLUMNS = ("path", "label", "suggested", "group", "list", "decision")
NEEDED = ("path", "decision")
WORDS = (KEEP, MOVE, REMOVE)
# what people mean by other words
OTHER_WORDS = dict.fromkeys(("delete", "del", "rm", "discard", "drop", "trash"), REMOVE) | {"yes": MOVE, "y": MOVE}


@dataclass(frozen=True)
class Decision:
    """A row of the list in which a person has decided. label: when the list was made; "" if it has no such column.
    group: of copies, if a person has decided about all of it; "" otherwise. of_list: in which it was decided, on the
    page of a check; "" in a list of its own."""

    number: int  # as a spreadsheet shows it
    path: str
    label: str
    suggested: str
    group: str
    of_list: str
    text: str

    def meaning(self, label: str, classes: Sequence[str]) -> str | None:
        """Return the class that the image shall have, "" if it shall be removed, None if the text has no meaning, or
        two. label: its class now."""
        word = self.text.casefold()
        is_reserved = word in WORDS
        named = {self.text} & {*classes} or {each for each in classes if each.casefold() == word and not is_reserved}
        meanings = {*named, *([label] if word == KEEP else []), *([self.suggested] if word == MOVE else [])}
        meanings = (meanings & {*classes}) | ({""} if word == REMOVE else set())
        return meanings.pop() if len(meanings) == 1 else None


def _may_be(offered: Collection[str], name: str) -> str:
    """Return what a decision may be, in words. offered: of keep, move and remove. name: words for that of a class."""
    words = [f"{MOVE} (to the suggested class)" if word == MOVE else word for word in WORDS if word in offered]
    return f"{', '.join(words)} or {name}" if words else name


def read_decisions(file: Path, *, can_keep: bool = True, can_remove: bool = True) -> list[Decision]:
    """Return the rows with a decision. can_keep, can_remove: whether the images have labels, and can be removed. Raises
    ConfigError."""
    cells = read_cells(file, {name: name for name in COLUMNS}, "decisions")
    if missing := [name for name in NEEDED if name not in cells.columns]:
        what = (
            f"{file} must have the columns {' and '.join(NEEDED)}, but has no {' and no '.join(missing)}: its columns "
            f"are {printable(shorten_list(cells.header, 10)) or 'none'}"
        )
        raise ConfigError(Mistake(what, ("decisions",), (setting("decisions=FILE", aim=f"to a {FILE}"),)))
    if cells.ragged:
        wrong = [(number, count_noun(count, "cell")) for number, count in cells.ragged]
        rule = f"{file}: the number of cells must be that of the header ({len(cells.header)}), but is not"
        raise ConfigError(rows_message(rule, wrong, "put quotes around text that contains a comma"))
    columns = {name: cells.columns.get(name, [""] * len(cells.numbers)) for name in COLUMNS}
    groups, texts = columns["group"], columns["decision"]
    undecided = {group for group, text in zip(groups, texts, strict=True) if not text.strip()}
    columns["group"] = ["" if group in undecided else group for group in groups]
    found = [
        Decision(number, of_text_cell(path), *(one_form(of_text_cell(cell.strip())) for cell in others))
        for number, path, *others, text in zip(cells.numbers, *columns.values(), texts, strict=True)
        if text.strip()
    ]
    if not found:
        what = f"{file} must have a decision in at least one row, but its column decision is empty"
        can = {KEEP: can_keep, MOVE: "suggested" in cells.columns, REMOVE: can_remove}
        words = _may_be([word for word in WORDS if can[word]], "the name of another class")
        raise ConfigError(Mistake(what, ("decisions",), hint=f"write {words}"))
    return found


def earlier_decisions(file: Path, of_page: Path) -> dict[tuple[str, str, str], str]:
    """Return path, label and suggested class -> what a person has decided, in a list that is about to be replaced, or
    on the page beside it: the newer file counts. What is kept is kept whatever is suggested, "" stands for that; on the
    page, it is kept in one list. of_page: the file that the page of the check makes."""
    found = dict[tuple[str, str, str], str]()
    for each in sorted((file, of_page), key=_modified_ns):
        with suppress(ConfigError, OSError):  # there is no list, or nothing in it
            decided = [row for row in read_decisions(each)
                       if row.of_list in ("", file.name) or not is_keep(row.text, row.label)]  # fmt: skip
            newer = {(row.path, row.label) for row in decided}
            found = {key: text for key, text in found.items() if key[:2] not in newer}
            found |= {(row.path, row.label, "" if is_keep(row.text, row.label) else row.suggested): row.text
                      for row in decided}  # fmt: skip
    return found


def _modified_ns(file: Path) -> int:
    return file.stat().st_mtime_ns if file.exists() else 0


@dataclass(frozen=True)
class Decided:
    """wanted: the images that shall have another class, or be removed. num_kept, num_made: decisions that keep the
    label, and that were carried out before. skipped: sentences about those for which nothing is done."""

    wanted: list[Wanted]
    num_kept: int
    num_made: int
    skipped: list[str]


def match(
    file: Path,
    decisions: Sequence[Decision],
    source: Source,
    labels: Labels,
    made: Sequence[Change],
    by_others: Mapping[str, Sequence[Change]],
    unlabelled: Sequence[FileImages],
) -> tuple[Decided, list[str]]:
    """Return (what is decided, the mistakes). Only images of the source and unlabelled ones are found, whatever the
    paths of the list are. made: the changes of earlier commands with this list. by_others: name of another list -> the
    changes with it."""
    base, splits = labels.base, [images for images in source.splits.values() if isinstance(images, FileImages)]
    loose = [images.loose_images() for images in splits]
    others = [*unlabelled, *loose]
    folders = [images.folder.absolute() for images in (*others, *splits)]
    bases = dict.fromkeys((Path.cwd(), base.absolute(), *folders))
    keys = [[_key(folder / each.path) for folder in bases] for each in decisions]
    named = {key for of_row in keys for key in of_row}
    changes = {_key(base.absolute() / each.image): each for each in made}
    moved = {_key(base.absolute() / each.image): f"{name} has {'moved' if each.label else 'removed'}"
             for name, of_list in by_others.items() for each in of_list}  # fmt: skip
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
    wanted, num_kept, num_made, skipped = list[Wanted](), 0, 0, Counter[str]()
    for each, of_row in zip(decisions, keys, strict=True):
        key = next((key for key in of_row if key in changes or key in places), None)
        if key is None:
            if where := next((moved[key] for key in of_row if key in moved), ""):
                skipped[where] += 1
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
    return Decided(wanted, num_kept, num_made, notes), [
        *rows_message(f"{file}: path must name an image of the data{' or of unlabelled' if unlabelled else ''}, but "
                      "does not", gone,
                      f"correct those rows, clear their decision{'' if unlabelled else f', or {labels.to_add}'}"),
        *rows_message(f"{file}: decision must be {_may_be(offered, 'the name of one class')}, but is not", unknown,
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
