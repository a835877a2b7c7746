"""Checkpoints: written whole or not at all, complete enough to go on at the next image and to be used without this
run's config."""

import contextlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO

from imagenet_ddp.run.folder import NUM_CHECKPOINTS, kept
from imagenet_ddp.schema import ConfigError
from imagenet_ddp.writing import drafted

FORMAT = 1  # of the part below KEY
KEY = "imagenet_ddp"
REQUIRED = ("state_dict", "loops", "optimizer_states", "callbacks")
REQUIRED_OWN = ("version", "config", "classes", "labels", "eval_transform", "kind", "epoch", "images", "best_top1")


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target and renames: Lightning's own stages in TMPDIR and copies over the last good file,
    which a kill or a full disk then leaves with 0 bytes."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        target = Path(path)
        with kept(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            with drafted(target) as draft, draft.open("wb") as file:
                torch.save(checkpoint, file)
                file.flush()
                os.fsync(file.fileno())


class Saver(L.Callback):
    """last.ckpt after every so many epochs, at the end, and where a run is stopped; best.ckpt at the highest val/top1.

    contents: what a checkpoint carries beside the weights (config, classes, evaluation transform), plain containers
    only. Called on all ranks alike: Lightning gathers the state, rank 0 writes.
    """

    def __init__(
        self, folder: Path, contents: Mapping[str, Any], every_n_epochs: int, num_train_images: int, global_batch: int
    ):
        self.folder = folder
        self.best_top1: float | None = None
        self.best_epoch = 0
        self._contents, self._every_n_epochs = dict(contents), every_n_epochs
        self._num_images, self._global_batch = num_train_images, global_batch
        self._start = (-1, 0)  # a resumed epoch: its number, batches done before
        self._kind = "epoch_end"
        self._validated_epoch = -1

    @property
    def last_path(self) -> Path:
        return self.folder / "last.ckpt"

    @property
    def best_path(self) -> Path:
        return self.folder / "best.ckpt"

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._validated_epoch = trainer.current_epoch

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        epoch = trainer.current_epoch + 1  # finished ones
        improved = False
        if self._validated_epoch == trainer.current_epoch and "val/top1" in trainer.callback_metrics:
            top1 = float(trainer.callback_metrics["val/top1"])
            improved = self.best_top1 is None or top1 > self.best_top1
            if improved:
                self.best_top1, self.best_epoch = top1, epoch
        due = epoch % self._every_n_epochs == 0 or epoch == trainer.max_epochs or trainer.should_stop
        if due or improved:
            self._kind = "epoch_end"
            trainer.save_checkpoint(self.last_path if due else self.best_path)
        if due and improved and trainer.is_global_zero:
            _same_file(self.last_path, self.best_path)

    def save_stopped(self, trainer: L.Trainer, before_validation: bool) -> None:
        """In the middle of an epoch; before_validation: after its last batch."""
        at_end = _at_epoch_end(trainer)
        self._kind = "before_validation" if before_validation else "epoch_end" if at_end else "mid_epoch"
        if (
            self._kind == "epoch_end"
            and self.last_path.exists()
            and trainer.fit_loop.epoch_loop.batch_progress.total.ready
        ):
            due = (trainer.current_epoch + 1) % self._every_n_epochs == 0
            if due:  # on_train_epoch_end has just written it
                return
        trainer.save_checkpoint(self.last_path)

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        batches = trainer.fit_loop.epoch_loop.batch_progress.current.ready
        epoch = trainer.current_epoch
        before = self._start[1] if self._start[0] == epoch else 0
        sampler = trainer.datamodule.train_sampler  # type: ignore[attr-defined]
        checkpoint[KEY] = {
            **self._contents,
            "format": FORMAT,
            "best_top1": self.best_top1,
            "best_epoch": self.best_epoch,
            "kind": self._kind,
            "epoch": epoch,
            "images": sampler.images_after(epoch, batches - before) if sampler else 0,
            "global_batch_size": self._global_batch,
        }
        if self._kind == "before_validation":
            # Lightning's own shape for "interrupted in validation": it then runs the whole validation, and trains
            # nothing before
            progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
            for part in ("total", "current"):
                progress[part] = {"ready": 1, "started": 1, "processed": 0, "completed": 0}
            progress["is_last_batch"] = False

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        state = checkpoint[KEY]
        self.best_top1, self.best_epoch = state["best_top1"], state["best_epoch"]
        if state["kind"] == "epoch_end":
            return
        progress = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]
        batches = progress["current"]["ready"]
        if state["global_batch_size"] != self._global_batch:
            # counted in the new, larger or smaller steps, so that the epoch still ends at its usual number of them
            steps = -(-self._num_images // self._global_batch)
            left = -(-(self._num_images - state["images"]) // self._global_batch)
            batches = steps - left
            completed = batches - (state["kind"] == "mid_epoch")
            progress["current"] = {"ready": batches, "started": batches, "processed": batches, "completed": completed}
        self._start = (state["epoch"], batches)
        trainer.datamodule.start_at(state["epoch"], state["images"])  # type: ignore[attr-defined]


def _at_epoch_end(trainer: L.Trainer) -> bool:
    """Between the last step's bookkeeping and the end-of-epoch hooks."""
    progress: Any = trainer.fit_loop.epoch_progress.current
    return progress.processed > progress.completed


def _same_file(source: Path, target: Path) -> None:
    """target becomes what source is now. A hard link where the file system has them: source is only ever replaced,
    not changed."""
    with kept(target), drafted(target) as draft:
        with contextlib.suppress(OSError):
            draft.hardlink_to(source)
        if not draft.exists():
            shutil.copyfile(source, draft)


def num_at_once(max_epochs: int | None, *, resumed: bool) -> int:
    """The most that lie there, beyond those that a resumed run has already."""
    if resumed:
        return 1
    return NUM_CHECKPOINTS if max_epochs is None or max_epochs < 0 else min(max_epochs, NUM_CHECKPOINTS)


def num_bytes(net: torch.nn.Module, of_optimizer: int) -> int:
    """A checkpoint's size but for some KiB. of_optimizer: numbers that the optimiser keeps for each weight."""
    weights = sum(tensor.numel() * tensor.element_size() for tensor in net.parameters())
    return weights * (1 + of_optimizer) + sum(tensor.numel() * tensor.element_size() for tensor in net.buffers())


def load_weights(module: torch.nn.Module, state_dict: Mapping[str, torch.Tensor], origin: str) -> None:
    """origin: the checkpoint's path. Raises ConfigError where the weights are another net's."""
    try:
        module.load_state_dict(dict(state_dict))
    except RuntimeError as error:
        few = " ".join(str(error).split())[:300]
        raise ConfigError(
            f"{origin} is expected to hold the weights of this net, but does not ({few}). "
            "HINT: leave model.* as stored."
        ) from error


def read(path: Path) -> dict[str, Any]:
    """A checkpoint of this project, on the CPU. Raises ConfigError for anything else; never runs code from the file."""
    hint = "HINT: a path like runs/<name>/<time>/checkpoints/best.ckpt."
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except FileNotFoundError:
        raise ConfigError(f"{path} is expected to be a checkpoint, but there is no such file. {hint}") from None
    except Exception as error:  # zip, pickle, EOF and runtime errors, by what the file really is
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = "no file that torch.save has written" if "mmap" in reason else reason
        raise ConfigError(
            f"{path} is expected to be a checkpoint, but cannot be read as one ({reason}). {hint}"
        ) from error
    if not isinstance(checkpoint, dict) or KEY not in checkpoint:
        raise ConfigError(f"{path} is expected to be a checkpoint of imagenet_ddp, but is another program's. {hint}")
    if not isinstance(checkpoint[KEY], dict):
        raise ConfigError(f"{path} is expected to be a checkpoint of imagenet_ddp, but its own part is empty. {hint}")
    found = checkpoint[KEY].get("format")
    if found != FORMAT:
        raise ConfigError(
            f"{path} is expected to have checkpoint format {FORMAT}, but has {found} "
            f"(written by imagenet_ddp {checkpoint[KEY].get('version')}). HINT: use that version."
        )
    missing = [name for name in REQUIRED if name not in checkpoint]
    missing += [f"{KEY}.{name}" for name in REQUIRED_OWN if name not in checkpoint[KEY]]
    if missing:
        raise ConfigError(f"{path} is expected to be a whole checkpoint, but lacks {', '.join(missing)}. {hint}")
    return checkpoint
