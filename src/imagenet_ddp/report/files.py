"""The report's files. A file of the same name that is not ours stays as it is."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from imagenet_ddp.system.atomic_write import atomic_write

MARKER = "imagenet_ddp.report"  # within the first bytes of each file but the CSV, which is known by its header
CSV_HEAD = b"place,run,best/val/top1,"


@dataclass
class Outcome:
    written: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)  # left as they are
    error: str = ""  # why writing ended early


def write(folder: Path, contents: Mapping[str, bytes | None]) -> Outcome:
    """name -> content; None: an earlier report's file of that name no longer holds and is removed."""
    outcome = Outcome()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            path = folder / name
            there = path.is_symlink() or path.exists()
            if there and not _is_ours(path):
                outcome.foreign += [name] if content is not None else []
            elif content is not None:
                atomic_write(path, content)
                outcome.written.append(name)
            elif there:
                path.unlink()
    except OSError as error:
        outcome.error = error.strerror or str(error)
    return outcome


def _is_ours(path: Path) -> bool:
    if not path.is_file() or path.is_symlink():
        return False
    with path.open("rb") as file:
        head = file.read(4096)
    return MARKER.encode() in head or (path.suffix == ".csv" and head.startswith(CSV_HEAD))
