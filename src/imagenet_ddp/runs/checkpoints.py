"""Find the checkpoint that resume= refers to, and verify that it is undamaged. torch is imported only if one is
found."""

from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.folder import finished_epochs, last_checkpoint, previous_checkpoint
from imagenet_ddp.system.checksum import begins_as_zip, zip_damage
from imagenet_ddp.system.text import first_line


@dataclass(frozen=True)
class Resume:
    """The run that resume= refers to. checkpoint: None for a fresh start. finished_epochs: number of epochs of a
    finished run; None if the run is unfinished. sentence: a line for the log."""

    folder: Path | None
    checkpoint: Path | None
    finished_epochs: int | None
    sentence: str


def find_own(folder: Path) -> Resume | None:
    """Return the checkpoint in the run folder of a restarted job; None if there is none yet."""
    return _continue(folder, "Restarted: continuing from", ".") if has_checkpoint(folder) else None


def find_resume(option: str, run_dir: Path | None, runs: Path) -> Resume:
    """Find the checkpoint that resume= refers to. option: a path or auto. run_dir: hydra.run.dir if it was typed. runs:
    folder of the runs of this name.

    auto refers to the last checkpoint of run_dir if that is given, else to that of the newest unfinished run in `runs`,
    else to a fresh start. Raises ConfigError if a path refers to no checkpoint, or if all checkpoints are damaged.
    """
    if option != "auto":
        checkpoint, damaged = Path(option), ""
        if checkpoint.is_dir() and has_checkpoint(checkpoint):
            checkpoint, damaged = newest_whole(checkpoint)
        elif not checkpoint.is_file():
            missing = last_checkpoint(checkpoint) if checkpoint.is_dir() else checkpoint
            raise ConfigError(
                f"resume={option} must be a checkpoint or a run folder with a checkpoint, but {missing} is not a file. "
                "Hint: set resume=auto."
            )
        else:
            require_whole(checkpoint, "resume")
        place = checkpoint.absolute().parent  # may be a link (callbacks.checkpoint.dirpath)
        folder = place.parent if place.name == "checkpoints" else None
        finished = finished_epochs(folder) if folder else None
        return Resume(folder, checkpoint, finished, f"{damaged}Resuming from {checkpoint} (as set by resume=).")
    if run_dir is not None:
        if not has_checkpoint(run_dir):
            return Resume(None, None, None, f"resume=auto: starting a new run, because {run_dir} has no checkpoint.")
        return _continue(run_dir, "resume=auto: continuing from", " (hydra.run.dir).")
    candidates = [path for path in (runs.iterdir() if runs.is_dir() else ()) if has_checkpoint(path)]
    unfinished = [path for path in candidates if finished_epochs(path) is None]
    if not unfinished:
        why = "that has a checkpoint is unfinished" if candidates else "has a checkpoint"
        return Resume(None, None, None, f"resume=auto: starting a new run, because no run in {runs} {why}.")
    newest = max(unfinished, key=lambda path: max(file.stat().st_mtime_ns for file in _checkpoints(path)))
    return _continue(newest, "resume=auto: continuing from", f", the newest unfinished run in {runs}.")


def _continue(folder: Path, before: str, after: str) -> Resume:
    """Return the newest undamaged checkpoint of a run folder. before, after: text around its path in the sentence."""
    checkpoint, damaged = newest_whole(folder)
    return Resume(folder, checkpoint, finished_epochs(folder), f"{damaged}{before} {checkpoint}{after}")


def has_checkpoint(folder: Path) -> bool:
    """Return whether a run folder has a checkpoint to resume from."""
    return bool(_checkpoints(folder))


def newest_whole(folder: Path) -> tuple[Path, str]:
    """Return (the newest undamaged checkpoint of a run folder, sentences on newer but damaged ones). Raises ConfigError
    if all are damaged."""
    damaged = {}
    for checkpoint in _checkpoints(folder):
        if not (reason := damage(checkpoint)):
            said = "".join(f"{path} is damaged ({why}) and is skipped. " for path, why in damaged.items())
            return checkpoint, said
        damaged[checkpoint] = reason
    listed = ", ".join(f"{path} ({why})" for path, why in damaged.items())
    raise ConfigError(
        f"{folder} must have an undamaged checkpoint, but these are damaged: {listed}. "
        "Hint: start the training again in another folder, without resume=."
    )


def require_whole(checkpoint: Path, key: str) -> None:
    """Raise ConfigError if a checkpoint is damaged. key: the option that names it. Whether the file is a checkpoint at
    all is checked when it is read."""
    if checkpoint.is_file() and begins_as_zip(checkpoint) and (reason := damage(checkpoint)):
        others = [previous_checkpoint(checkpoint), checkpoint.with_name("last.ckpt"), checkpoint.with_name("best.ckpt")]
        whole = next((path for path in others if path != checkpoint and path.is_file() and not damage(path)), None)
        hint = f" Hint: set {key}={whole}." if whole else " Hint: copy the file again from its source."
        raise ConfigError(f"{checkpoint} must be an undamaged checkpoint, but is damaged: {reason}.{hint}")


def damage(path: Path) -> str:
    """Return a phrase that describes the damage to a checkpoint file; "" if it is undamaged."""
    if reason := zip_damage(path):
        return reason
    import torch

    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:  # torch checks the zip directory at the end more strictly than zipfile
        return first_line(error).partition(". ")[0].rstrip(".")
    except Exception:  # the file is undamaged; whether it is a checkpoint is checked when it is read
        return ""
    return ""


def _checkpoints(folder: Path) -> list[Path]:
    """Return those of last.ckpt, previous.ckpt and best.ckpt that exist. A run can be resumed from each of them."""
    last = last_checkpoint(folder)
    return [path for path in (last, previous_checkpoint(last), last.with_name("best.ckpt")) if path.is_file()]
