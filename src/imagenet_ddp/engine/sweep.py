"""Several runs by one command (-m): which of them this process starts, in which folder, and what became of them.

Each job is a run like any other, in <sweep folder>/<number>. They run here one after the other; or by a launcher of
Hydra's, as SLURM jobs; or one per command (sweep.job), as tasks of a job array or as steps of one allocation. Whoever
starts a job anew finds what is there: finished, or a checkpoint to go on from, or nothing.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli import command, mistakes, parse
from imagenet_ddp.distributed.launchers import slurm_env
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.distributed.spawn import WorkersFailedError
from imagenet_ddp.engine import job as engine_job
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs import folder
from imagenet_ddp.runs.signals import Signals, leave_on_signal
from imagenet_ddp.system.atomic_write import write_whole

FILE = "sweep.yaml"
FAILED = ".failed"  # in a job's folder, which may be all that comes back from another machine
MULTIRUN = ("-m", "--multirun")
PRINTING = {"--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "--version", "--shell-completion", "-sc"}
NOT_STORED = ("hydra.sweep.dir", "sweep.job", "sweep.resume")


def resumed(argv: list[str]) -> list[str]:
    """argv, where sweep.resume=DIR stands in it with the options that sweep began with before those that are typed."""
    words = [word for word in argv if _key(word) == "sweep.resume" and not word.endswith("=null")]
    if not words or PRINTING & set(argv):
        return argv
    sweep_dir = Path(words[-1].partition("=")[2].strip("'\"")).expanduser()
    if any(_key(word) == "hydra.sweep.dir" for word in argv):
        raise ConfigError(
            f"sweep.resume={sweep_dir} says in which folder the sweep goes on, and so does hydra.sweep.dir. "
            "Hint: leave hydra.sweep.dir out."
        )
    try:
        stored = yaml.safe_load((sweep_dir / FILE).read_text(encoding="utf-8"))
        options, flags = _words(stored["options"]), _words(stored["flags"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError) as error:
        raise ConfigError(
            f"sweep.resume={sweep_dir} must be the folder of a sweep, but {sweep_dir / FILE} cannot be read. "
            "Hint: the folder that the sweep has named in its last line."
        ) from error
    typed = [word for word in argv if word not in words and word not in MULTIRUN]
    keys = {_key(word) for word in typed}
    options = [option for option in options if _key(option) not in keys]
    argv = engine_job.in_folder([*options, *typed, *flags, "-m"], "sweep.resume", sweep_dir)
    return engine_job.in_folder(argv, "hydra.sweep.dir", sweep_dir)


def _words(found: Any) -> list[str]:
    if not isinstance(found, list) or not all(isinstance(word, str) for word in found):
        raise TypeError
    return found


def _key(option: str) -> str:
    return option.partition("=")[0].lstrip("+~")


def _flags(request: parse.Request) -> list[str]:
    """Hydra's own options but for -m, such as --config-dir and its folder."""
    words = list(request.typed)
    return [word for word in request.argv if word not in MULTIRUN and not (word in words and not words.remove(word))]


def own_job(request: parse.Request, environ: Mapping[str, str]) -> int | None:
    """The number of the one job this process starts; None: all. Raises ConfigError, and leaves where the jobs were
    only to be listed."""
    chosen, count = request.configs[0].sweep.job, len(request.configs)
    if any(config.sweep.job != chosen for config in request.configs):
        raise ConfigError("sweep.job has several values, but chooses one job. Hint: one command for each.")
    if chosen == "list":
        for number, names in enumerate(request.names):
            print(number, names or "no options")
        sys.exit(0)
    task = slurm_env.array_task(environ)
    if chosen == "all" or (chosen == "auto" and task is None):
        return None
    where, text, hint = "sweep.job", str(chosen), f"sweep.job={count - 1}"
    if chosen == "auto":
        where, text = "SLURM_ARRAY_TASK_ID", str(task)
        hint = f"#SBATCH --array=0{f'-{count - 1}' if count > 1 else ''}"
    if not text.isdecimal() or int(text) >= count:
        raise ConfigError(
            f"{where} must be one of the {count} jobs of this sweep, 0 to {count - 1}, got {text}. Hint: {hint}."
        )
    if environ.get("SLURM_PROCID", "0") == "0":  # of many ranks one says it
        print(f"Job {text} of {count} ({where}): {request.names[int(text)] or 'no options'}", flush=True)
    return int(text)


def only(request: parse.Request, number: int, environ: Mapping[str, str]) -> parse.Request:
    """That job as a request of its own, in its folder of the sweep that the others are in too."""
    assert request.hydra is not None
    wanted, key = Path(request.hydra.sweep.dir), slurm_env.sweep_key(environ)
    if engine_job.typed_value(request, "hydra.sweep.dir") is None:
        if key is None:
            raise ConfigError(
                f"sweep.job={number} runs one job of a sweep, but in which folder are the others? "
                "Hint: hydra.sweep.dir=FOLDER, the same for all."
            )
        wanted = wanted.with_name(key)
    sweep_dir = wanted.absolute()
    write(request, sweep_dir)
    options = [word for word in request.jobs[number] if not word.startswith("hydra.sweep.")]
    job = _job(request, number, options, request.configs[number], sweep_dir / str(number))
    return replace(job, argv=[*job.typed, *_flags(request)])


