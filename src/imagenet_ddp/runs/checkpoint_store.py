"""The checkpoint files of a run: where they are, which is the newest undamaged one, and whether their disk has room.
torch is imported only to read a file."""

import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import begins_as_zip, nearest_existing, zip_damage
from imagenet_ddp.system.text import first_line

DIRPATH = "callbacks.checkpoint.dirpath"  # puts the files on another disk


class CheckpointStore:
    """The checkpoint files in one folder. ResumeCheckpoint writes them; every other part asks this class for them.

    A run folder leads to its files by its entry `checkpoints`, which is the folder itself, or a link to
    callbacks.checkpoint.dirpath.
    """

    FOLDER = "checkpoints"
    MOST_FILES = 4  # at one time: last, previous and best, and the one being written

    def __init__(self, folder: Path):
        self.folder = folder
        self.last = folder / "last.ckpt"
        self.previous = folder / "previous.ckpt"  # last.ckpt before the current one
        self.best = folder / "best.ckpt"
        self.next = folder / ".next.ckpt"  # becomes last.ckpt once it is whole

    @classmethod
    def of_run(cls, run_dir: Path) -> "CheckpointStore":
        return cls(run_dir / cls.FOLDER)

    @classmethod
    def to_use(cls, path: Path) -> Path:
        """Return the checkpoint that a run folder means in a command that does not train: the best one, or the last one
        of a run without validation. Return any other path unchanged."""
        store = cls.of_run(path)
        return next(filter(Path.is_file, (store.best, store.last)), path)

    @classmethod
    def planned(cls, callbacks: Mapping[str, Any], run_dir: Path) -> "CheckpointStore":
        """Return the store of a run that has not begun. callbacks: the config group."""
        entries = [entry for entry in callbacks.values() if isinstance(entry, Mapping)]
        ours = [entry for entry in entries if str(entry.get("_target_")).endswith(".ResumeCheckpoint")]
        wanted = next((entry["dirpath"] for entry in ours if entry.get("dirpath")), None)
        return cls(Path(wanted)) if wanted else cls.of_run(run_dir)

    @classmethod
    def run_dir_of(cls, checkpoint: Path) -> Path | None:
        """Return the run folder of a checkpoint in `checkpoints/`, or in the folder in it of a callback of the user's
        own."""
        return next((each.parent for each in [*checkpoint.parents][:2] if each.name == cls.FOLDER), None)

    def files(self) -> list[Path]:
        """Return the files from which the run can be resumed, the preferred one first."""
        return [path for path in (self.last, self.previous, self.best) if path.is_file()]

    def newest_whole(self) -> tuple[Path, str]:
        """Return (the first undamaged file, sentences on damaged files before it). Raises ConfigError if all are
        damaged."""
        said = ""
        for checkpoint in self.files():
            if not (reason := damage(checkpoint)):
                return checkpoint, said
            said += f"{checkpoint} is damaged ({reason}) and is skipped. "
        raise ConfigError(
            f"{self.folder.parent} must have an undamaged checkpoint. {said}"
            "Hint: start the training again in another folder, without resume=."
        )

    def require_place(self, wanted: Path) -> None:
        """Raise ConfigError if this folder must not be, or lead to, the wanted one (callbacks.checkpoint.dirpath): a
        link is followed only to where that option leads, and no folder holds the checkpoints of two runs."""
        if wanted == self.folder and self.folder.is_symlink():
            option = f"++{DIRPATH}={QuotedString(str(self.folder.readlink()), Quote.double).with_quotes()}"
            raise ConfigError(
                f"{self.folder} must be a folder, because the author of a run folder must not choose where this "
                f"machine writes, got a link to {self.folder.readlink()}. Hint: if it is yours, set "
                f"{shlex.quote(option)}."
            )
        if wanted.resolve() == self.folder.resolve():
            return
        if self.folder.exists() or self.folder.is_symlink() or CheckpointStore(wanted).files():
            raise ConfigError(
                f"{DIRPATH} must be a folder for the checkpoints of this run alone, and stay the same, got {wanted}. "
                f"Hint: leave {DIRPATH} out, or set ++{DIRPATH} to a new folder for a new run."
            )

    def place(self, wanted: Path) -> None:
        """Make this folder a link to another one if that is wanted. Raises ConfigError as require_place does."""
        self.require_place(wanted)
        if wanted.resolve() == self.folder.resolve():
            return
        try:
            wanted.mkdir(parents=True, exist_ok=True)
            self.folder.symlink_to(wanted.resolve(), target_is_directory=True)
        except OSError as error:
            raise ConfigError(f"{DIRPATH} cannot be used: {error}. Hint: set ++{DIRPATH} to another folder.") from error

    def require_room(self, checkpoint_bytes: int, *, resumed: bool) -> None:
        """Raise ConfigError if the disk has no room for the files of a run. resumed: some are there already."""
        num_files = 2 if resumed else self.MOST_FILES
        free, needed = self.free_bytes(), checkpoint_bytes * num_files
        if free < needed:
            raise ConfigError(
                f"{self.folder} must have room for {num_files} checkpoints, about {needed / 2**20:,.0f} MiB, but its "
                f"disk has {free / 2**20:,.0f} MiB free. Hint: make room there, or set hydra.run.dir=FOLDER, or "
                f"++{DIRPATH}=FOLDER, to a folder on another disk."
            )

    def free_bytes(self) -> int:
        """Return the free bytes of the disk of this folder, which need not exist yet."""
        return shutil.disk_usage(nearest_existing(self.folder.resolve())).free

    def remove_drafts(self) -> None:
        """Remove the files that a killed run was still writing: on a full disk, they take the space of the next
        checkpoint."""
        for draft in (*self.folder.glob(".*.tmp"), self.next):
            with suppress(OSError):
                draft.unlink()


def require_whole(checkpoint: Path, key: str) -> None:
    """Raise ConfigError if a checkpoint is damaged. key: the option that names it. Whether the file is a checkpoint at
    all is checked when it is read."""
    if checkpoint.is_file() and begins_as_zip(checkpoint) and (reason := damage(checkpoint)):
        raise ConfigError(
            f"{checkpoint} must be an undamaged checkpoint, but is damaged: {reason}. Hint: set {key} to another one "
            "of this run, such as previous.ckpt or best.ckpt, or copy the file again from its source."
        )


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
