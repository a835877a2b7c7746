"""Turn errors of the disk while a run writes its files into errors that say how to continue. Does not import torch."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from imagenet_ddp.errors import RunError, causes
from imagenet_ddp.runs.checkpoint_store import CheckpointStore


@contextmanager
def disk_errors_as_run_error(path: Path, folder: Path | None = None) -> Iterator[None]:
    """Turn an OSError that occurs while this file is written, for example because the disk is full, into a RunError
    whose hint explains how to continue. folder: the run folder, if it is neither the folder of the file nor the parent
    of its checkpoints folder."""
    try:
        yield
    except Exception as error:
        # torch.save hides the OSError behind an error of its own
        if (refusal := next((each for each in causes(error) if isinstance(each, OSError)), None)) is None:
            raise
        folder = folder or CheckpointStore.run_dir_of(path) or path.parent
        is_saved = CheckpointStore.of_run(folder).last.is_file()
        raise RunError(
            f"{path} cannot be written: {(refusal.strerror or str(refusal)).lower()}."
            f"{' Files saved earlier are intact.' if is_saved else ''}",
            f"{'make room there' if refusal.errno in (errno.ENOSPC, errno.EDQUOT) else 'fix that problem'}, then "
            f"{f'set resume={folder}' if is_saved else 'run the same command again'}",
        ) from error


@contextmanager
def folder_errors_as_run_error(folder: Path) -> Iterator[None]:
    """Turn OSErrors that concern files in a run folder, such as those of a logger, into RunErrors, as
    disk_errors_as_run_error does for one file."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # the file name is missing if the error occurs late
        path = Path(error.filename or folder / "logs").absolute()
        if not path.is_relative_to(folder.absolute()) or not (error.filename or is_full):
            raise
        with disk_errors_as_run_error(path, folder):
            raise
