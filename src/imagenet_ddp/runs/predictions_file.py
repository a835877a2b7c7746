"""Write predictions.csv or predictions.parquet, with one row per image of an evaluation. Does not import torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_path, atomic_write, csv_bytes

NOT_FINITE = "the output of the net is NaN or inf"  # the error of an image that was read but has no class
FILES = {"csv": "predictions.csv", "parquet": "predictions.parquet"}


def write(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Write columns of equal length, as CSV or Parquet according to the suffix of the path. None becomes an empty cell.
    Floats have six significant digits in CSV."""
    with disk_errors_as_run_error(path):
        if path.suffix == ".csv":
            rows = zip(*(map(_text, column) for column in columns.values()), strict=True)
            atomic_write(path, csv_bytes(list(columns), rows))
            return
        import pyarrow  # an extra of this project; runs/check_run.py has checked for it
        from pyarrow import parquet

        with atomic_path(path) as draft:
            cells = {name: list(map(_valid, column)) for name, column in columns.items()}
            parquet.write_table(pyarrow.table(cells), draft)


def _text(cell: Any) -> Any:
    return f"{cell:.6g}" if isinstance(cell, float) else cell


def _valid(cell: Any) -> Any:
    """Escape bytes of a file name that are not valid text, because pyarrow would reject them."""
    return cell.encode(errors="backslashreplace").decode() if isinstance(cell, str) else cell
