"""Parse the command line of prepare into a plan, or report all of its mistakes at once. Explain disk errors.

Does not import torch.
"""

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.cli import parse
from imagenet_ddp.config.schema.commands import PrepareConfig
from imagenet_ddp.data import check_data
from imagenet_ddp.data.sources.registry import OF_FOLDERS
from imagenet_ddp.errors import ConfigError, RunError
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.files import describe_path, not_writable_reason
from imagenet_ddp.system.text import MIB


@dataclass(frozen=True)
class Plan:
    config: PrepareConfig
    out: Path  # folder to write; the run folder if prepare=check is typed without out=
    num_workers: int


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """Return the plan. Writes nothing. Raises ConfigError with every mistake."""
    found = parse.read_single_process("prepare", PrepareConfig, argv, environ, "prepare runs a single job")
    config, mistakes = found.config, found.found
    options, out = config.prepare, config.out
    name = options.name
    mistakes += _validate_archive_dir(name, config.archive_dir) + _validate_out(name, out)
    if name != "imagenet":
        verb = "check" if name == "check" else "train"
        mistakes += check_data.validate(config.data, verb=verb) or _validate_outside(config)
    if mistakes:
        raise ConfigError(list(dict.fromkeys(mistakes)))
    if out is None:
        out = found.request.hydra.run.dir
    num_workers = num_cores() if options.num_workers == "auto" else options.num_workers
    return Plan(config, Path(out), num_workers)


def _validate_archive_dir(name: str, value: str | None) -> list[str]:
    if name != "imagenet":
        return []
    if value is None:
        hint = "set archive_dir=FOLDER to the folder with ILSVRC2012_img_train.tar"
        return [f"archive_dir must be the folder of the archives, but is not set. Hint: {hint}."]
    path = Path(value)
    if path.is_dir():
        return []
    hint = f"set archive_dir=$HOME{value[1:]}" if value.startswith("~") else "set archive_dir=FOLDER"
    what = "is a file" if path.exists() else "does not exist"
    return [f"archive_dir must be a folder, but {describe_path(path)} {what}. Hint: {hint}."]


def _validate_out(name: str, value: str | None) -> list[str]:
    if value is None:
        return [] if name == "check" else ["out must be the folder to write, but is not set. Hint: set out=FOLDER."]
    if value.startswith("~"):  # no shell expands ~ after "out="
        return [f"out must not start with ~, which no shell expands there, got {value}. Hint: set out=$HOME{value[1:]}"]
    path = Path(value).absolute()
    reason = not_writable_reason(path)
    return [f"out must be a folder that can be created ({path}), but {reason}. Hint: set out=FOLDER."] if reason else []


def _validate_outside(config: PrepareConfig) -> list[str]:
    """Return a mistake if the output folder is inside the input folder."""
    data, out = config.data, config.out
    if data.name not in OF_FOLDERS or data.target or out is None or data.root is None:
        return []
    if not Path(out).resolve().is_relative_to(Path(data.root).resolve()):
        return []
    return [f"out must be outside data.root ({data.root}), got {out}. Hint: set out=FOLDER to another folder."]


def require_free_space(out: Path, num_bytes: float, hint: str = "") -> None:
    """Raise ConfigError if the disk of the folder `out` has less than num_bytes free. hint: end of the hint."""
    if (free := shutil.disk_usage(out).free) < num_bytes:
        raise ConfigError(
            f"out must have {math.ceil(num_bytes / MIB):,} MiB free, got {free // MIB:,} MiB in {out}. Hint: free some "
            f"disk space, or set out=FOLDER on another disk{hint}."
        )


@contextmanager
def explain_disk_errors(out: Path) -> Iterator[None]:
    """Turn errors from reading and writing files into a RunError."""
    try:
        yield
    except BrokenPipeError:  # the reader of stdout has closed the pipe
        raise
    except OSError as error:
        raise RunError(
            f"{out} cannot be written: {error}. Hint: free some disk space, or check the disk and its permissions, "
            "then run the same command again."
        ) from error
