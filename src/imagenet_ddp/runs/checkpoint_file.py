"""Write, read and check checkpoint files."""

import contextlib
import copy
import os
import shutil
import textwrap
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch import Trainer
from torch import Tensor

from imagenet_ddp.config.paths import seen_from
from imagenet_ddp.config.schema.commands import CommonConfig
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.stored import not_plain
from imagenet_ddp.config.validators import NULL, integer, is_mapping, kind, list_of, matching
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.folder import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_path, sync_folder, write_in
from imagenet_ddp.system.nonfinite import nonfinite_names, not_stored
from imagenet_ddp.system.process import finish_before_exit
from imagenet_ddp.system.text import load_error

KEY = "imagenet_ddp"  # key of this project's part of a checkpoint
FORMAT = 4  # version of the layout of that part and of the callback states
# Entries that a Trainer of one's own may have left out.
NEEDED = ("config", "classes", "labels", "eval_transform")
OF_TRAINING = ("experiment", "images_per_update", "num_train_images", "images_digest")  # a resumed run needs these, too


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
        self._submit(_write, _copy_to_host(checkpoint), Path(path))

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


def _write(checkpoint: dict[str, Any], target: Path) -> None:
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


def load_weights(module: torch.nn.Module, state_dict: Mapping[str, torch.Tensor], origin: str) -> None:
    """Load the weights of a checkpoint into a module. origin: path of the checkpoint, for messages. Raises ConfigError
    if the weights belong to another net, or if some are NaN or inf, because all predictions would then be NaN."""
    # entries of other types come from get_extra_state()
    tensors = {name: each for name, each in state_dict.items() if isinstance(each, Tensor)}
    if broken := nonfinite_names(module, tensors):
        raise ConfigError(
            f"{origin} must hold finite weights, but {len(broken)} of its {len(state_dict)} tensors hold NaN or inf "
            f"({broken[0]}), because its training diverged. "
            "Hint: use an earlier checkpoint of the run, such as best.ckpt."
        )
    loaded = module.state_dict()  # has the version of the layers' formats, without which MNASNet refuses its weights
    for name in loaded.keys() - state_dict.keys():
        del loaded[name]
    loaded.update(state_dict)
    try:
        module.load_state_dict(loaded)
    except RuntimeError as error:
        reason = textwrap.shorten(str(error).partition("\n")[2], 300)  # the first line only names the class
        raise ConfigError(
            f"{origin} must hold the weights of this net, but does not: {reason}. "
            "Hint: leave the model.* keys out, so that they have the values stored in the checkpoint."
        ) from error


def is_own(path: Path) -> bool:
    """Return whether a file is a checkpoint of this project, complete or not."""
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception:  # whatever it is; who reads it says why it cannot be read
        return False
    return isinstance(stored, dict) and KEY in stored


def read(path: Path) -> dict[str, Any]:
    """Read a checkpoint of this project into CPU memory, without running code from it. The relative paths of its config
    are those of the folder in which its run was started (config/paths.py). Raises ConfigError if the file is not a
    complete checkpoint of this project."""
    hint = "Hint: give the path of a checkpoint, such as runs/<name>/<time>/checkpoints/best.ckpt."
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # zip, pickle, EOF, runtime or file errors, depending on the contents of the file
        reason = load_error(error)
        raise ConfigError(f"{path} must be a checkpoint, but cannot be read ({reason}). {hint}") from error
    own = checkpoint.get(KEY) if isinstance(checkpoint, dict) else None
    if not isinstance(own, dict):
        raise ConfigError(
            f"{path} must be a checkpoint of imagenet_ddp, got a file of another program. Hint: set model.name to the "
            "net of this file, such as model.name=resnet50, and for one of timm model.library=timm."
        )
    if type(own.get("format")) is not int or own["format"] != FORMAT:
        raise ConfigError(
            f"{path} must have checkpoint format {FORMAT}, got {own.get('format')} "
            f"(written by imagenet_ddp {own.get('version')}). Hint: use that version of imagenet_ddp."
        )
    if missing := [name for name in NEEDED if name not in own]:
        raise ConfigError(f"{path} must be a complete checkpoint, but lacks {', '.join(missing)}. {hint}")
    if wrong := _wrong_parts(checkpoint, own):
        raise ConfigError([f"{path} must be a checkpoint whose {each}, but it is not. {hint}" for each in wrong])
    own["config"] = seen_from(own.get("folder"), own["config"])
    return checkpoint


