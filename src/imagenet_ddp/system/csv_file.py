"""Format CSV files."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def csv_bytes(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return the content of a CSV file, with backslash escapes for bytes of file names that are not valid text. None is
    an empty cell."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue().encode(errors="backslashreplace")
