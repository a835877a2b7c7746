"""Find the options in which runs differ: those a person chose, without what follows from them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.validators import shown
from imagenet_ddp.mistakes import key_of
from imagenet_ddp.report.run_folders import Run
from imagenet_ddp.system.text import printable

# Keys that only describe how a run was started, such as its rendezvous and what it resumed, or how it is logged.
NOT_OPTIONS = {"resume", "allow_targets", "sweep.job", "sweep.resume", "cluster.requeue"} | {
    f"cluster.{key}" for key in ("name", "address", "job_id", "node_rank", "rank", "local_rank", "world_size")
}
NOT_OPTIONS_BELOW = ("logger.", "callbacks.progress.")
DRAWS = ("seed", "data.val_fold")  # options that choose among equals
# What the options and the machines together made of a run, which two runs of the same options may differ in.
RESULTING = ("global_batch_size", "num_devices")
_FIRST = ("model", "optim", "schedule", "data", "loss", "trainer", "strategy")
_LAST = ("name", "data.root", "seed")


@dataclass(frozen=True)
class Differences:
    keys: list[str] = field(default_factory=list)  # most important first, seed last
    derived: list[str] = field(default_factory=list)  # keys whose values follow from data.name, nccl.name, ...

    def title(self, key: str) -> str:
        """Return the last part of the key if it is unambiguous, else the key."""
        last = key.rpartition(".")[2]
        is_unique = sum(other.rpartition(".")[2] == last for other in {*self.keys, key}) == 1
        return last if is_unique and last not in ("name", "root", "args", "_target_") else key

    def describe(self, run: Run, keys: Sequence[str]) -> str:
        """Return the options of a run as text, such as "lr=0.1 seed=1"."""
        return " ".join(f"{printable(self.title(key))}={format_option(option(run, key))}" for key in keys)


def find_differences(runs: Sequence[Run]) -> Differences:
    """Return the options of the training itself in which the runs differ."""
    keys = [
        key
        for key in dict.fromkeys(key for run in runs for key in run.options)
        if is_option(key) and len({canonical(option(run, key)) for run in runs}) > 1
    ]
    keys = [key for key in keys if not (key.endswith("._target_") and key.replace("_target_", "name") in keys)]
    typed = {key_of(word) for run in runs for word in str(run.summary.get("command") or "").split()}
    derived = [key for key in keys if key not in typed and _is_derived(runs, key, keys)]
    keys = [key for key in keys if key not in derived]
    for fact in RESULTING:
        found = dict[tuple[str, ...], set[str]]()
        for run in runs:
            if (value := option(run, fact)) is not None:
                setting = tuple(canonical(option(run, key)) for key in keys if key not in DRAWS)
                found.setdefault(setting, set()).add(canonical(value))
        if any(len(values) > 1 for values in found.values()):  # else it follows from the options
            keys.append(fact)
    return Differences(sorted(keys, key=_importance), derived)


def is_option(key: str) -> bool:
    """Return whether a key is an option of the training itself."""
    return not (key in NOT_OPTIONS or f"{key}.".startswith(NOT_OPTIONS_BELOW))


def option(run: Run, key: str) -> Any:
    """Return the value of an option of a run, or of what resulted from it (RESULTING; None before the end of the run).
    If the run lacks the key, because an older version did not have it, return the default; in groups that users may
    extend (callbacks, args), return None."""
    if key in RESULTING:
        return run.summary.get(key)
    if key.endswith(".name") and (own := run.options.get(key.removesuffix("name") + "_target_")):
        return own  # the name has no meaning beside it
    return run.options[key] if key in run.options else _defaults().get(key)


@cache
def _defaults() -> dict[str, Any]:
    return {path: key.default for path, key in declared("train").items() if not key.is_group}


def canonical(value: Any) -> str:
    """Return text that is equal for equal values, such as 1 and 1.0, but not for 1 and true."""
    if isinstance(value, list):
        return "[" + ",".join(map(canonical, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return json.dumps(value, default=str)


def format_option(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else printable(shown(value))


def _importance(key: str) -> int:
    if key in _LAST:
        return len(_FIRST) + 1 + _LAST.index(key)
    group = key.partition(".")[0]
    return _FIRST.index(group) if group in _FIRST else len(_FIRST)


def _is_derived(runs: Sequence[Run], key: str, keys: Sequence[str]) -> bool:
    """Return whether the choice in the key's group, or that of the data, determines the value of the key. The net, too,
    determines the default name."""
    for group in ("data.name", "model.name" if key == "name" else f"{key.partition('.')[0]}.name"):
        if group in keys and key not in (group, "seed"):
            pairs = {(canonical(option(run, group)), canonical(option(run, key))) for run in runs}
            if len(pairs) == len({choice for choice, _ in pairs}):
                return True
    return False
