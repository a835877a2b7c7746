"""Files that are there whole or not at all: written beside their place, then renamed. Who reads one meanwhile, or after
a kill or a full disk, finds the one before."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def drafted(path: Path, draft: Path | None = None) -> Iterator[Path]:
    """A place beside path, still empty; what is written there becomes path where the block ends well, and is removed
    where it does not. draft: that place, for one writer at a time, so that a kill leaves nothing but what the next one
    overwrites; None: a name that no other process has, on this machine or another."""
    draft = draft or path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(
    path: Path, content: str | bytes, *, mode: int | None = None, sync: bool = False, draft: Path | None = None
) -> None:
    """Text as UTF-8. mode: as of chmod. sync: it is on the disk when this returns. draft: see drafted."""
    with drafted(path, draft) as part, part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        if mode is not None:
            os.fchmod(file.fileno(), mode)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        with suppress(OSError):  # some network disks sync no folders
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
