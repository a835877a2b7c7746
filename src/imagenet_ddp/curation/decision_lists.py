"""Read the lists into which a person writes decisions, and keep them: none is replaced with decisions that would be
lost."""

import os
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.curation.wrong_labels import FILE, KEEP, MOVE, REMOVE, is_keep
from imagenet_ddp.data.sources.base import one_form
from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.data.sources.table_rows import rows_message
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.system.files import exists, expand_home
from imagenet_ddp.system.table_files import of_text_cell
from imagenet_ddp.system.text import count_noun, printable, shorten_list

DECISIONS = "decisions.csv"  # which a page makes of all that is chosen on it
RECORD = ".undo.json"  # how the name of a record_file ends
COLUMNS = ("path", "label", "suggested", "group", "list", "decision")
NEEDED = ("path", "decision")
WORDS = (KEEP, MOVE, REMOVE)
FIX = setting("out=PATH", aim="to another place")


def record_file(file: Path) -> Path:
    """Return the file beside a list in which prepare=relabel writes what it changes."""
    return file.with_name(file.stem + RECORD)


def downloads() -> Path:
    """Return the folder in which browsers save the list that a page makes."""
    return expand_home("~/Downloads")  # a container's user may have no home


def require_readable(file: Path) -> None:
    """Raise ConfigError if a list to replace cannot be read, such as one that Excel has saved in another encoding: its
    decisions are unknown."""
    try:
        cells = read_cells(file, {"decision": "decision"}, "out") if file.is_file() else None  # a pipe would be awaited
        is_read = cells is None or not (cells.columns and cells.ragged)
    except OSError:
        return
    except ConfigError:
        is_read = False
    if not is_read:
        what = f"out must not replace a list that cannot be read, because it may have decisions, got {file}"
        raise ConfigError(Mistake(what, ("out",), (FIX,), "save that list as CSV in UTF-8"))


def require_carried_out(file: Path) -> None:
    """Raise ConfigError if a file to replace has decisions that prepare=relabel has not carried out."""
    try:
        names = {name: name for name in ("path", "decision")}
        columns = read_cells(file, names, "out").columns if file.is_file() else {}  # a pipe would be awaited
    except (ConfigError, OSError):  # it is another file
        return
    rows = zip(columns.get("path", ()), columns.get("decision", ()), strict=False)
    # an image that has got a class is not there any more
    is_applied = record_file(file).exists()
    number = sum(bool(word.strip()) and not (is_applied and not exists(of_text_cell(path))) for path, word in rows)
    if number:
        what = f"out must not be a list to be carried out, but {file} has {count_noun(number, 'decision')}"
        raise ConfigError(Mistake(what, ("out",), (FIX,), "have them carried out first (prepare=relabel)"))


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


def may_be(offered: Collection[str], name: str) -> str:
    """Return what a decision may be, in words. offered: of keep, move and remove. name: words for that of a class."""
    words = [f"{MOVE} (to the suggested class)" if word == MOVE else word for word in WORDS if word in offered]
    return f"{', '.join(words)} or {name}" if words else name


def read_decisions(file: Path, *, can_keep: bool = True, can_remove: bool = True) -> list[Decision]:
    """Return the rows with a decision. can_keep, can_remove: whether the images have labels, and can be removed. Raises
    ConfigError."""
    cells = read_cells(file, {name: name for name in COLUMNS}, "decisions")
    if not cells.numbers and not cells.ragged:
        has = "has only a header" if cells.header else "is empty"
        what = f"{file} must have a decision in at least one row, but {has}"
        hint = "choose something on the page that made it, and save the list again"
        raise ConfigError(Mistake(what, ("decisions",), hint=hint))
    if missing := [name for name in NEEDED if name not in cells.columns]:
        what = (
            f"{file} must have the columns {' and '.join(NEEDED)}, but has no {' and no '.join(missing)}: its columns "
            f"are {printable(shorten_list(cells.header, 10)) or 'none'}"
        )
        hint = "add the column decision, with what shall happen to each image" if missing == ["decision"] else ""
        raise ConfigError(Mistake(what, ("decisions",), (setting("decisions=FILE", aim=f"to a {FILE}"),), hint))
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
        words = may_be([word for word in WORDS if can[word]], "the name of another class")
        raise ConfigError(Mistake(what, ("decisions",), hint=f"write {words}"))
    return found


def earlier_decisions(file: Path, of_page: Path) -> dict[tuple[str, str, str], str]:
    """Return path, label and suggested class -> what a person has decided, in a list that is about to be replaced, or
    on the page beside it: the newer file counts. What is kept is kept whatever is suggested, "" stands for that; on the
    page, it is kept in one list. of_page: the file that the page of the check makes."""
    found = dict[tuple[str, str, str], str]()
    # a stranger's check may name any place, and a pipe would be awaited
    there = [each for each in (file, of_page) if os.path.isfile(each)]  # noqa: PTH113 (Path.is_file() may raise)
    for each in sorted(there, key=lambda each: each.stat().st_mtime_ns):
        with suppress(ConfigError, OSError):  # there is no list, or nothing in it
            decided = [row for row in read_decisions(each)
                       if row.of_list in ("", file.name) or not is_keep(row.text, row.label)]  # fmt: skip
            newer = {(row.path, row.label) for row in decided}
            found = {key: text for key, text in found.items() if key[:2] not in newer}
            found |= {(row.path, row.label, "" if is_keep(row.text, row.label) else row.suggested): row.text
                      for row in decided}  # fmt: skip
    return found
