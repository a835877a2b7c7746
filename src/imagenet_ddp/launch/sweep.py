"""Start the jobs of a sweep (-m) in their folders, and report which jobs failed.

Each job is an ordinary run in <sweep folder>/<number>. The jobs run on this machine one after the other, as SLURM jobs
through a Hydra launcher, or one per command (sweep.job), as tasks of a job array or steps of one allocation. A job that
is started again is skipped if it has finished, and resumed if there is a checkpoint.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from imagenet_ddp.cli import command, overrides, parse
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.stored_sweep import FILE, MULTIRUN, say_resume, store
from imagenet_ddp.mistakes import Fix, Mistake, must_be, setting, without
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import Signals, exit_on_signal
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.files import short_path
from imagenet_ddp.system.text import count_noun, shorten_list, without_secrets

IGNORED = ("hydra.run.dir", "hydra.sweep.subdir")  # the folder of a job is its number


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
        fixes = [setting(f"sweep.job={count - 1}")] if chosen != "auto" else []  # the tasks of an array share a line
        allowed, hint = f"one of the {count_noun(count, 'job')} of this sweep", f"use sbatch --array=0-{count - 1}"
        raise ConfigError(must_be(source, allowed, text, *fixes, hint=hint))
    if environ.get("SLURM_PROCID", "0") == "0":  # rank 0 only
        print_message(f"Job {text} of {count} ({source}): {request.names[int(text)] or 'no options'}", sys.stdout)
    return int(text)


def single_job(request: parse.Request, number: int, environ: Mapping[str, str]) -> parse.Request:
    """Return the job with this number as a separate request, with a folder in the sweep's folder. Raises ConfigError if
    the sweep's folder is not known."""
    wanted, key = Path(request.hydra.sweep.dir), slurm.sweep_key(environ)
    if not request.is_typed("hydra.sweep.dir"):
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
            say_resume(sweep_dir)
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
                    say_resume(sweep_dir)
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
        say_resume(sweep_dir)
        sys.exit(1)
    print_message(f"Sweep folder: {short_path(sweep_dir)}", sys.stdout)
    line = overrides.shell_line("report", [str(short_path(sweep_dir))])
    print_message(f"Compare the runs with: {line}", sys.stdout, whole=True)


def _sweep_dir(request: parse.Request) -> Path:
    """Return the folder of the sweep, which is made unless the sweep is resumed. Raises ConfigError if it holds another
    sweep."""
    wanted, is_restarted = Path(request.hydra.sweep.dir), restarted(os.environ)
    if request.config.sweep.resume:
        return wanted.absolute()
    sweep_dir = folder.new_folder(
        wanted,
        is_typed=request.is_typed("hydra.sweep.dir"),
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
