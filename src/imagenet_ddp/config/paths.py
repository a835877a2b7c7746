"""List the keys that hold paths, and read the relative ones of a stored run from the folder in which it was started."""

import copy
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from imagenet_ddp.config.section import OF_ENTRIES
from imagenet_ddp.mistakes import key_of

FILES = (".pt", ".pth", ".ckpt", ".tar", ".safetensors", ".bin")
HUB = "hf://"  # begins the name of a repository of the Hugging Face hub
DATA = ("data.root", "data.images_dir")  # without these, no image can be read
WEIGHTS = ("model.weights", "teacher.weights")
KEYS = (*DATA, "data.groups", "data.cache_dir", *WEIGHTS)
# Arguments of callbacks and loggers, of Lightning and of this package.
ARGUMENTS = ("dirpath", "save_dir")
# Further keys, of any command, whose value is the path of a file or folder.
OTHERS = ("data.train_dir", "data.val_dir", "hydra.run.dir", "hydra.sweep.dir", "resume", "sweep.resume", "checkpoint",
          "images", "out", "decisions", "unlabelled", "archive_dir", "labels", "names", "real_labels",
          "cluster.secret_file")  # fmt: skip


def is_file(weights: str) -> bool:
    """Return whether the value of model.weights is a file, here or elsewhere, not a name of a library's weights."""
    return "/" in weights or weights.lower().endswith(FILES)


def is_path(key: str, value: str) -> bool:
    """Return whether this value of a key is the path of a file or folder, which may not exist."""
    return key in OTHERS or _is_stored_path(key, value)


def _is_stored_path(key: str, value: str) -> bool:
    is_argument = key.startswith(("callbacks.", "logger.")) and key.rpartition(".")[2] in ARGUMENTS
    return (key in KEYS and (key not in WEIGHTS or is_file(value))) or is_argument


def is_remote(weights: str) -> bool:
    """Return whether the value of model.weights is a file that has to be downloaded."""
    return weights.startswith((HUB, "https://", "http://"))


def seen_from(folder: str | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the stored config of a run with the paths that it means: its relative ones begin in the folder in which
    the run was started. They stay relative if that is the current folder. A path that is no text, of a stranger's file,
    becomes null. folder: None if the run did not store it."""
    plain: dict[str, Any] = copy.deepcopy(dict(config))
    for key in KEYS:
        group, _, name = key.partition(".")
        if not isinstance(_group(plain, group).get(name), str | None):
            plain[group][name] = None
    if folder is None or Path(folder) == Path.cwd():
        return plain
    for node, name in _nodes(plain):
        if is_relative(node[name]):
            node[name] = str(Path(folder, node[name]))
    return plain


def lost_data(folder: str | None, config: Mapping[str, Any]) -> list[str]:
    """Return a message for each folder or file of images that is not where the run had it. config: as seen_from returns
    it. Only paths that the run had below the folder in which it was started are looked for."""
    found: list[str] = []
    for key in DATA if folder is not None else ():
        value = _group(config, "data").get(key.partition(".")[2])
        if value and not is_relative(value) and Path(value).is_relative_to(str(folder)) and not Path(value).exists():
            inside = Path(value).relative_to(str(folder))
            here = f", such as {shlex.join([f'{key}={inside}'])}, if its images are there" if inside.exists() else ""
            found.append(
                f"{key} must be that of the run, which was started in {folder} with {key}={inside}, but {value} does "
                f"not exist. Hint: set {key}=FOLDER to where it is now{here}."
            )
    return found


def relative_options(options: Iterable[str]) -> list[str]:
    """Return the typed options whose value is a path that depends on the current folder."""
    found: list[str] = []
    for option in options:
        key, value = key_of(option), option.partition("=")[2].strip("'\"")
        if _is_stored_path(key, value) and value != "null" and is_relative(value):
            found.append(option)
    return found


def is_relative(value: Any) -> bool:
    """Return whether a value of one of these keys depends on the current folder."""
    return isinstance(value, str) and "://" not in value and value[:1] not in ("", "/", "~")


def _nodes(config: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield (group, name) of each key that holds a path."""
    for key in KEYS:
        group, _, name = key.partition(".")
        node = _group(config, group)
        if node.get(name) and (key not in WEIGHTS or is_file(node[name])):
            yield node, name
    for group in OF_ENTRIES:
        entries = _group(config, group)
        for entry in (_group(entries, key) for key in entries):
            yield from ((entry, name) for name in ARGUMENTS if entry.get(name))


def _group(config: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = config.get(key)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}
