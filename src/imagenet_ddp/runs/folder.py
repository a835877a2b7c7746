"""Make, lock, find and remove run folders. Does not import torch."""

import fcntl
import glob
import itertools
import json
import os
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from imagenet_ddp.config.validators import TEXTS
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, meant, setting
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.read_results import read_results
from imagenet_ddp.system.files import open_to_append, read_small
from imagenet_ddp.system.text import without_secrets

MADE_FOR = ".made_for"  # file with the options of the run, which lets a restarted job find its folder


def new_folder(
    wanted: Path,
    *,
    is_typed: bool,
    options: Sequence[str],
    run_key: str | None = None,
    again: bool = False,
    key: str = "hydra.run.dir",
    can_resume: bool = False,
) -> Path:
    """Make and return the folder of a new run or sweep: the typed one, or one named after the run and the time, or
    after the launcher's key, because that name must be the same when the launcher restarts the job.

    wanted: value of the key. is_typed: whether the user set it. options: as typed. run_key: name that the launcher
    gives to the folder. again: accept a folder in which this run was started before.
    """
    of_run = options if can_resume else None  # by which resume=auto finds it again
    if is_typed:
        return make_given(wanted, key=key, again=again, can_resume=can_resume, options=of_run)
    if run_key is None:
        return make_new(wanted, options=of_run)
    return make_new(wanted.with_name(run_key), again=again, options=options)


def make_new(wanted: Path, *, again: bool = False, options: Sequence[str] | None = None) -> Path:
    """Make the folder `wanted`, or wanted-1, wanted-2, ... if it exists, so that two runs started in the same second
    never share a folder. again: the job was restarted, so return the folder that was made for these options before, if
    there is one. Raises ConfigError if the folder cannot be made."""
    if again and (same := made_for(wanted, options)):
        return same
    number = 0
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        while True:
            folder = wanted if not number else wanted.with_name(f"{wanted.name}-{number}")
            with suppress(FileExistsError):
                folder.mkdir()
                _keep_options(folder, options)
                return folder
            number += 1
    except (OSError, ValueError) as error:
        raise _unusable(wanted, error) from error


def _keep_options(folder: Path, options: Sequence[str] | None) -> None:
    if options is not None and not (folder / MADE_FOR).exists():
        with suppress(FileExistsError), (folder / MADE_FOR).open("x", encoding="utf-8") as file:  # not through a link
            file.write(json.dumps(without_secrets(list(options))))


def options_of(folder: Path) -> list[str] | None:
    """Return the options for which a folder was made, as typed, but without secrets; None if they are not known."""
    try:
        found = json.loads(read_small(folder / MADE_FOR))
    except (OSError, ValueError, RecursionError):
        return None
    return found if TEXTS.accepts(found) else None


def made_for(wanted: Path, options: Sequence[str] | None) -> Path | None:
    """Return the newest folder that make_new made for this name and these options, or None. The options are compared
    because one job may contain several runs."""

    def fits(path: Path) -> bool:
        return path.is_dir() and options_of(path) == without_secrets(list(options or []))

    same = [path for path in (wanted, *wanted.parent.glob(f"{glob.escape(wanted.name)}-*")) if fits(path)]
    return max(same, key=lambda path: path.stat().st_mtime_ns, default=None)


def make_given(
    folder: Path,
    *,
    key: str = "hydra.run.dir",
    again: bool = False,
    can_resume: bool = False,
    options: Sequence[str] | None = None,
) -> Path:
    """Make the folder that the key names. again: the job was restarted, so the folder may contain this run. can_resume:
    whether the command has resume=auto. Raises ConfigError if the folder holds the results of another run or cannot be
    made."""
    if not again and (mistake := taken(folder, key, can_resume=can_resume)):
        raise ConfigError(mistake)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _keep_options(folder, options)
    except OSError as error:
        raise _unusable(folder, error) from error
    return folder


def unused(folder: Path) -> Path:
    """Return the folder; if it holds the results of a run, the first of FOLDER2, FOLDER3, ... that does not exist."""
    if not holds_results(folder):
        return folder
    stem = f"{folder.name}-" if folder.name[-1:].isdigit() else folder.name
    return next(path for n in itertools.count(2) if not (path := folder.parent / f"{stem}{n}").exists())


def taken(folder: Path, key: str = "hydra.run.dir", *, can_resume: bool) -> Mistake | None:
    """Return the mistake of a new run in a folder that holds the results of another, or None. can_resume: whether the
    command has resume=."""
    if not holds_results(folder):
        return None
    fixes = [meant(f"{key}={unused(folder if folder.name else folder.absolute())}")]  # `.`
    if can_resume and CheckpointStore.of_run(folder).files():
        fixes.append(setting(f"resume={folder}", aim="to continue that run"))
    return Mistake(f"{key}={folder} must be a new folder, but holds a run", (key,), tuple(fixes))


