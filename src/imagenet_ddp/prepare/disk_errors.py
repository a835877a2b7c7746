"""Explain errors of the disk in commands that resume."""

import tarfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagenet_ddp.errors import RunError


@contextmanager
def disk_errors_as_run_error(out: Path) -> Iterator[None]:
    """Turn errors of the disk that is read or written into a RunError."""
    try:
        yield
    except BrokenPipeError:  # the reader of stdout has left
        raise
    except (OSError, tarfile.TarError) as error:
        raise RunError(
            f"{out} cannot be written: {error}. Hint: make room, or check that disk and its permissions, then run "
            "the same command again to resume."
        ) from error
