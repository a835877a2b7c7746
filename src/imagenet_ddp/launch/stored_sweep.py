"""Write the file sweep.yaml of a sweep, and read the options of sweep.resume=DIR from it."""

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from imagenet_ddp.cli import overrides, parse
from imagenet_ddp.cli.flags import only_prints
from imagenet_ddp.config.paths import relative_options
from imagenet_ddp.config.validators import TEXT, TEXTS, list_of
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, without
from imagenet_ddp.runs import folder
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import atomic_write, expand_home, read_mapping, short_path
from imagenet_ddp.system.text import count_noun, without_secrets

FILE = "sweep.yaml"
MULTIRUN = ("-m", "--multirun")
NOT_STORED = ("hydra.sweep.dir", "sweep.job", "sweep.resume")


def expand_resume(argv: list[str]) -> list[str]:
    """Put the stored options of sweep.resume=DIR before the typed options. Without sweep.resume, return argv unchanged.
    Raises ConfigError if DIR is not the folder of a sweep."""
    words = [word for word in argv if overrides.key_of(word) == "sweep.resume" and not word.endswith("=null")]
    if not words or only_prints(argv):
        return argv
    sweep_dir = expand_home(words[-1].partition("=")[2].strip("'\""))
    if any(overrides.key_of(word) == "hydra.sweep.dir" for word in argv):
        what, keys = f"sweep.resume={sweep_dir} is the sweep's folder", ("hydra.sweep.dir", "sweep.resume")
        raise ConfigError(Mistake(what, keys, (without("hydra.sweep.dir"),)))
    stored = _stored(sweep_dir)
    options, flags = (stored.get(key, []) for key in ("options", "flags"))
    typed = [word for word in argv if word not in words and word not in MULTIRUN]
    keys = {overrides.key_of(word) for word in typed} | {"allow_targets"}
    options = [option for option in options if overrides.key_of(option) not in keys]
    if untrusted := [*_untrusted(options, typed), *(word for word in flags if word not in typed)]:
        raise ConfigError(
            f"{shlex.join(untrusted)} must be typed, because the author of {sweep_dir / FILE} must not choose which "
            f"code, addresses and files are used here. Hint: if you trust it, add `{shlex.join(untrusted)}`."
        )
    if (folder_then := stored.get("folder")) not in (None, str(Path.cwd())) and (relative := relative_options(options)):
        raise ConfigError(
            f"sweep.resume={sweep_dir} must be typed in {folder_then}, in which the sweep was started, because of "
            f"{relative[0]}. Hint: run `cd {shlex.quote(str(folder_then))}` first, or type that option again."
        )
    argv = overrides.in_folder([*options, *typed, "-m"], "sweep.resume", sweep_dir)
    return overrides.in_folder(argv, "hydra.sweep.dir", sweep_dir)


# Options of a stored sweep that could name code, an address, a variable or a file.
_LEADS_ELSEWHERE = re.compile(
    r"_target_|\$\{|://|^[+~]*(hydra(?!/launcher=\w+$)|logger|nccl)\b|^-|(^[+~]*callbacks|\bcache_dir)\b.*\W(/|~|\.\.)"
)


def _untrusted(options: Sequence[str], typed: Sequence[str]) -> list[str]:
    """Return what must be typed before these options of a stored sweep are used: allow_targets for the classes that
    they name, and each of the others that could lead elsewhere."""
    lists = [word.partition("=")[2] for word in typed if overrides.key_of(word) == "allow_targets"]
    allowed = [name for text in lists for name in re.findall(r"[\w.]+", text)]
    classes, others = list[str](), list[str]()
    for option in filter(_LEADS_ELSEWHERE.search, options):
        target = re.fullmatch(r"[+~]*[\w.]+\._target_=([\w.]+)", option)
        if not target or overrides.key_of(option).startswith("hydra"):
            others.append(option)
        elif target[1] not in allowed:
            classes.append(target[1])
    return [*([f"allow_targets=[{','.join([*allowed, *classes])}]"] if classes else []), *others]


# What the parts of a stored sweep may be, as far as they are there.
_PARTS = {"options": TEXTS, "flags": TEXTS, "folder": TEXT, "jobs": list_of(TEXTS, "lists of text", least=0)}


def _stored(sweep_dir: Path) -> dict[str, Any]:
    """Return the content of sweep.yaml. Raises ConfigError if the file cannot be read, or is not one of store()."""
    problems: list[str] = []
    found = read_mapping(sweep_dir / FILE, problems)
    if not problems and not all(_PARTS[key].accepts(found[key]) for key in _PARTS.keys() & found.keys()):
        problems.append(f"{FILE} has other content")
    if problems:
        raise ConfigError(
            f"sweep.resume={sweep_dir} must be the folder of a sweep, but {problems[0]}. "
            "Hint: set sweep.resume to the folder named in the last line of the sweep's output."
        )
    return found


def store(request: parse.Request, sweep_dir: Path) -> None:
    """Write sweep.yaml, which lists the jobs for sweep.resume and reports, unless it exists. Raises ConfigError if it
    lists other jobs, because their folders have the same numbers."""
    path = sweep_dir / FILE
    all_words = [job.words for job in request.jobs]
    common = set(all_words[0]).intersection(*all_words)
    jobs = without_secrets([[word for word in words if word not in common] for words in all_words])
    if path.exists():
        folder.refuse_links(sweep_dir, sweep_dir.glob("*"))
        stored = _stored(sweep_dir).get("jobs", [])
        if stored != jobs:
            raise ConfigError(
                f"{path} must list the {count_noun(len(jobs), 'job')} of this sweep, got {len(stored)} other jobs. "
                "Hint: use another folder for another sweep. With sweep.resume, change only options that are not swept."
            )
        return
    content = {
        "command": overrides.shell_line(request.verb, sys.argv[1:]),
        "folder": str(Path.cwd()),  # to which relative paths refer
        "options": without_secrets([word for word in request.typed if overrides.key_of(word) not in NOT_STORED]),
        "flags": [word for word in request.flags if word not in MULTIRUN],
        "jobs": jobs,
    }
    sweep_dir.mkdir(parents=True, exist_ok=True)
    atomic_write(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def say_resume(sweep_dir: Path) -> None:
    """Print the command that runs the unfinished jobs."""
    again = ["-m", f"sweep.resume={short_path(sweep_dir)}", *_untrusted(_stored(sweep_dir).get("options", []), [])]
    print_message(f"Continue the sweep with: {overrides.shell_line('train', again)}", whole=True)
