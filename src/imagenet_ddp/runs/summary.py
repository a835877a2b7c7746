"""Write summary.json and config.yaml, and what they tell about the run."""

import json
import platform
import subprocess
import time
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

from imagenet_ddp import __version__
from imagenet_ddp.errors import RunError
from imagenet_ddp.runs.folder import kept
from imagenet_ddp.system.atomic_write import atomic_write


def counted_sentence(counted: tuple[int, int], num_images: int, *, skips: bool = False) -> str:
    """The last line of every evaluation. skips: what was not counted could not be read."""
    images, most = counted
    times = "each once" if most <= 1 else f"some {most} times"
    unreadable = f", {num_images - images} unreadable" if skips and images < num_images else ""
    return f"{images} of {num_images} validation images, {times}{unreadable}."


def must_count(counted: tuple[int, int], num_images: int) -> None:
    """RunError: not a single image could be read, so that there is no result."""
    if num_images and not counted[0]:
        raise RunError(
            f"at least one of {num_images} validation images must be readable, but none is. "
            "Hint: bad_images.csv lists them with the reasons."
        )


def write_config(folder: Path, config: Mapping[str, Any]) -> None:
    with kept(path := folder / "config.yaml"):
        atomic_write(path, yaml.safe_dump(dict(config), sort_keys=False, allow_unicode=True))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    with kept(path):
        atomic_write(path, json.dumps(content, indent=2) + "\n")


def circumstances(command: str) -> dict[str, Any]:
    """Under which versions and by which command: the part of a summary that no measurement changes."""
    packages = ("torch", "torchvision", "lightning", "torchmetrics", "hydra-core")
    return {
        "versions": {
            "imagenet_ddp": __version__,
            "python": platform.python_version(),
            **{name: metadata.version(name) for name in packages},
        },
        "git_commit": _git_commit(),
        "command": command,
        "finished_at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _git_commit() -> str | None:
    """Of the checkout this package runs from; None where it is installed. -dirty: with changes that are in no
    commit."""
    checkout = Path(__file__).resolve().parents[3]
    if not (checkout / ".git").exists() or not (checkout / "conf").is_dir():
        return None
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*"]
    try:
        result = subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip() or None
