"""Make, lock, find and remove run folders. No torch."""

import errno
import fcntl
import glob
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.system.mapping_file import read_mapping
from imagenet_ddp.system.text import count_noun

NUM_CHECKPOINTS = 4  # at most at once: last.ckpt, previous.ckpt, best.ckpt, and the one being written
MADE_FOR = ".made_for"  # file with the options of the run, by which a restarted job finds its folder


def make_new(wanted: Path, *, again: bool = False, options: Sequence[str] | None = None) -> Path:
    """Make this folder, or wanted-1, wanted-2, ... if it exists: two runs started in the same second never share one.
    again: a restarted job takes the folder that was made before for these options."""
    if again and (same := made_for(wanted, options)):
        return same
    number = 0
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        while True:
            folder = wanted if not number else wanted.with_name(f"{wanted.name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir()
                if options is not None:
                    (folder / MADE_FOR).write_text(json.dumps(list(options)), encoding="utf-8")
                return folder
            number += 1
    except (OSError, ValueError) as error:
        raise _unusable(wanted, error) from error


def made_for(wanted: Path, options: Sequence[str] | None) -> Path | None:
    """Return the newest folder that make_new made for this name and these options; one job may contain several runs."""

    def fits(path: Path) -> bool:
        try:
            return path.is_dir() and json.loads((path / MADE_FOR).read_text(encoding="utf-8")) == list(options or [])
        except (OSError, ValueError):
            return False

    same = [path for path in (wanted, *wanted.parent.glob(f"{glob.escape(wanted.name)}-*")) if fits(path)]
    return max(same, key=lambda path: path.stat().st_mtime_ns, default=None)


def make_given(folder: Path, *, again: bool = False) -> Path:
    """Make the folder that hydra.run.dir names. Raises ConfigError if it already contains a run. again: that run is
    this one."""
    if not again and ((folder / "config.yaml").exists() or (folder / "checkpoints").exists()):
        raise ConfigError(
            f"hydra.run.dir={folder} must be a new folder, but holds a run. "
            "Hint: resume=auto resumes that run; else name another folder."
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(folder, error) from error
    return folder


def make_elsewhere(run_dir: Path, relative: str, must_share: bool) -> Path:
    """Return number 0's folder if this other machine shares its disk; otherwise make a local one for the logs.

    relative: run_dir as seen from number 0's current folder. must_share: nodes that come and go must all find the run's
    checkpoints; raises ConfigError if they would not.
    """
    if run_dir.is_dir():
        return run_dir
    if must_share:
        raise ConfigError(
            f"{run_dir} must be on a disk that all nodes share (trainer.num_nodes=LEAST:MOST), but this machine does "
            "not have it. Hint: hydra.run.dir=FOLDER on a shared disk."
        )
    own = run_dir if relative.startswith("..") else Path(relative).resolve()
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{own} cannot be made on this machine for its logs: {error.strerror}. Hint: a relative hydra.run.dir."
        ) from error
    return own


def _unusable(folder: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    return ConfigError(f"the run folder {folder} cannot be made: {reason}. Hint: hydra.run.dir=FOLDER.")


def run_group(folder: Path) -> str | None:
    """Return the name of the sweep or study that a run folder belongs to."""
    parent = folder.absolute().parent
    if parent.name == "trials":
        return parent.parent.name
    return parent.name if (parent / "sweep.yaml").is_file() else None


def last_checkpoint(folder: Path) -> Path:
    return folder / "checkpoints" / "last.ckpt"


def previous_checkpoint(last: Path) -> Path:
    """Return the path at which the previous last.ckpt is kept."""
    return last.with_name("previous.ckpt")


@contextmanager
def disk_errors_as_run_error(path: Path, folder: Path | None = None) -> Iterator[None]:
    """Turn an OSError while this file is written (a full disk) into a RunError that says how to continue. folder: of
    the run, if it is neither the file's folder nor the parent of its checkpoints folder."""
    try:
        yield
    except Exception as error:
        if (refusal := _refusal(error)) is None:
            raise
        folder = folder or (path.parent.parent if path.parent.name == "checkpoints" else path.parent)
        is_saved = last_checkpoint(folder).is_file()
        raise RunError(
            f"{path} cannot be written: {(refusal.strerror or str(refusal)).lower()}."
            f"{' What was saved before is whole.' if is_saved else ''} "
            f"Hint: {'make room there' if refusal.errno in (errno.ENOSPC, errno.EDQUOT) else 'fix that'}, then "
            f"{f'resume={folder}' if is_saved else 'run the same command again'}."
        ) from error


@contextmanager
def folder_errors_as_run_error(folder: Path) -> Iterator[None]:
    """Do the same for all files of a run folder, such as a logger's."""
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)  # the name is missing if the error is noticed late
        path = Path(error.filename or folder / "logs").absolute()
        if not path.is_relative_to(folder.absolute()) or not (error.filename or is_full):
            raise
        with disk_errors_as_run_error(path, folder):
            raise


def _refusal(error: BaseException | None) -> OSError | None:
    """Return the OSError that caused an error: torch.save hides it behind one of its own."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def require_disk_space(folder: Path, checkpoint_bytes: int, num_checkpoints: int) -> None:
    """Raise ConfigError if the disk has no room for the checkpoints. checkpoint_bytes: size of one."""
    free, needed = shutil.disk_usage(folder).free, checkpoint_bytes * num_checkpoints
    if free < needed:
        raise ConfigError(
            f"{folder} must have room for {count_noun(num_checkpoints, 'checkpoint')}, about "
            f"{needed / 2**20:,.0f} MiB, but its disk has {free / 2**20:,.0f} MiB free. Hint: make room there, or "
            "hydra.run.dir=FOLDER on another disk."
        )


def lock(folder: Path) -> IO[str]:
    """Lock the run folder, until the returned file is closed. Raises ConfigError if another process trains in it. On a
    file system without locks, nothing is locked. Files that a killed run was still writing are removed: on a full disk,
    they would take the room of the next checkpoint."""
    try:
        file = (folder / ".lock").open("w")
    except OSError as error:
        raise ConfigError(
            f"{folder} must be a folder that can be written in, but is not: {(error.strerror or str(error)).lower()}. "
            "Hint: fix that, then run the same command again."
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise ConfigError(
            f"{folder} must be free, but another process trains in it. Hint: wait until it ends, or stop it first."
        ) from error
    except OSError:
        return file
    checkpoints = last_checkpoint(folder).parent
    for draft in (*checkpoints.glob(".*.tmp"), checkpoints / ".next.ckpt"):
        with suppress(OSError):
            draft.unlink()
    return file


def is_locked(folder: Path) -> bool:
    """Return whether a process trains in this folder, without taking the lock. False if that cannot be determined, on a
    file system whose locks are local to each machine."""
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released when the file is closed
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def remove_refused(folder: Path, error: BaseException) -> None:
    """Remove the folder of a refused run if it contains only logs, and parents that are then empty. error: what ended
    the run; after a failure (exit code 1), or a stop recorded in a log, the folder stays. So does one in which another
    process trains, and whatever cannot be removed."""
    code = getattr(error, "exit_code", 2)
    with suppress(OSError):  # a disk that has become read-only, or a mount point: the user reads the error itself
        if code == 1 or not folder.is_dir() or is_locked(folder) or (code > 128 and any(folder.glob("logs/*"))):
            return
        if {path.name for path in folder.iterdir()} <= {"logs", ".lock", MADE_FOR}:
            shutil.rmtree(folder / "logs", ignore_errors=True)
            for name in (".lock", MADE_FOR):
                (folder / name).unlink(missing_ok=True)
        here = Path.cwd()
        folder = folder.resolve()
        for path in (folder, *list(folder.parents)[:2]):
            # never folders outside of the current one
            if path == here or (path != folder and not path.is_relative_to(here)) or any(path.iterdir()):
                return
            path.rmdir()


def finished_epochs(folder: Path) -> int | None:
    return summary(folder).get("epochs")


def summary(folder: Path) -> dict[str, Any]:
    """Return summary.json of a finished run, else {}."""
    found = read_mapping(folder / "summary.json")
    return found if found.get("finished") else {}
