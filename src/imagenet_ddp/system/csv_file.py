"""Format CSV files."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any


def csv_bytes(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return the content of a CSV file. Bytes in file names that are not valid text become backslash escapes, and None
    becomes an empty cell."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue().encode(errors="backslashreplace")
