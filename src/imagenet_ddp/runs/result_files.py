"""Write the files with the results of a run: config.yaml, summary.json, evaluation.json and predictions.csv."""

import json
import math
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from imagenet_ddp.config.section import to_plain
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_write, read_mapping
from imagenet_ddp.system.table_files import table_bytes
from imagenet_ddp.system.text import without_secrets
from imagenet_ddp.version import __version__

KNOWN = "known.npz"  # in the run folder: by what images unlike the training images are told, see curation/unknown.py
NOT_FINITE = "the output of the net is NaN or inf"  # the error of an image that was read but has no class


def known_file(net: Path) -> Path:
    """Return the path of known.npz: in a run folder, also in that of a checkpoint, or beside a checkpoint that is in
    none."""
    folder = net if net.is_dir() else CheckpointStore.run_dir_of(net) or net.parent
    return folder / KNOWN


def counted_sentence(counted: tuple[int, int], num_images: int, num_unreadable: int, share: str = "") -> str:
    """Return the last line of every evaluation. counted: (images, highest count of any image). share: of which images
    these are a part, if they are not all."""
    images, most = counted
    times = "each once" if most <= 1 else f"some {most} times"
    unreadable = f", {num_unreadable} unreadable" if num_unreadable else ""
    return f"{images} of {num_images} validation images{share}, {times}{unreadable}."


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    with disk_errors_as_run_error(path := folder / "config.yaml"):
        atomic_write(path, yaml.safe_dump(without_secrets(to_plain(config)), sort_keys=False, allow_unicode=True))


def read_config(folder: Path) -> dict[str, Any]:
    """Return the config that write_config wrote; {} if the file cannot be read."""
    return read_mapping(folder / "config.yaml")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write results as JSON, and return once they are on the disk, because a run with a summary.json counts as
    finished."""
    with disk_errors_as_run_error(path):
        atomic_write(path, json.dumps(without_secrets(_finite(content)), indent=2) + "\n", sync=True)


def write_predictions(path: Path, columns: Mapping[str, Sequence[Any]], delimiter: str = "comma") -> None:
    """Write columns of equal length as CSV. None becomes an empty cell. Floats have six significant digits. delimiter:
    value of csv_delimiter."""
    texts = ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in each] for each in columns.values())
    with disk_errors_as_run_error(path):
        atomic_write(path, table_bytes(list(columns), zip(*texts, strict=True), delimiter))


def _finite(value: Any) -> Any:
    """Return the value with None in place of numbers that are not finite, because JSON cannot represent them."""
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def provenance(command: str) -> dict[str, Any]:
    """Return the part of a summary that was not measured: versions, commit, command, time."""
    packages = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core")
    return {
        "versions": {
            "imagenet_ddp": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in packages},
        },
        "git_commit": _git_commit(),
        "command": command,
        "folder": str(Path.cwd()),  # to which relative paths refer
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _git_commit() -> str | None:
    """Return the commit of the checkout this package runs from, with -dirty for uncommitted changes; None for an
    installed package."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / ".git").exists() or not (checkout / "conf").is_dir():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
