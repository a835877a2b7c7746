"""Keep the lists into which a person writes decisions: none of them is replaced with decisions that would be lost."""

from pathlib import Path

from imagenet_ddp.data.sources.cells import read_cells
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.system.files import exists
from imagenet_ddp.system.table_files import of_text_cell
from imagenet_ddp.system.text import count_noun

DECISIONS = "decisions.csv"  # which a page makes of all that is chosen on it
RECORD = ".undo.json"  # how the name of a record_file ends
FIX = setting("out=PATH", aim="to another place")


def record_file(file: Path) -> Path:
    """Return the file beside a list in which prepare=relabel writes what it changes."""
    return file.with_name(file.stem + RECORD)


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