_TEXTS = list_of(matching(r"(?s).*", "text"), "a list of text", least=0)
_TEXT, _COUNT = matching(r"(?s).*", "text"), integer(0)
_MAPPING = kind("a mapping of names", lambda value: is_mapping(value) and all(isinstance(name, str) for name in value))


def _are_keys(value: Any) -> bool:
    tensors = [value.get(name) for name in ("trained", "held_out")] if is_mapping(value) else [None]
    return all(isinstance(each, Tensor) and each.dtype == torch.int64 and each.dim() == 1 for each in tensors)


def _is_optimizer(value: Any) -> bool:
    """Return whether this is the state of an optimizer: {"state": {0: {"step": ...}}, "param_groups": [{...}]}."""
    if not (is_mapping(value) and is_mapping(value.get("state")) and isinstance(value.get("param_groups"), list)):
        return False
    values = [each for state in value["state"].values() for each in (state.values() if is_mapping(state) else [""])]
    has_text = any(isinstance(each, str) for each in values)  # an optimizer of the user's own may have lists
    return not has_text and all(is_mapping(group) for group in value["param_groups"])


_OPTIMIZERS = kind(
    "a list of states of optimizers", lambda value: isinstance(value, list) and all(map(_is_optimizer, value))
)
# What the parts of a checkpoint may be, as far as they are there. The others are read by Lightning alone.
_PARTS = {
    "config": _MAPPING, "classes": _TEXTS, "labels": _TEXTS, "eval_transform": _MAPPING, "version": _TEXT,
    "command": _TEXT, "experiment": NULL | _TEXT, "folder": NULL | _TEXT, "images_digest": _TEXT,
    "num_train_images": _COUNT, "images_per_update": _COUNT, "epoch": _COUNT, "ended_by": NULL | _TEXT,
    "threads": list_of(integer(1), "two integers", 2),
    "best_score": NULL | kind("a number", lambda value: isinstance(value, float)),
    "best_step": NULL | _COUNT, "best_epoch": NULL | _COUNT, "monitor": NULL | _TEXT,
    "image_keys": NULL | kind("two lists of keys", _are_keys),
}  # fmt: skip


def _wrong_parts(checkpoint: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Return which parts of a checkpoint have the wrong type, each as "config is a mapping"."""
    if name := not_stored(checkpoint):
        return [f"tensor {name} is stored in it"]
    found = [
        f"{name} is {allowed.words}"
        for name, allowed in _PARTS.items()
        if name in own and not allowed.accepts(own[name])
    ]
    if not found:
        groups, transform = declared("train"), own["eval_transform"]
        if reason := not_plain(own["config"]) or not_plain(transform):
            return [f"config and eval_transform are plain ({reason})"]
        for path, key in groups.items():
            if key.is_group and "." not in path and not is_mapping(own["config"].get(path, {})):
                found.append(f"config.{path} is a mapping")
        found += [f"config has {group}" for group in ("data", "model") if group not in own["config"]]
        for name in ("image_size", "val_resize", "mean", "std"):
            allowed = groups[f"data.{name}"].allowed
            if name not in transform or (allowed is not None and not allowed.accepts(transform[name])):
                found.append(f"eval_transform.{name} is that of data.{name}")
        if len(own["labels"]) != len(own["classes"]):
            found.append("labels are as many as its classes")
    of_lightning = {"state_dict": _MAPPING, "global_step": _COUNT, "optimizer_states": _OPTIMIZERS}
    for name, allowed in of_lightning.items():
        if not allowed.accepts(checkpoint.get(name, [] if name == "optimizer_states" else None)):
            found.append(f"{name} is {allowed.words}")
    return found
