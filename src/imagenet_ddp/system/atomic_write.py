"""Write files under another name, then rename them, so that no reader finds an incomplete file. Until the new content
is complete, a reader finds the old one, even after a kill or on a full disk."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def atomic_path(path: Path, draft: Path | None = None) -> Iterator[Path]:
    """Yield a path to write to. The file is renamed to `path` at the end of the block, and deleted if the block raises.

    draft: the path to yield, if there is only one writer at a time; the next writer overwrites a file left there by a
    kill. None: a random name that no other process uses, on this machine or another.
    """
    draft = draft or path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def atomic_write(path: Path, content: str | bytes, *, sync: bool = False, draft: Path | None = None) -> None:
    """Write content, with text as UTF-8. sync: return only when the content is on the disk. draft: see atomic_path."""
    with atomic_path(path, draft) as part, part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Return once the names of the folder's files are on the disk. Before that, a power cut may restore old names."""
    with suppress(OSError):  # some network disks do not support this
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)
