"""Provide a callback that simulates a power cut: it ends its process during training, after it has removed the files
and bytes from a folder that were not certainly on the disk."""

import os
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import lightning.pytorch as L


class PowerCut(L.Callback):
    """Cut the power `seconds` after the start of step `step`.

    folder: the folder in which files are lost. A file remains if its name existed when its folder was last synced. It
    has the content of its own last sync, or is empty if it was never synced. Folders themselves remain.
    """

    def __init__(self, folder: str, step: int, seconds: float) -> None:
        self.folder, self.step, self.seconds = Path(folder).absolute(), step, seconds
        self.lock = threading.Lock()
        self.contents: dict[int, bytes] = {}  # inode -> content
        self.names: dict[Path, dict[str, bytes]] = {}
        self.real_fsync = os.fsync
        os.fsync = self.fsync
        for file in [path for path in self.folder.rglob("*") if path.is_file()]:  # files that an earlier cut has left
            self.contents[file.stat().st_ino] = file.read_bytes()
        for folder, _, _ in os.walk(self.folder):
            self.names[Path(folder)] = self.found_in(Path(folder))

    def fsync(self, number: int) -> None:
        self.real_fsync(number)
        path = Path(f"/proc/self/fd/{number}").readlink()
        with self.lock:
            if stat.S_ISDIR(os.fstat(number).st_mode):
                self.names[path] = self.found_in(path)
            else:
                self.contents[os.fstat(number).st_ino] = path.read_bytes() if path.is_file() else b""

    def found_in(self, folder: Path) -> dict[str, bytes]:
        files = [entry for entry in os.scandir(folder) if entry.is_file(follow_symlinks=False)]
        return {entry.name: self.contents.get(entry.inode(), b"") for entry in files}

    def on_train_batch_start(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        if trainer.global_step == self.step:
            self.step = -1
            threading.Timer(self.seconds, self.cut).start()

    def cut(self) -> None:
        with self.lock:
            for folder, folders, _ in list(os.walk(self.folder)):
                kept = self.names.get(Path(folder), {})
                for entry in Path(folder).iterdir():
                    if entry.name not in folders:
                        entry.unlink()
                for name, content in kept.items():
                    Path(folder, name).write_bytes(content)
            shutil.rmtree(self.folder / ".hydra", ignore_errors=True)
            os._exit(9)
