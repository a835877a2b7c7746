"""Change labels that are a column of a CSV file: replace its cells, and nothing else of it."""

from collections.abc import Sequence
from pathlib import Path
from shutil import copymode

from imagenet_ddp.config.schema.data import TableData
from imagenet_ddp.data.sources.cells import CsvText, find_columns, read_cells
from imagenet_ddp.data.sources.table_rows import NEEDED, require_columns
from imagenet_ddp.errors import RunError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.prepare.label_changes import Change, Labels, Wanted, broken_rule
from imagenet_ddp.system.files import atomic_path, not_writable_reason


class TableLabels(Labels):
    """Labels that are a column of a CSV file. data: of the table."""

    kind = "a table"
    can_remove = False
    to_add = "add a row to the table for each image without a label"
    to_name = "write a further class into the table"

    def __init__(self, data: TableData):
        self._file = Path(str(data.root)).resolve()  # a link to the table stays a link
        self.base = Path(data.images_dir) if data.images_dir else Path(str(data.root)).parent
        self._columns = {purpose: str(data.args.get(purpose) or purpose) for purpose in NEEDED}

    def plan(self, wanted: Sequence[Wanted], made: Sequence[Change]) -> tuple[list[Change], list[Mistake]]:
        text, row_of, column = self._read()
        removed = [each.images.name(each.index) for each in wanted if not each.label]
        changes, several = list[Change](), list[str]()
        for each in wanted:
            path, label = each.images.name(each.index), each.label
            if len(row_of[path]) > 1:
                several.append(path)
            like = text.rows[row_of[path][0]][column]
            changes.append(Change(path, like, text.written(label, like), label))
        rule = f"each image must have one row in {self._file}, but {{}} not"
        reason = not_writable_reason(self._file.parent)
        return changes, [
            *broken_rule(removed, "no image of a table can have the decision remove, but {}", "do",
                         f"remove their rows from {self._file}, and clear those decisions"),
            *broken_rule(several, rule, "do", "remove the other rows"),
            *broken_rule([reason] if reason else [], "the folder of the table must be writable, but {} not", "are",
                         "change its permissions (chmod u+w)"),
        ]  # fmt: skip

    def pending(self, changes: Sequence[Change]) -> tuple[list[Change], list[str], list[Mistake]]:
        text, row_of, column = self._read()
        todo, gone, edited = list[Change](), list[str](), list[str]()
        for each in changes:
            rows = row_of.get(each.image, [])
            cells = {text.rows[row][column] for row in rows}
            if not rows:
                gone.append(each.image)
            elif cells == {each.before} and len(rows) == 1:
                todo.append(each)
            elif cells != {each.after}:
                edited.append(each.image)
        rule = f"the labels in {self._file} must be those of this list, but {{}} others"
        return todo, gone, broken_rule(edited, rule, "have", "correct the labels of those rows by hand")

    def apply(self, changes: Sequence[Change]) -> None:
        text, row_of, column = self._read()
        wanted = text.values()
        for each in changes:
            [row] = row_of[each.image]
            text.rows[row][column] = each.after
            wanted[row][column] = CsvText(each.after).values()[0][0]
        if text.values() != wanted:
            raise RunError(f"{self._file} cannot be rewritten without other changes. Hint: save it as CSV again.")
        with atomic_path(self._file) as draft:
            draft.write_bytes(str(text).encode())
            copymode(self._file, draft)

    def _read(self) -> tuple[CsvText, dict[str, list[int]], int]:
        """Return (the table, the rows of each path, the column of the label)."""
        cells = read_cells(self._file, self._columns)  # raises ConfigError for a file that is no table
        require_columns(self._file, cells, self._columns)
        header = cells.header
        position = find_columns(self._file, header, self._columns)
        text = CsvText(self._file.read_bytes().decode())
        row_of: dict[str, list[int]] = {}
        for number, cells in enumerate(text.values()):
            if number and len(cells) == len(header):
                row_of.setdefault(cells[position["path"]], []).append(number)
        return text, row_of, position["label"]