def _job(request: parse.Request, number: int, options: list[str], config: DictConfig, run_dir: Path) -> parse.Request:
    return replace(
        request,
        typed=engine_job.in_folder(options, "hydra.run.dir", run_dir),
        configs=[config],
        hydra=OmegaConf.create({"run": {"dir": str(run_dir)}}),
        multirun=False,
        again=bool(config.sweep.resume),
    )


def write(request: parse.Request, sweep_dir: Path) -> None:
    """What the sweep's jobs are, for sweep.resume and for reports. The first one's word stays, and another sweep may
    not use the folder: its jobs have the same numbers."""
    path = sweep_dir / FILE
    common = set.intersection(*map(set, request.jobs))
    jobs = [[word for word in words if word not in common] for words in request.jobs]
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"] if path.exists() else jobs
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        found = None
    if found != jobs:
        what = f"{len(found)} others" if isinstance(found, list) else "cannot be read"
        raise ConfigError(
            f"{path} must list the {len(jobs)} jobs of this sweep, but {'has ' * isinstance(found, list)}"
            f"{what}. Hint: another folder for another sweep; beside sweep.resume, only options that are not swept."
        )
    if path.exists():
        return
    content = {
        "command": engine_job.command(request.verb, sys.argv[1:]),
        "options": [word for word in request.typed if _key(word) not in NOT_STORED],
        "flags": _flags(request),
        "jobs": jobs,
    }
    try:
        sweep_dir.mkdir(parents=True, exist_ok=True)
        write_whole(path, yaml.safe_dump(content, sort_keys=False, allow_unicode=True))
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Hint: hydra.sweep.dir=FOLDER.") from error


def run(request: parse.Request, start: Callable[[parse.Request], float | None]) -> float | None:
    """All jobs, by Hydra's launcher. start: runs one. Leaves by exit code 1 where a job has failed."""
    assert request.hydra is not None
    if any(config.resume for config in request.configs):
        raise ConfigError(
            "resume= goes on with one run, but -m starts several. Hint: sweep.resume=FOLDER goes on with a sweep."
        )
    own_launcher = str(request.hydra.launcher.get("_target_")).endswith(".BasicLauncher")
    if own_launcher:
        from imagenet_ddp.distributed import devices

        for config in request.configs:  # of this machine; before there is a folder
            devices.local_devices(config.trainer)
    sweep_dir = _folder(request).absolute()
    write(request, sweep_dir)
    if not own_launcher:
        print(f"Sweep folder: {sweep_dir} (of the jobs' launcher: .submitit/)", flush=True)
        leave_on_signal("The jobs go on without this command. Hint: squeue --me, scancel.")
    codes: dict[int, int] = {}
    # another sweeper than Hydra's own chooses its jobs as it goes
    names = request.names if str(request.hydra.sweeper.get("_target_")).endswith(".BasicSweeper") else []

    def task(config: DictConfig) -> float | None:
        # on another machine where a launcher brings it there, as a copy of its own
        signals = Signals().hold()
        hydra = HydraConfig.get()
        number = hydra.job.num
        if signals.received:
            sys.exit(128 + signals.received)
        what = names[number] if number < len(names) else hydra.job.override_dirname
        print(f"Job {number}: {what or 'no options'}", flush=True)
        # as Hydra composed it: other sweepers than its own choose their values only now
        job = _job(request, number, list(hydra.overrides.task), config, sweep_dir / str(number))
        mark = sweep_dir / str(number) / FAILED
        mark.unlink(missing_ok=True)
        try:
            return start(job)
        except ConfigError as error:
            mistakes.show(error)
            codes[number] = 2
        except WorkersFailedError as error:
            if error.exit_code > 128 and (own_launcher or error.starts_again):
                error.exit()  # stopped: no further job
            codes[number] = error.exit_code
        if mark.parent.is_dir():
            mark.touch()
        return math.nan

    result = command.with_hydra("train", engine_job.in_folder(request.argv, "hydra.sweep.dir", sweep_dir), task)
    names = names or [""] * _count(sweep_dir)
    # an earlier end of a job that goes on says nothing of this one
    bad = lambda number: number in codes or (sweep_dir / str(number) / FAILED).exists()  # noqa: E731
    done = lambda number: folder.finished_epochs(sweep_dir / str(number)) is not None  # noqa: E731
    failed = [number for number in range(len(names)) if bad(number) or not done(number)]
    if failed:
        print(f"{len(failed)} of {len(names)} jobs failed:", file=sys.stderr)
        for number in failed:
            code = f": exit code {codes[number]}" if number in codes else ""
            print(f"  job {number} ({names[number]}) in {sweep_dir / str(number)}{code}", file=sys.stderr)
        print(f"Go on with: {engine_job.command('train', ['-m', f'sweep.resume={sweep_dir}'])}", file=sys.stderr)
        sys.exit(1)
    print(f"Sweep folder: {sweep_dir}")
    return result


def _count(sweep_dir: Path) -> int:
    return sum(path.name.isdecimal() and path.is_dir() for path in sweep_dir.iterdir())


def _folder(request: parse.Request) -> Path:
    assert request.hydra is not None
    wanted = Path(request.hydra.sweep.dir)
    if request.configs[0].sweep.resume:
        return wanted
    if engine_job.typed_value(request, "hydra.sweep.dir"):
        return wanted if restarted(os.environ) else folder.make_given(wanted)
    if key := slurm_env.sweep_key(os.environ):
        return folder.make_new(wanted.with_name(key), again=restarted(os.environ), options=request.typed)
    return folder.make_new(wanted)
