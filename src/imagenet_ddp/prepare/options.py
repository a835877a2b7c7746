"""The command line of prepare -> a plan, or every mistake at once. No torch."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp.data import validate as data_check
from imagenet_ddp.engine import job
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.cpu_cores import num_cores
from imagenet_ddp.system.paths import obstacle, shown_path

NAMES = ("imagenet", "stl10", "pack", "check")


class FailedError(ConfigError):
    """What was begun could not be ended: exit code 1."""


@dataclass(frozen=True)
class Plan:
    name: str  # one of NAMES
    options: Mapping[str, Any]  # prepare.*
    config: Mapping[str, Any]  # resolved, plain
    archive_dir: Path | None
    out: Path | None  # of check never None
    num_workers: int


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Plan | None:
    """None where Hydra only prints something. Writes nothing; raises ConfigError with every mistake."""
    asked = job.single("prepare", argv, environ, "prepare does one thing")
    if asked is None:
        return None
    request, plain, found = asked.request, asked.config, asked.found
    options = plain["prepare"]
    found += _archive_dir(options["name"], plain["archive_dir"])
    found += _out(options["name"], plain["out"])
    found += _LOOKS.get(options["name"], _nothing)(plain, asked.environ)
    if found:
        raise ConfigError(list(dict.fromkeys(found)))
    out = plain["out"]
    if out is None and options["name"] == "check":
        assert request.hydra is not None
        out = request.hydra.run.dir
    return Plan(
        options["name"],
        options,
        plain,
        Path(plain["archive_dir"]) if plain["archive_dir"] is not None else None,
        Path(out) if out is not None else None,
        num_cores() if options["num_workers"] == "auto" else options["num_workers"],
    )


def option(key: str, path: Path) -> str:
    """key=path as Hydra's grammar reads it: it knows few characters without quotes."""
    text = str(path)
    if re.fullmatch(r"[\w./@:-]+", text, re.ASCII):
        return f"{key}={text}"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'{key}="{escaped}"'


def _archive_dir(name: str, value: str | None) -> list[str]:
    if name not in ("imagenet", "stl10"):
        if value is None:
            return []
        return [f"archive_dir is for prepare=imagenet and stl10, but this is prepare={name}. Hint: leave it out."]
    if value is None:
        hint = "archive_dir=FOLDER, with ILSVRC2012_img_train.tar"
        missing = ["archive_dir must be the folder of the archives, but is not set. Hint: " + hint + "."]
        return missing if name == "imagenet" else []
    return [] if Path(value).is_dir() else [_no_folder("archive_dir", value)]


def _out(name: str, value: str | None) -> list[str]:
    if value is None:
        if name in ("imagenet", "pack"):
            return ["out must be the folder to write, but is not set. Hint: out=FOLDER."]
        return []
    if value.startswith("~"):  # no shell expands it behind "out="
        return [f"out={value} would be a folder called ~. Hint: out=$HOME{value[1:]}"]
    path = Path(value).absolute()
    if not (reason := obstacle(path)):
        return []
    return [f"out must be a folder that can be made ({path}), but {reason}. Hint: out=FOLDER."]


def _no_folder(key: str, value: str) -> str:
    hint = f"{key}=$HOME{value[1:]}" if value.startswith("~") else f"{key}=FOLDER"
    what = "is a file" if Path(value).exists() else "does not exist"
    said = shown_path(Path(value))
    return f"{key} must be a folder, but {said} {what}. Hint: {hint}."


def _whole_data(config: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    return data_check.validate(config, environ) or _inside(config)


def _inside(config: Mapping[str, Any]) -> list[str]:
    """What is written must not become a part of what is read."""
    root, out = config["data"]["root"], config["out"]
    is_folder = config["data"]["name"] in data_check.OF_FOLDERS and not config["data"]["_target_"]
    if not is_folder or out is None or not Path(out).resolve().is_relative_to(Path(root).resolve()):
        return []
    return [f"out must lie outside of data.root ({root}), but is {out}. Hint: out=FOLDER."]


def _any_data(config: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    """What is wrong inside the folders is what the check is for; here only whether there is something to look at."""
    data = config["data"]
    if data["_target_"] or data["name"] not in data_check.OF_FOLDERS:
        return data_check.validate(config, environ)
    return data_check.validate_root(data, environ) or _inside(config)


def _nothing(config: Mapping[str, Any], environ: Mapping[str, str]) -> list[str]:
    return []


# What else must be there before it starts.
_LOOKS: dict[str, Callable[[Mapping[str, Any], Mapping[str, str]], list[str]]] = {
    "pack": _whole_data,
    "check": _any_data,
}
