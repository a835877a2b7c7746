"""Write checkpoint files in the background, and copy and rename them once they are written."""

import contextlib
import copy
import os
import shutil
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Trainer
from torch import Tensor

from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_path, sync_folder, write_in
from imagenet_ddp.system.process import finish_before_exit


class BackgroundCheckpointIO(TorchCheckpointIO):
    """Write checkpoints in a background thread. Training waits only while the tensors are copied, and for the
    previous file if it is not written yet. The next call raises an error that occurred in the thread.

    A file is written next to its target, synced to the disk and then renamed. Lightning's own writer stages it in
    TMPDIR and copies it over the last good file, which a killed process or a full disk can leave with 0 bytes.
    """

    def __init__(self) -> None:
        super().__init__()
        self._thread: ThreadPoolExecutor | None = None
        self._pending: Future[None] | None = None

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        self.wait()
        self._submit(write_checkpoint, _copy_to_host(checkpoint), Path(path))

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        self.wait()
        return super().load_checkpoint(path, *args, **kwargs)

    def remove_checkpoint(self, path: Any) -> None:
        """Remove a file after all pending files are written, because the one that replaces it may be among them."""
        self.wait()
        super().remove_checkpoint(path)

    def then(self, function: Callable[..., None], *arguments: Any) -> None:
        """Call a function in the thread once the pending file is written, unless writing it failed."""
        before = self._pending

        def call() -> None:
            if before is not None:
                before.result()
            function(*arguments)

        self._submit(call)

    def wait(self) -> None:
        """Wait until the pending file is written. Raises RunError if it could not be written."""
        if self._pending is not None:
            pending, self._pending = self._pending, None
            pending.result()

    def teardown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _submit(self, function: Callable[..., None], *arguments: Any) -> None:
        self._thread = self._thread or ThreadPoolExecutor(1, "checkpoint")
        self._pending = self._thread.submit(function, *arguments)
        finish_before_exit(self._pending)


def duplicate(trainer: Trainer, source: Path, target: Path) -> None:
    """Copy source to target on rank 0, once all pending checkpoints of the trainer are written."""
    # If TMPDIR is on another disk, Lightning's own writer overwrites the old file itself, and so all hard links to it.
    link = isinstance(trainer.strategy.checkpoint_io, BackgroundCheckpointIO)
    _when_written(trainer, link_or_copy, source, target, link)


def move(trainer: Trainer, source: Path, target: Path) -> None:
    """Rename source to target on rank 0, once all pending checkpoints of the trainer are written."""
    _when_written(trainer, _rename, source, target)


def _when_written(trainer: Trainer, function: Callable[..., None], *arguments: Any) -> None:
    if isinstance(checkpoint_io := trainer.strategy.checkpoint_io, BackgroundCheckpointIO):
        function, arguments = checkpoint_io.then, (function, *arguments)
    if trainer.is_global_zero:
        function(*arguments)


def wait_until_written(trainer: Trainer) -> None:
    """Wait until all checkpoints of the trainer are written. Call this on all ranks: if a rank ended while rank 0 is
    still writing, the launcher would kill the others. Raises RunError if a file could not be written."""
    if isinstance(checkpoint_io := trainer.strategy.checkpoint_io, BackgroundCheckpointIO):
        checkpoint_io.wait()
    trainer.strategy.barrier("checkpoints are written")


def write_checkpoint(checkpoint: dict[str, Any], target: Path) -> None:
    """Write a checkpoint whose tensors are in CPU memory. The file is replaced once the new one is whole, so that its
    hard links keep their content. Raises RunError if it cannot be written."""

    def write() -> None:
        # All drafts of this file have the same name, so the next one overwrites a draft that a killed process left.
        with atomic_path(target, target.with_name(f".{target.name}.tmp")) as draft, draft.open("wb") as file:
            torch.save(checkpoint, file)
            file.flush()
            os.fsync(file.fileno())
        sync_folder(target.parent)

    with disk_errors_as_run_error(target):
        write_in(target.parent, write)


def _rename(source: Path, target: Path) -> None:
    """Rename source to target; do nothing if source has been removed, which the end of the run reports."""
    with disk_errors_as_run_error(target), contextlib.suppress(FileNotFoundError):
        source.replace(target)
        sync_folder(target.parent)


def _copy_to_host(checkpoint: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the checkpoint with all tensors in CPU memory, so that training may continue. Tied weights
    remain one tensor."""
    copies: dict[Any, Tensor] = {}
    memo: dict[int, Any] = {}

    def copy_tensor(tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        key = (tensor.data_ptr() or id(tensor), tensor.dtype, tensor.shape, tensor.stride())
        if key not in copies:
            copies[key] = tensor.to("cpu", copy=True)
        return copies[key]

    def visit(value: Any) -> None:
        if isinstance(value, Tensor):
            memo[id(value)] = copy_tensor(value)
        elif isinstance(value, Mapping | list | tuple):
            for each in value.values() if isinstance(value, Mapping) else value:
                visit(each)

    visit(checkpoint)
    return copy.deepcopy(checkpoint, memo)


def link_or_copy(source: Path, target: Path, link: bool = True) -> None:
    """Copy source to target; do nothing if source has been removed. link: make a hard link instead if the file system
    supports it. This is safe because source is only ever replaced, never changed."""
    if not source.exists():
        return
    # suppressed: the folder is removed just now, which the end of the run reports
    with disk_errors_as_run_error(target), contextlib.suppress(FileNotFoundError), atomic_path(target) as draft:
        with contextlib.suppress(OSError):
            if link:
                draft.hardlink_to(source)
        if not draft.exists():
            shutil.copyfile(source, draft)
            with draft.open("rb") as file:
                os.fsync(file.fileno())


def checkpoint_bytes(net: torch.nn.Module, config: CommonConfig) -> int:
    """Return about the size of a checkpoint in bytes: the weights, two values of each for an optimizer like Adam, else
    one, and the average."""
    is_like_adam = config.optim.target or "betas" in config.optim
    copies = (3 if is_like_adam else 2) + (config.averaging.name != "none")
    weights = sum(tensor.numel() * tensor.element_size() for tensor in net.parameters())
    return weights * copies + sum(tensor.numel() * tensor.element_size() for tensor in net.buffers())
