"""Start the jobs of a sweep (-m) in their folders, and report which jobs failed.

Each job is an ordinary run in <sweep folder>/<number>. The jobs run on this machine one after the other, as SLURM jobs
through a Hydra launcher, or one per command (sweep.job), as tasks of a job array or steps of one allocation. A job that
is started again is skipped if it has finished, and resumed if there is a checkpoint.
"""

import math
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imagenet_ddp.cli import command, overrides, parse
from imagenet_ddp.cli.words import only_prints
from imagenet_ddp.config.paths import relative_options
from imagenet_ddp.config.validators import TEXT, TEXTS, list_of
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, must_be, setting, without
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import Signals, exit_on_signal
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import atomic_write, expand_home, read_mapping, short_path
from imagenet_ddp.system.text import count_noun, shorten_list, without_secrets

FILE = "sweep.yaml"
MULTIRUN = ("-m", "--multirun")
NOT_STORED = ("hydra.sweep.dir", "sweep.job", "sweep.resume")
IGNORED = ("hydra.run.dir", "hydra.sweep.subdir")  # the folder of a job is its number


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


def selected_job(request: parse.Request, environ: Mapping[str, str]) -> int | None:
    """Return the number of the job that this process runs; None means all jobs. With sweep.job=list, print the jobs and
    exit. Raises ConfigError if sweep.job is not valid for this sweep, or if an option is ignored in a sweep."""
    typed = {overrides.key_of(word) for word in request.typed}
    for key in IGNORED:
        if key in typed:
            what = f"{key} must not be set with -m, which numbers the jobs' folders"
            ways = without(key), Fix(("hydra.sweep.dir=FOLDER",), without=(key,))
            raise ConfigError(Mistake(what, (key,), ways))
    chosen, count = request.config.sweep.job, len(request.configs)
    if any(config.sweep.job != chosen for config in request.configs):
        what = "sweep.job must have one value, got several"
        raise ConfigError(Mistake(what, ("sweep.job",), hint="start one command per job"))
    if chosen == "list":
        for number, names in enumerate(request.names):
            print_message(f"{number} {names or 'no options'}", sys.stdout, whole=True)
        sys.exit(0)
    task = slurm.array_task(environ)
    if chosen == "all" or (chosen == "auto" and task is None):
        return None
    source, text = ("SLURM_ARRAY_TASK_ID", str(task)) if chosen == "auto" else ("sweep.job", str(chosen))
    if not text.isdecimal() or int(text) >= count:
        allowed, hint = f"one of the {count_noun(count, 'job')} of this sweep", f"#SBATCH --array=0-{count - 1}"
        raise ConfigError(must_be(source, allowed, text, setting(f"sweep.job={count - 1}"), hint=hint))
    if environ.get("SLURM_PROCID", "0") == "0":  # rank 0 only
        print_message(f"Job {text} of {count} ({source}): {request.names[int(text)] or 'no options'}", sys.stdout)
    return int(text)


def single_job(request: parse.Request, number: int, environ: Mapping[str, str]) -> parse.Request:
    """Return the job with this number as a separate request, with a folder in the sweep's folder. Raises ConfigError if
    the sweep's folder is not known."""
    wanted, key = Path(request.hydra.sweep.dir), slurm.sweep_key(environ)
    if overrides.typed_value(request.typed, "hydra.sweep.dir") is None:
        if key is None:
            what = f"sweep.job={number} requires the folder of the sweep"
            way = setting("hydra.sweep.dir=FOLDER", aim="to the same folder for all jobs")
            raise ConfigError(Mistake(what, ("sweep.job", "hydra.sweep.dir"), (way,)))
        wanted = wanted.with_name(key)
    sweep_dir = wanted.absolute()
    store(request, sweep_dir)
    if request.config.sweep.job == "auto":
        _say_left_out(request.names, sweep_dir, environ)
    job = request.jobs[number]
    job.hydra.run.dir = str(sweep_dir / str(number))
    typed = _words_of_job(request, number, sweep_dir)
    return replace(
        request,
        argv=[*typed, *(word for word in request.flags if word not in MULTIRUN)],
        typed=typed,
        jobs=[job],
        multirun=False,
        again=bool(job.config.sweep.resume),
    )


def _words_of_job(request: parse.Request, number: int, sweep_dir: Path) -> list[str]:
    """Return the options of one job, with its own folder."""
    of_sweep = ("hydra.sweep.", "hydra.mode", "sweep.job")
    words = [word for word in request.jobs[number].words if not overrides.key_of(word).startswith(of_sweep)]
    return overrides.in_folder(words, "hydra.run.dir", sweep_dir / str(number))


def _say_left_out(names: Sequence[str], sweep_dir: Path, environ: Mapping[str, str]) -> None:
    """Say which jobs of the sweep no task of this job array trains, and no earlier one has. Each task says it, because
    each has its own log; of its ranks, the first."""
    tasks = slurm.array_tasks(environ)
    if tasks is None or environ.get("SLURM_PROCID", "0") != "0":
        return
    left_out = [
        f"{number} ({name or 'no options'})"
        for number, name in enumerate(names)
        if number not in tasks and folder.finished_epochs(sweep_dir / str(number)) is None
    ]
    if left_out:
        print_message(
            f"The job array has no task for {count_noun(len(left_out), 'job')} of this sweep, which it does not train: "
            f"{shorten_list(left_out)}. Hint: for all {count_noun(len(names), 'job')}, use "
            f"#SBATCH --array=0-{len(names) - 1}."
        )


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


