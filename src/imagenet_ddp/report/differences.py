"""In which options runs differ, and what to call each run by."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.validators import shown
from imagenet_ddp.report.runs import UNKNOWN, Run
from imagenet_ddp.report.table import shortened

# Where the processes met and what was gone on from: they follow from how a run was started.
NOT_OPTIONS = {"resume", "allow_targets", "sweep.job", "sweep.resume", "cluster.requeue"} | {
    f"cluster.{key}" for key in ("name", "address", "job_id", "node_rank", "rank", "local_rank", "world_size")
}
LABEL = 60  # letters that say all
_FIRST = ("model", "optim", "schedule", "data", "loss", "trainer", "strategy")
_LAST = ("name", "data.root", "seed")


@dataclass(frozen=True)
class Differences:
    keys: list[str] = field(default_factory=list)  # most telling first, seed last
    follow: list[str] = field(default_factory=list)  # differ as well, in step with data.name, nccl.name, ...

    def title(self, key: str) -> str:
        """The last part of the key, where that is enough."""
        last = key.rpartition(".")[2]
        if last in ("name", "root", "args", "_target_"):
            return key
        return last if sum(other.rpartition(".")[2] == last for other in {*self.keys, key}) == 1 else key


def differences(runs: Sequence[Run]) -> Differences:
    with_options = [run for run in runs if run.options is not None]
    keys: list[str] = []
    for key in dict.fromkeys(key for run in with_options for key in run.options or {}):
        values = {canonical(value(run, key)) for run in with_options} - {canonical(UNKNOWN)}
        if len(values) > 1 and key not in NOT_OPTIONS and not _follows_folder(with_options, key):
            keys.append(key)
    if "name" in keys and all(_is_derived_name(run.options or {}) for run in with_options):
        keys.remove("name")
    typed = {word.partition("=")[0].lstrip("+~") for run in runs for word in _words(run)}
    follow = [key for key in keys if key not in typed and _follows_group(with_options, key, keys)]
    return Differences(sorted([key for key in keys if key not in follow], key=_importance), follow)


def value(run: Run, key: str) -> Any:
    """A key that is not there is unknown where an older version did not have it, and null in a group that anyone may
    extend (callbacks, trainer, args)."""
    if run.options is None:
        return UNKNOWN
    return run.options.get(key, UNKNOWN if key in _fixed_keys() else None)


@cache
def _fixed_keys() -> frozenset[str]:
    return frozenset(key for key in declared("train") if not key.startswith("trainer."))


def canonical(option: Any) -> str:
    """Equal for equal options: 1 and 1.0, but not 1 and true."""
    if option is UNKNOWN:
        return "?"
    if isinstance(option, list):
        return "[" + ",".join(map(canonical, option)) + "]"
    if isinstance(option, float) and option.is_integer():
        option = int(option)
    return json.dumps(option, default=str)


def shown_option(option: Any) -> str:
    if option is UNKNOWN:
        return "?"
    return f"{option:.6g}" if isinstance(option, float) else printable(shown(option))


def printable(text: str) -> str:
    """One line of plain text: control characters and names that are not UTF-8 as escapes."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def short_names(folders: Sequence[Path]) -> list[str]:
    """What tells the folders apart: their paths below the last folder that all share."""
    if len(folders) == 1:
        return [printable(folders[0].name or str(folders[0]))]
    shared = os.path.commonpath([str(folder.parent) for folder in folders])
    return [printable(os.path.relpath(folder, shared)) for folder in folders]


def labels(runs: Sequence[Run], found: Differences) -> list[str]:
    """lr=0.1 seed=1; behind the folder's name, where many options differ or none tells the runs apart."""
    names = short_names([run.folder for run in runs])
    words = [
        " ".join(f"{printable(found.title(key))}={shown_option(value(run, key))}" for key in found.keys) for run in runs
    ]
    clear = len(set(words)) == len(words) and max(map(len, words), default=0) <= LABEL
    return [
        word if word and clear else f"{shortened(name, 28)}: {word}" if word else name
        for word, name in zip(words, names, strict=True)
    ]


def _importance(key: str) -> tuple[int, int]:
    if key in _LAST:
        return len(_FIRST) + 1 + _LAST.index(key), 0
    group = key.partition(".")[0]
    return (_FIRST.index(group) if group in _FIRST else len(_FIRST)), 0


def _is_derived_name(options: Mapping[str, Any]) -> bool:
    return options.get("name") == f"{options.get('data.name')}_{options.get('model.name')}"


def _follows_folder(runs: Sequence[Run], key: str) -> bool:
    """A path into the run's own folder, such as that of a logger."""
    values = [(run.folder.name, (run.options or {}).get(key)) for run in runs]
    return all(isinstance(path, str) and "/" in path and name in PurePath(path).parts for name, path in values)


def _follows_group(runs: Sequence[Run], key: str, differing: Sequence[str]) -> bool:
    """Runs with the same choice of the group have the same value. data=... brings its recipe, whatever the group."""
    groups = ["data.name", f"{key.partition('.')[0]}.name"]
    for group in groups:
        if group in differing and key not in (group, "seed", "name"):
            pairs = {(canonical(value(run, group)), canonical(value(run, key))) for run in runs}
            if len(pairs) == len({choice for choice, _ in pairs}):
                return True
    return False


def _words(run: Run) -> list[str]:
    """The options typed for a finished run."""
    return str(run.summary.get("command") or "").split()
