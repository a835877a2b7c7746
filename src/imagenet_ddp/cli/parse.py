"""Turn a command line into checked configs, or report every mistake at once. Does not import torch.

hydra.main stops at its first error, with exit code 1 and a folder left behind. Each word is therefore read once
(options.py), the config of each job is composed in layers (compose.py), and then checked (check_config.py). There are
two ways in: command_line for a command on this machine, job_elsewhere for a job that SLURM will run on others.
"""

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import check_config, check_files, check_launch, check_words, hydra_flags, known_terms
from imagenet_ddp.cli.compose import Job, compose, sweeper_params
from imagenet_ddp.cli.consequences import independent
from imagenet_ddp.cli.explain import SWEPT, first_sentence
from imagenet_ddp.cli.files import Files
from imagenet_ddp.cli.options import OptionReader, split_jobs
from imagenet_ddp.cli.overrides import typed_config
from imagenet_ddp.cli.request import Request
from imagenet_ddp.config.keys import declared, key_of, validate_group
from imagenet_ddp.config.schema import commands
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, setting, without
from imagenet_ddp.runs.signals import hold_signals
from imagenet_ddp.system.files import not_writable_reason

T = TypeVar("T", bound=commands.CommonConfig)


class RefusedError(ConfigError):
    """Mistakes in a command line, with what could be read of it. Other nodes of the run may wait for this command."""

    def __init__(self, mistakes: Sequence[Mistake], request: Request):
        super().__init__(mistakes)
        self.request = request


def command_line(verb: str, argv: Sequence[str], environ: Mapping[str, str]) -> Request:
    """Compose and check the options of a command that runs on this machine. argv: without the program's name. Raises
    ConfigError with every mistake."""
    request, found, jobs = _read(verb, argv)
    for config, job in zip(request.configs, () if request.passthrough else jobs, strict=False):
        mistakes, place = check(
            config, environ, verb, request.typed, is_whole=_is_whole(config, verb),
            multirun=_runs_all_jobs(request, config, environ),
        )  # fmt: skip
        job.mistakes += independent(mistakes, job.wrong, config, verb, request.typed)
        job.mistakes += _of_sweep(request, config) + _run_dir(request, job.config)
        request.places.append(place)
    return _accepted(request, found, jobs)


def job_elsewhere(argv: Sequence[str], environ: Mapping[str, str]) -> Request:
    """Compose and check the options of a training that SLURM will run on other machines, whose GPUs, cores, disks and
    interfaces are unknown here. Raises ConfigError with every mistake."""
    request, found, jobs = _read("train", argv)
    for config, job in zip(request.configs, jobs, strict=False):
        values, mistakes = check_config.read(config, "train")
        if values is not None:
            mistakes += check_config.elsewhere(
                values, environ, typed=request.typed, is_whole=_is_whole(config, "train")
            )
        job.mistakes += independent(mistakes, job.wrong, config, "train", request.typed) + _of_sweep(request, config)
    return _accepted(request, found, jobs)


def composed(verb: str, argv: Sequence[str]) -> Request:
    """Compose the options without checking their values. Raises ConfigError for those that do not compose."""
    return _accepted(*_read(verb, argv))