def run(request: parse.Request, run_job: Callable[..., float | None]) -> float | None:
    """Run all jobs through Hydra's launcher, and exit with code 1 if a job failed. run_job: runs one job
    (in_sweep=True), and returns its best score."""
    if any(config.resume for config in request.configs):
        way = Fix(("sweep.resume=FOLDER",), without=("resume",), aim="to resume a sweep")
        raise ConfigError(Mistake("resume= resumes one run, but -m starts several", ("resume",), (way,)))
    own_launcher = str(request.hydra.launcher.get("_target_")).endswith(".BasicLauncher")
    sweep_dir = _sweep_dir(request)
    store(request, sweep_dir)
    if not own_launcher:
        print_message(f"Sweep folder: {short_path(sweep_dir)} (logs of the launcher in .submitit/)", sys.stdout)
        exit_on_signal(
            "The jobs continue without this command. Hint: list them with squeue --me, and end them with scancel."
        )
    codes: dict[int, int] = {}
    # a launcher pickles the task, with these lists, once for each job
    names, again = request.names, bool(request.config.sweep.resume)
    flags = [word for word in request.flags if word not in MULTIRUN]
    words = [[*_words_of_job(request, number, sweep_dir), *flags] for number in range(len(names))]

    def task(_: DictConfig) -> float | None:
        # a launcher may run this on another machine, in a copy of this process
        signals = Signals().install()
        number = HydraConfig.get().job.num
        if signals.received:
            _say_resume(sweep_dir)
            sys.exit(128 + signals.received)
        print_message(f"Job {number}: {names[number] or 'no options'}", sys.stdout)
        try:
            job = parse.command_line("train", words[number], os.environ)
            return run_job(replace(job, again=again), in_sweep=True)
        except ConfigError as error:
            command.show(error, "train")
            codes[number] = 2
        except WorkersFailedError as error:
            if error.exit_code > 128 and (own_launcher or error.is_requeued):
                if not error.is_requeued:
                    _say_resume(sweep_dir)
                error.exit()  # stopped by a signal: start no further job
            codes[number] = error.exit_code
        return math.nan

    (of_hydra := sweep_dir / "multirun.yaml").unlink(missing_ok=True)  # Hydra would write through a link
    if without_secrets(request.argv) != request.argv:  # Hydra would write the secrets
        of_hydra.symlink_to(os.devnull)
    # Hydra numbers the jobs; task knows their options
    numbers = ",".join(map(str, range(len(names))))
    more = overrides.in_folder([f"sweep.job={numbers}", "hydra.sweeper.params=null"], "hydra.sweep.dir", sweep_dir)
    result = command.with_hydra(request, task, more)
    _say_end(sweep_dir, names, codes)
    return result


def _say_end(sweep_dir: Path, names: Sequence[str], codes: Mapping[int, int]) -> None:
    """Say how to compare the runs; if a job failed, say which and exit with code 1. codes: number of a job -> its exit
    code, if it failed on this machine."""
    unfinished = {number for number in range(len(names)) if folder.finished_epochs(sweep_dir / str(number)) is None}
    if failed := sorted({*unfinished, *codes}):
        print_message(f"{len(failed)} of {count_noun(len(names), 'job')} failed:")
        for number in failed:
            code = f": exit code {codes[number]}" if number in codes else ""
            print_message(f"  job {number} ({names[number]}) in {short_path(sweep_dir) / str(number)}{code}")
        _say_resume(sweep_dir)
        sys.exit(1)
    print_message(f"Sweep folder: {short_path(sweep_dir)}", sys.stdout)
    line = overrides.shell_line("report", [str(short_path(sweep_dir))])
    print_message(f"Compare the runs with: {line}", sys.stdout, whole=True)


def _say_resume(sweep_dir: Path) -> None:
    """Print the command that runs the unfinished jobs."""
    again = ["-m", f"sweep.resume={short_path(sweep_dir)}", *_untrusted(_stored(sweep_dir).get("options", []), [])]
    print_message(f"Continue the sweep with: {overrides.shell_line('train', again)}", whole=True)


def _sweep_dir(request: parse.Request) -> Path:
    """Return the folder of the sweep, which is made unless the sweep is resumed. Raises ConfigError if it holds another
    sweep."""
    wanted, is_restarted = Path(request.hydra.sweep.dir), restarted(os.environ)
    if request.config.sweep.resume:
        return wanted.absolute()
    sweep_dir = folder.new_folder(
        wanted,
        is_typed=bool(overrides.typed_value(request.typed, "hydra.sweep.dir")),
        options=request.typed,
        run_key=slurm.sweep_key(os.environ),
        again=is_restarted,
        key="hydra.sweep.dir",
    ).absolute()
    if not is_restarted and (sweep_dir / FILE).exists():
        what = f"hydra.sweep.dir={sweep_dir} must be a new folder, but holds a sweep"
        resume = overrides.quoted(f"sweep.resume={sweep_dir}")
        ways = Fix((resume,), without=("hydra.sweep.dir",), aim="to continue it"), setting("hydra.sweep.dir=FOLDER")
        raise ConfigError(Mistake(what, ("hydra.sweep.dir",), ways))
    return sweep_dir
