"""Where a made script is written, and that no other file is lost by it."""

import re
from datetime import datetime
from pathlib import Path

from imagenet_ddp.schema import ConfigError
from imagenet_ddp.submitting.render import is_as_made
from imagenet_ddp.writing import write_whole


def write(path: Path, text: str) -> None:
    """Raises ConfigError where another file is there, one that was made here and edited since included."""
    try:
        there = path.read_text(encoding="utf-8", errors="replace") if path.exists() or path.is_symlink() else None
        if there is not None and not is_as_made(there):
            what = (
                "has been edited since it was made"
                if "imagenet_ddp.submit" in there[:500]
                else "was not made by submit"
            )
            raise ConfigError(
                f"submit.out={path} {what}, and is left as it is. "
                f"HINT: another submit.out; or `sbatch {path}` as it is."
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text, mode=0o755)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. HINT: submit.out=FILE.") from error


def new(name: str) -> Path:
    """slurm/<name>_<time>.sbatch, with a number where that is there."""
    plain = re.sub(r"[^\w.-]", "_", name)
    stem = f"{plain}_{datetime.now():%Y-%m-%d_%H-%M-%S}"
    number, path = 1, Path("slurm", f"{stem}.sbatch")
    while path.exists():
        number += 1
        path = path.with_name(f"{stem}_{number}.sbatch")
    return path
