"""Parse the command line of prepare into a plan, or report all of its mistakes at once.

Does not import torch.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.commands import PrepareConfig
from imagenet_ddp.data import check_data
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.data.sources.registry import OF_FOLDERS
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, must_be, setting
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.files import describe_path, not_writable_reason
from imagenet_ddp.system.text import MIB


@dataclass(frozen=True)
class Plan:
    config: PrepareConfig
    out: Path  # folder to write; the run folder if prepare=check is typed without out=
    num_workers: int
    scan: Scan | None = None  # of the images, which check and pack read


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Return the plan. Writes nothing. Raises ConfigError with every mistake."""
    request, config, mistakes = parse.read_single_process("prepare", PrepareConfig, argv, environ)
    options, out, scan = config.prepare, config.out, None
    if options.name == "imagenet":
        mistakes += _validate_archive_dir(config.archive_dir)
    else:
        more, scan = check_data.inspect(config.data, config.seed)
        mistakes += more
        inside, root = config.data.name in OF_FOLDERS and not config.data.target, config.data.root
        if inside and out and root and Path(out).resolve().is_relative_to(Path(root).resolve()):
            # the new folder would be one of the classes
            fix = setting("out=FOLDER", aim="to another folder")
            mistakes.append(must_be("out", f"outside data.root ({root})", out, fix))
    if out is None and options.name == "check":
        out = request.hydra.run.dir
    mistakes += _validate_out(out)
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    num_workers = num_cores() if options.num_workers == "auto" else options.num_workers
    return Plan(config, Path(str(out)), num_workers, scan)


def _validate_archive_dir(value: str | None) -> list[Mistake]:
    if value and Path(value).is_dir():
        return []
    got = f"but {describe_path(Path(value))} is not one" if value else "but is not set"
    fix = setting("archive_dir=FOLDER", aim="to the folder with ILSVRC2012_img_train.tar")
    return [Mistake(f"archive_dir must be a folder, {got}", ("archive_dir",), (fix,))]


def _validate_out(value: str | None) -> list[Mistake]:
    fixes = (setting("out=FOLDER"),)
    if value is None:
        return [Mistake("out must be the folder to write, but is not set", ("out",), fixes)]
    path = Path(value).absolute()
    reason = not_writable_reason(path)
    what = f"out must be a folder that can be created ({path}), but {reason}"
    return [Mistake(what, ("out",), fixes)] if reason else []


def require_free_space(out: Path, num_bytes: float, hint: str = "") -> None:
    """Raise ConfigError if the disk of the folder `out` has less than num_bytes free. hint: end of the hint."""
    if (free := shutil.disk_usage(out).free) < num_bytes:
        raise ConfigError(
            f"out must have {math.ceil(num_bytes / MIB):,} MiB free, got {free // MIB:,} MiB in {out}. Hint: free some "
            f"disk space, or set out=FOLDER on another disk{hint}."
        )
