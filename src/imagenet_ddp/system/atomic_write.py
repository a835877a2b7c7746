"""Write files that are complete or absent: written under another name, then renamed. A reader finds the old content,
even after a kill or on a full disk, until the new content is complete."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_path(path: Path, draft: Path | None = None) -> Iterator[Path]:
    """Yield a path to write to; it is renamed to `path` at the end of the block, and deleted if the block raises.

    draft: that path, for a single writer: a kill leaves only what the next writer overwrites. None: a name that no
    other process has, on this machine or another.
    """
    draft = draft or path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def atomic_write(path: Path, content: str | bytes, *, sync: bool = False, draft: Path | None = None) -> None:
    """Write content, text as UTF-8. sync: return only when it is on the disk. draft: see atomic_path."""
    with atomic_path(path, draft) as part, part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Return once the names of the folder's files are on the disk; otherwise a power cut may restore the old ones."""
    with suppress(OSError):  # some network disks cannot
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
