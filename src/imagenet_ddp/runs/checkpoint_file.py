"""Read checkpoint files, and check what is in them."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from imagenet_ddp.config.paths import seen_from
from imagenet_ddp.config.schema.stated import wrong_facts
from imagenet_ddp.config.stored import not_plain
from imagenet_ddp.config.validators import NULL, TEXT, integer, is_mapping, kind, list_of
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.nonfinite import is_endless, nonfinite_names, not_stored
from imagenet_ddp.system.text import load_error

KEY = "imagenet_ddp"  # key of this project's part of a checkpoint
FORMAT = 4  # version of the layout of that part and of the callback states
# Entries that a Trainer of one's own may have left out.
NEEDED = ("config", "classes", "labels", "eval_transform")
# a resumed run needs these, too
OF_TRAINING = ("experiment", "images_per_update", "num_train_images", "images_digest", "threads")


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
    except Exception:  # `read` reports the reason
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
    if is_endless(checkpoint):
        raise ConfigError(f"{path} must be a checkpoint, but its parts contain one another without end. {hint}")
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


_COUNT = integer(0)
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
_SETTINGS = kind(
    "a list of plain settings",
    lambda value: isinstance(value, list) and all(map(is_mapping, value)) and not not_plain(value),
)
# What the parts of a checkpoint may be, as far as they are there. The others are read by Lightning alone.
_PARTS = {
    "version": TEXT, "command": TEXT, "experiment": NULL | TEXT, "folder": NULL | TEXT, "images_digest": TEXT,
    "num_train_images": _COUNT, "images_per_update": _COUNT, "epoch": _COUNT, "ended_by": NULL | TEXT,
    "threads": list_of(integer(1), "two integers", 2),
    "best_score": NULL | kind("a number", lambda value: isinstance(value, float)),
    "best_step": NULL | _COUNT, "best_epoch": NULL | _COUNT, "monitor": NULL | TEXT,
    "start": TEXT, "image_keys": NULL | kind("two lists of keys", _are_keys),
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
    found += wrong_facts(own)
    if not found:
        found += [f"config has {group}" for group in ("data", "model") if group not in own["config"]]
    of_lightning = {
        "num_counted": NULL | list_of(_COUNT, "two integers", 2),
        "state_dict": _MAPPING, "global_step": _COUNT, "optimizer_states": _OPTIMIZERS, "optimizer_settings": _SETTINGS,
    }  # fmt: skip
    for name, allowed in of_lightning.items():
        if not allowed.accepts(checkpoint.get(name, [] if name.startswith("optimizer") else None)):
            found.append(f"{name} is {allowed.words}")
    if not found and (settings := checkpoint.get("optimizer_settings")):
        groups = [group for each in checkpoint.get("optimizer_states", []) for group in each["param_groups"]]
        if len(settings) != len(groups):
            found.append("optimizer_settings is one for each group of its optimizer")
    return found