def read_single_process(
    verb: str, cls: type[T], argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[Request, T, list[Mistake]]:
    """Return (request, config, mistakes in single keys) of a command that runs in one process, ignoring any launcher
    around it. Raises ConfigError if a mistake makes further validation impossible."""
    request = composed(verb, argv)
    alone = {name: environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in environ}
    values, found = check_config.read(request.configs[0], verb)
    if values is not None:
        found += check_config.here(values, alone, verb, Place(), typed=request.typed, is_whole=False)
    if values is None or any(f"{verb}.name" in mistake.keys for mistake in found):  # a required choice is missing
        raise ConfigError(found)
    config = typed_config(request.configs[0], cls)
    return request, config, found + validate_group(verb, config[verb], verb)


def _read(verb: str, argv: Sequence[str]) -> tuple[Request, list[Mistake], list[Job]]:
    """Return (the request, not yet checked; mistakes in its words; its jobs with their own mistakes)."""
    with hold_signals():
        commands.register(verb)  # even for --help, which composes the config
    argv, found = known_terms.split_options(argv)
    args, argv = hydra_flags.read(argv)
    if not hydra_flags.ANSWERED.isdisjoint(argv):
        return Request(verb, argv, args.overrides, [], multirun=False, passthrough=True), [], []
    # in other projects an experiment is added; here it has a default, which Hydra refuses to add again
    argv, typed = (
        [word.replace("+experiment=", "experiment=", 1) for word in words] for words in (argv, args.overrides)
    )
    typed, odd = check_words.read(typed, declared(verb), sweeps=args.multirun)
    files = Files(verb, args.config_name or verb, args.config_dir)
    reader = OptionReader(verb, files)
    options, more = reader.read(typed, sweeps=args.multirun)
    found += odd + more
    multirun = args.multirun or any(option.word.upper() == "HYDRA.MODE=MULTIRUN" for option in options)
    jobs, names = [options], [""]
    if multirun:
        flags = [word for word in argv if word in ("-m", "--multirun") or key_of(word) == "hydra.mode"] or ["-m"]
        if verb not in SWEPT:
            what = f"{flags[0]} starts several jobs, but {verb} runs one"
            found.append(Mistake(what, fixes=(without(*flags),)))
        params, more = sweeper_params(verb, files, options)
        swept, mistakes = reader.read(params, sweeps=True)
        found += more + mistakes
        jobs, names = split_jobs([*swept, *options])
    done = [compose(verb, files, job) for job in jobs]
    for job in done:
        job.wrong |= {key for mistake in odd for key in mistake.keys if key not in map(key_of, typed)}
    if files.own_folder is not None:
        found += check_files.validate(files, [job.config.hydra.runtime.choices for job in done], declared(verb))
    request = Request(
        verb, argv, typed, options, multirun, bool(args.cfg or args.info), args.cfg, args.resolve, names,
        [[option.word for option in job] for job in jobs], [_without_hydra(job.config) for job in done],
        [job.config.hydra for job in done],
    )  # fmt: skip
    return request, found, done


def _without_hydra(config: DictConfig) -> DictConfig:
    bare: DictConfig = pickle.loads(pickle.dumps(config))  # takes a third of the time of a copy
    with open_dict(bare):
        bare.pop("hydra", None)
    return bare


def check(
    config: DictConfig,
    environ: Mapping[str, str],
    verb: str,
    typed: Sequence[str],
    *,
    is_whole: bool = True,
    multirun: bool = False,
) -> tuple[list[Mistake], Place | None]:
    """Return (the mistakes in the config of a command on this machine, the launcher around it if it is recognised).

    config: without the hydra node; that of a command line, or a checkpoint's with the typed options over it. typed: the
    options as typed. is_whole: whether no checkpoint fills in the options that are not typed. multirun: whether this
    process runs several jobs.
    """
    place = None
    try:
        values, found = check_config.read(config, verb)
        if values is None:
            return found, None
        if verb != "doctor":  # whose checks look for it
            place, more = check_launch.find(values, environ, verb=verb, typed=typed)
            found += more
        found += check_config.here(values, environ, verb, place, typed=typed, multirun=multirun, is_whole=is_whole)
    except OSError as error:  # such as a name that is too long, or a parent folder without search permission
        what = f"{error.filename} cannot be used as a path: {error.strerror}"
        return [Mistake(what, hint="type another path")], place
    return found, place


def _runs_all_jobs(request: Request, config: DictConfig, environ: Mapping[str, str]) -> bool:
    """Return whether this process runs the jobs of a sweep, not one of them."""
    only = _value(config, "sweep.job", "auto")
    is_one = isinstance(only, int) or (only == "auto" and slurm.array_task(environ) is not None)
    return request.multirun and not is_one


def _is_whole(config: DictConfig, verb: str) -> bool:
    """Return whether no checkpoint fills in the options that are not typed."""
    is_whole = verb in ("train", "doctor") or ("checkpoint" in config and _value(config, "checkpoint") is None)
    return is_whole and _value(config, "resume") in (None, "auto")


def _of_sweep(request: Request, config: DictConfig) -> list[Mistake]:
    only = _value(config, "sweep.job", "auto")
    if only == "auto" or request.multirun:
        return []
    what = f"sweep.job={only} selects jobs of -m, but -m is not set"
    return [Mistake(what, ("sweep.job",), (Fix(("-m",), said="add -m"),))]


def _accepted(request: Request, found: list[Mistake], jobs: Sequence[Job]) -> Request:
    """Return the request if it has no mistake. found: those of its words. Raises ConfigError."""
    jobs_of: dict[Mistake, list[int]] = {}  # mistake -> numbers of the jobs that have it
    for number, job in enumerate(jobs):
        for mistake in dict.fromkeys(job.mistakes):
            jobs_of.setdefault(mistake, []).append(number)
    found += [_with_jobs(mistake, numbers, request.names) for mistake, numbers in jobs_of.items()]
    if found:
        raise RefusedError(list(dict.fromkeys(found)), request)
    return request


def _with_jobs(mistake: Mistake, numbers: Sequence[int], names: Sequence[str]) -> Mistake:
    """Name the jobs that have a mistake, unless all jobs have it."""
    if len(numbers) == len(names):
        return mistake
    jobs = f"Job {numbers[0]} ({names[numbers[0]]}){' and others' if len(numbers) > 1 else ''}"
    return replace(mistake, what=f"{jobs}: {mistake.what}")


def _value(config: DictConfig, key: str, default: Any = None) -> Any:
    """Return the value, or the default if the key is missing or does not resolve, which the checks report."""
    try:
        return OmegaConf.select(config, key, default=default)
    except OmegaConfBaseException:
        return default


def _run_dir(request: Request, config: DictConfig) -> list[Mistake]:
    """Return a mistake if the run folder cannot be created. config: with the hydra node."""
    if request.verb in (*commands.USE_MODEL, "doctor"):
        return []
    key = "hydra.sweep.dir" if request.multirun else "hydra.run.dir"
    try:
        folder = Path(str(OmegaConf.select(config, key))).absolute()
        reason = not_writable_reason(folder)
    except OmegaConfBaseException as error:
        is_typed = any(option.key == key for option in request.options)  # else the key in it is reported
        what = f"{key} does not resolve: {first_sentence(error)}"
        return [Mistake(what, (key,), (setting(f"{key}=FOLDER"),))] if is_typed else []
    except OSError as error:
        return [Mistake(f"{error.filename} cannot be used as a path: {error.strerror}", hint="type another path")]
    if not reason:
        return []
    what = f"{key} must be a folder that can be created ({folder}), but {reason}"
    return [Mistake(what, (key,), (setting(f"{key}=FOLDER"),))]
