"""Check the free disk space before writing, and explain disk errors, for commands that can be run again."""

import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.system.text import MIB


def require_free_space(out: Path, num_bytes: float, hint: str) -> None:
    """Raise ConfigError if the disk of the folder `out` has less than num_bytes free. hint: end of the hint."""
    if (free := shutil.disk_usage(out).free) < num_bytes:
        raise ConfigError(
            f"out must have {math.ceil(num_bytes / MIB):,} MiB free, got {free // MIB:,} MiB in {out}. Hint: free some "
            f"disk space, or set out=FOLDER on another disk{hint}."
        )


@contextmanager
def explain_disk_errors(out: Path) -> Iterator[None]:
    """Turn errors from reading and writing files into a RunError."""
    try:
        yield
    except BrokenPipeError:  # the reader of stdout has closed the pipe
        raise
    except OSError as error:
        raise RunError(
            f"{out} cannot be written: {error}. Hint: free some disk space, or check the disk and its permissions, "
            "then run the same command again."
        ) from error
