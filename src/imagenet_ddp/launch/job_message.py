"""Write a job as a message for the other machines of a run, and read it there, where it is not trusted."""

import copy
import os
import re
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict

from imagenet_ddp.cli import check_config, parse
from imagenet_ddp.cli.overrides import lay_over
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.config.schema.keys import declared, validate_group
from imagenet_ddp.config.section import to_plain, typed_config
from imagenet_ddp.config.stored import not_plain
from imagenet_ddp.config.validators import FLAG, NULL, integer, is_mapping, kind, list_of, matching
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.text import printable

_TEXT, _NUMBER = matching(r"(?s).*", "text"), integer(1)
_FIELDS = {  # of a message, and what they may be
    "run_dir": _TEXT, "relative": _TEXT, "checkpoint": NULL | _TEXT, "command": _TEXT, "experiment": NULL | _TEXT,
    "messages": list_of(_TEXT, "a list of text", least=0), "finished": FLAG, "keep_global_batch_size": FLAG,
    "global_batch_size_before": NULL | _NUMBER, "config": kind("a mapping", is_mapping),
    "threads_before": NULL | list_of(_NUMBER, "two integers", 2),
}  # fmt: skip


def to_message(job: Job) -> dict[str, Any]:
    """Return what the other machines need of a job, as plain JSON. `relative` is the run folder from the current one,
    which may have another path there."""
    checkpoint = None if job.checkpoint is None else str(job.checkpoint)
    fields = {name: value for name, value in vars(job).items() if name in _FIELDS}
    paths = {"run_dir": str(job.run_dir), "relative": os.path.relpath(job.run_dir), "checkpoint": checkpoint}
    return {**fields, **paths, "config": to_plain(job.config)}


def from_message(content: Any, request: parse.Request) -> Job:
    """Return the job that another machine has sent, after the checks of a stored config. content: the fields of the
    job, and its run folder as `relative`; untrusted. request: the command line of this machine, whose options are
    trusted. Raises ConfigError."""
    origin, found = "the job that node 0 has sent", list[str | Mistake]()
    hint = "leave this command running with the other nodes of its run only"
    if not is_mapping(content) or content.keys() - _FIELDS.keys():
        raise ConfigError(f"{origin} must have the fields of a job, but does not. Hint: {hint}.")
    for name, allowed in _FIELDS.items():
        if not allowed.accepts(content.get(name)):
            found.append(f"{name} of {origin} must be {allowed.words}, but is not. Hint: {hint}.")
    if not found and (reason := not_plain(content["config"])):
        found.append(f"config of {origin} must be plain values, but {reason}. Hint: {hint}.")
    if found:
        raise ConfigError(found)
    merged = copy.deepcopy(request.config)
    with open_dict(merged):
        lay_over(merged, content["config"])
        _keep_own(merged, request, is_new=content["checkpoint"] is None)
    found = check_config.refused_of_stored(merged, request.config, request.verb, origin)
    config = typed_config(merged, COMMANDS[request.verb])
    for group in ("", *(path for path, key in declared(request.verb).items() if key.is_group)):
        found += validate_group(group, config[group] if group else config, request.verb)
    if found:
        raise ConfigError([printable(str(each)) for each in found])
    fields: dict[str, Any] = {key: content[key] for key in _FIELDS.keys() - {"relative"}}
    fields |= {"messages": tuple(map(printable, content["messages"])), "run_dir": Path(content["run_dir"])}
    fields["checkpoint"] = None if content["checkpoint"] is None else Path(content["checkpoint"])
    fields["threads_before"] = tuple(content["threads_before"]) if content["threads_before"] else None
    del fields["config"]
    return Job(config, **fields)


def _keep_own(config: DictConfig, request: parse.Request, *, is_new: bool) -> None:
    """Set what each machine sets for itself (PerMachine) to what this one has: all of it in a new run; in a resumed
    one, whose checkpoint has the values of the machine that wrote it, what is typed here. config: that of node 0,
    changed in place."""
    for path, key in declared(request.verb).items():
        group, _, name = path.rpartition(".")
        theirs, own = (OmegaConf.select(each, group) if group else each for each in (config, request.config))
        if key.per_machine is None or name not in own:
            continue
        if not key.per_machine.entries:
            if is_new or request.is_typed(path):
                theirs[name] = own[name]
            continue
        is_marked = re.compile(key.per_machine.entries).fullmatch
        kept = {each: value for each, value in theirs[name].items() if not (is_new and is_marked(each))}
        theirs[name] = kept | {each: value for each, value in own[name].items() if is_marked(each)}
