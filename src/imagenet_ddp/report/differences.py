"""Find the options in which runs differ, and name each run by them."""

import json
import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from omegaconf import MISSING

from imagenet_ddp.cli.known_terms import removed
from imagenet_ddp.cli.overrides import key_of
from imagenet_ddp.config.keys import declared
from imagenet_ddp.config.validators import shown
from imagenet_ddp.report.run import UNKNOWN, Run
from imagenet_ddp.system.text import printable
from imagenet_ddp.system.text_table import shorten_middle

# Keys that only describe how a run was started, such as its rendezvous and what it resumed, or how it is logged.
NOT_OPTIONS = {"resume", "allow_targets", "sweep.job", "sweep.resume", "cluster.requeue"} | {
    f"cluster.{key}" for key in ("name", "address", "job_id", "node_rank", "rank", "local_rank", "world_size")
}
NOT_OPTIONS_BELOW = ("logger.", "callbacks.progress.")
MAX_LABEL = 60  # characters of the options
MAX_NAME = 48  # terminal columns of the name of the folder
_FIRST = ("model", "optim", "schedule", "data", "loss", "trainer", "strategy")
_LAST = ("name", "data.root", "seed")


@dataclass(frozen=True)
class Differences:
    keys: list[str] = field(default_factory=list)  # most important first, seed last
    derived: list[str] = field(default_factory=list)  # keys whose values follow from data.name, nccl.name, ...

    def title(self, key: str) -> str:
        """Return the last part of the key if it is unambiguous, else the key."""
        last = key.rpartition(".")[2]
        if last in ("name", "root", "args", "_target_"):
            return key
        return last if sum(other.rpartition(".")[2] == last for other in {*self.keys, key}) == 1 else key

    def describe(self, run: Run, keys: Sequence[str]) -> str:
        """Return the options of a run as text, such as "lr=0.1 seed=1"."""
        return " ".join(f"{printable(self.title(key))}={format_option(option(run, key))}" for key in keys)


def is_option(key: str) -> bool:
    """Return whether a key is an option of the training itself. A difference in other keys is not reported."""
    is_other = key in NOT_OPTIONS or f"{key}.".startswith(NOT_OPTIONS_BELOW)
    return not (is_other or removed(key))


def find_differences(runs: Sequence[Run]) -> Differences:
    runs = [run for run in runs if run.options is not None]
    keys = [
        key
        for key in dict.fromkeys(key for run in runs for key in run.options or {})
        if is_option(key)
        and len({canonical(option(run, key)) for run in runs} - {canonical(UNKNOWN)}) > 1
        and not all(_is_own_path(run, key) or (key == "name" and _has_default_name(run)) for run in runs)
    ]
    typed = {key_of(word) for run in runs for word in str(run.summary.get("command") or "").split()}
    derived = [key for key in keys if key not in typed and _is_derived(runs, key, keys)]
    return Differences(sorted([key for key in keys if key not in derived], key=_importance), derived)


def option(run: Run, key: str) -> Any:
    """Return the value of an option of a run. If the run lacks the key, because an older version did not have it,
    return the default; in groups that users may extend (callbacks, args), return None."""
    if run.options is None:
        return UNKNOWN
    return run.options[key] if key in run.options else _defaults().get(key)


@cache
def _defaults() -> dict[str, Any]:
    return {
        path: UNKNOWN if key.is_group or key.default == MISSING else key.default
        for path, key in declared("train").items()
    }


def canonical(value: Any) -> str:
    """Return text that is equal for equal values, such as 1 and 1.0, but not for 1 and true."""
    if value is UNKNOWN:
        return "?"
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, default=str)


def format_option(value: Any) -> str:
    if value is UNKNOWN:
        return "?"
    return f"{value:.6g}" if isinstance(value, float) else printable(shown(value))


def short_names(folders: Sequence[Path]) -> list[str]:
    """Return the paths relative to the deepest folder that they all share."""
    if len(folders) == 1:
        return [printable(folders[0].name or str(folders[0]))]
    common = os.path.commonpath([str(folder.parent) for folder in folders])
    return [printable(os.path.relpath(folder, common)) for folder in folders]


def labels(runs: Sequence[Run], differences: Differences) -> list[str]:
    """Return a label for each run, such as "lr=0.1 seed=1". If such labels are too long or not unique, the name of the
    folder precedes the options, of which only the first ones are shown."""
    options = [differences.describe(run, differences.keys) for run in runs]
    is_clear = len(set(options)) == len(options) and max(map(len, options), default=0) <= MAX_LABEL
    return [
        text if text and is_clear else f"{shorten_middle(name, MAX_NAME)}: {_first_words(text)}" if text else name
        for text, name in zip(options, short_names([run.folder for run in runs]), strict=True)
    ]


def _first_words(text: str) -> str:
    return textwrap.shorten(text, MAX_LABEL, placeholder=" …", break_on_hyphens=False)


def _importance(key: str) -> int:
    if key in _LAST:
        return len(_FIRST) + 1 + _LAST.index(key)
    group = key.partition(".")[0]
    return _FIRST.index(group) if group in _FIRST else len(_FIRST)


def _has_default_name(run: Run) -> bool:
    options = run.options or {}
    return options.get("name") == f"{options.get('data.name')}_{options.get('model.name')}"


def _is_own_path(run: Run, key: str) -> bool:
    """Return whether the value is a path inside the run folder, such as a logger's."""
    path = (run.options or {}).get(key)
    return isinstance(path, str) and "/" in path and run.folder.name in PurePath(path).parts


def _is_derived(runs: Sequence[Run], key: str, keys: Sequence[str]) -> bool:
    """Return whether the choice in the key's group, or the choice of the data, determines the value of the key."""
    for group in ("data.name", f"{key.partition('.')[0]}.name"):
        if group in keys and key not in (group, "seed", "name"):
            pairs = {(canonical(option(run, group)), canonical(option(run, key))) for run in runs}
            if len(pairs) == len({choice for choice, _ in pairs}):
                return True
    return False