def refuse_links(home: Path, paths: Iterable[Path] | None = None) -> None:
    """Raise ConfigError if links in a folder lead out of it: a folder of somebody else could so lead to any file of
    this user, which would then be written. paths: where to look; None: where a run writes, but for the link to its
    checkpoints, which CheckpointStore.require_place checks."""
    found = []
    for path in _inside(home) if paths is None else paths:
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(home.resolve()):
            found.append(path)
    if found:
        raise ConfigError(
            f"{home} must have no links that lead out of it, because its author must not choose where this machine "
            f"writes, but {found[0]} leads to {found[0].readlink()}. "
            f"Hint: run `rm {shlex.join(map(str, found))}`, or put a folder or file there."
        )


def _inside(folder: Path) -> Iterator[Path]:
    """Yield the paths at the two levels at which runs write; loggers have links of their own further down."""
    checkpoints = CheckpointStore.of_run(folder).folder
    for path in folder.glob("*"):
        if path != checkpoints:
            yield path
        if not path.name.startswith(".") and not path.is_symlink():
            yield from path.glob("*")


def holds_results(folder: Path) -> bool:
    """Return whether a run in this folder has left something to keep: a checkpoint, results, or the row of an epoch. A
    run that ended before that, for example because of its first image, leaves a folder that the same command can
    use."""
    if any(CheckpointStore.of_run(folder).folder.rglob("*.ckpt")):
        return True
    if any(not path.name.startswith("logger_") for path in folder.glob("*.json")):
        return True
    with suppress(OSError), (folder / "metrics.csv").open("rb") as rows:
        return len(rows.read(4096).splitlines()) > 1  # a header and a row
    return False


def make_elsewhere(run_dir: Path, relative: str) -> Path:
    """Return the run folder of node 0 if this machine shares its disk, else make a local folder for the logs.

    run_dir: path on node 0. relative: the same path relative to the current folder of node 0.
    """
    if run_dir.is_dir():
        return run_dir
    own = run_dir if relative.startswith("..") else Path(relative).resolve()
    try:
        own.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"the folder {own} for the logs of this machine cannot be made: {error.strerror}. "
            "Hint: set hydra.run.dir to a relative path."
        ) from error
    return own


def _unusable(folder: Path, error: Exception) -> ConfigError:
    reason = getattr(error, "strerror", None) or str(error)
    what = f"the run folder {folder} cannot be made: {reason}"
    return ConfigError(Mistake(what, ("hydra.run.dir",), (setting("hydra.run.dir=FOLDER"),)))


def run_group(folder: Path) -> str | None:
    """Return the name of the sweep or study that a run folder belongs to, or None."""
    parent = folder.absolute().parent
    if parent.name == "trials":
        return parent.parent.name
    return parent.name if (parent / "sweep.yaml").is_file() else None


def lock(folder: Path) -> IO[str]:
    """Lock the run folder until the returned file is closed. On a file system without locks, nothing is locked. Also
    remove the files that a killed run was still writing, because on a full disk they would take the space of the next
    checkpoint. Raises ConfigError if another process trains in the folder, or if the folder is not writable."""
    try:
        file = open_to_append(folder / ".lock")
    except OSError as error:
        raise ConfigError(
            f"{folder} must be a writable folder, but is not: {(error.strerror or str(error)).lower()}. "
            "Hint: make it writable, then run the same command again."
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
    CheckpointStore.of_run(folder).remove_drafts()
    return file


def is_locked(folder: Path) -> bool:
    """Return whether a process trains in this folder, without locking it. Returns False if that cannot be determined,
    because the locks of the file system are local to each machine."""
    try:
        with (folder / ".lock").open() as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # released when the file is closed
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def is_being_trained(checkpoint: Path) -> bool:
    """Return whether the run of a checkpoint, or of what may be one, still trains."""
    run = CheckpointStore.run_dir_of(checkpoint)
    return run is not None and is_locked(run)


def remove_refused(folder: Path, error: BaseException) -> None:
    """Remove the folder of a refused run if it contains only logs, and its parents inside the current folder if they
    are then empty. error: the exception that ended the run. The folder stays after a failure (exit code 1), after a
    stop that a log records, and if another process trains in it."""
    code = getattr(error, "exit_code", 2)
    if code == 1 or is_locked(folder) or (code > 128 and any(folder.glob("logs/*"))):
        return
    link, here = CheckpointStore.of_run(folder).folder, Path.cwd()
    with suppress(OSError):  # a folder that is not empty, or a read-only disk; the user is shown `error` itself
        if {path.name for path in folder.iterdir()} <= {"logs", ".lock", MADE_FOR, *[link.name] * link.is_symlink()}:
            shutil.rmtree(folder / "logs", ignore_errors=True)
            for path in (link, folder / ".lock", folder / MADE_FOR):
                path.unlink(missing_ok=True)
        folder.rmdir()
        for path in list(folder.resolve().parents)[:2]:
            if here in path.parents:
                path.rmdir()


def finished_epochs(folder: Path) -> int | None:
    return summary(folder).get("epochs")


def summary(folder: Path) -> dict[str, Any]:
    """Return the contents of summary.json if the run is finished, else {}."""
    found = {"epochs": 0, "steps": 0, **read_results(folder / "summary.json")}
    return found if found.get("finished") else {}
