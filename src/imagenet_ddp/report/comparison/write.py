"""Write the files of the report. An existing file that this command did not write is not replaced."""

from collections.abc import Mapping
from pathlib import Path

from imagenet_ddp.system.atomic_write import atomic_write
from imagenet_ddp.system.text_table import Table, as_markdown, escape_markdown

MARKER = "imagenet_ddp.report"  # among the first bytes of each file; a CSV is recognised by its header instead
CSV_HEADERS = (b"place,run,best/val/top1,", b"path,label,suggested,score")


def write_files(folder: Path, contents: Mapping[str, bytes]) -> tuple[list[str], list[str]]:
    """Write the files. Return (names of the written files, names of the files that were not replaced). Raises OSError
    if a file cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    foreign = [name for name in contents if _is_foreign(folder / name)]
    written = [name for name in contents if name not in foreign]
    for name in written:
        atomic_write(folder / name, contents[name])
    return written, foreign


def _is_foreign(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return path.is_symlink() or path.exists()
    with path.open("rb") as file:
        start = file.read(4096)
    return MARKER.encode() not in start and not (path.suffix == ".csv" and start.startswith(CSV_HEADERS))


def markdown_document(title: str, table: Table, picture: str) -> str:
    """Return the text of report.md. picture: file name of the figure with the curves."""
    lines = [f"<!-- {MARKER} -->", f"# {escape_markdown(title)}", ""]
    lines += [f"## {escape_markdown(table.title)}", "", *as_markdown(table), ""]
    for note in table.notes:
        lines += [escape_markdown(note), ""]
    return "\n".join([*lines, f"![Validation top-1 and training loss over the epochs]({picture})", ""])
