"""Turn a command line into checked configs, or report every mistake at once. Does not import torch.

hydra.main stops at its first error, with exit code 1 and a folder left behind. Here, data flows one way: the command
line is split into words (words.py), each word is read once (options.py), the config of each job is composed in layers
(compose.py), read as typed objects and checked (check_config.py, check_launch.py), and all mistakes are reported
together. Lines are checked by command_line for this machine, by job_elsewhere for those on which SLURM
will run a job, and by read_single_process for a command without ranks; composed checks nothing.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import TypeVar

from omegaconf import DictConfig

from imagenet_ddp.cli import check_config, options, words
from imagenet_ddp.cli.compose import Composed, compose
from imagenet_ddp.cli.consequences import of_given_keys, of_values
from imagenet_ddp.cli.options import Files, Option, Typed
from imagenet_ddp.cli.words import Words
from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.schema.keys import validate_group
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, key_of
from imagenet_ddp.runs.signals import hold_signals

T = TypeVar("T", bound=CommonConfig)


@dataclass(frozen=True)
class Request:
    """A command line, read and checked."""

    verb: str
    argv: list[str]  # as typed, without --local-rank
    typed: list[str]  # the key=value options of argv
    options: list[Option]  # the same, read
    multirun: bool
    only_prints: bool  # something is only printed (--help, --cfg, ...) and no job runs
    shown: str | None = None  # the value of --cfg
    is_resolved: bool = False  # --resolve
    jobs: list[Composed] = field(default_factory=list[Composed])  # one; several with -m; none if Hydra prints help
    again: bool = False  # a job of a resumed sweep: it continues in its own folder if there is one

    @property
    def flags(self) -> list[str]:
        """The words of argv that are no options: -m, --config-dir and its folder, and so on."""
        words = list(self.typed)
        return [word for word in self.argv if not (word in words and not words.remove(word))]

    def is_typed(self, *keys: str) -> bool:
        """Return whether one of the keys is typed."""
        return not {*keys}.isdisjoint(map(key_of, self.typed))

    @property
    def names(self) -> list[str]:
        """With -m, the options that distinguish each job."""
        return [job.name for job in self.jobs]

    @property
    def configs(self) -> list[DictConfig]:
        """The config of each job, without the hydra node."""
        return [job.config for job in self.jobs]

    @property
    def config(self) -> DictConfig:
        """The config of the first job, without the hydra node."""
        return self.jobs[0].config

    def values(self, cls: type[T]) -> T:
        """Return the config of the first job as the object that the code reads. cls: the command's class of config."""
        values = self.jobs[0].values
        assert isinstance(values, cls), "command_line checks a config, and types it"
        return values

    @property
    def hydra(self) -> DictConfig:
        """The hydra node of the first job. Interpolations resolve in it."""
        return self.jobs[0].hydra

    @property
    def names_folder(self) -> bool:
        """Whether the run folder is typed, not made of a name and the time."""
        return self.is_typed("hydra.run.dir")

    @property
    def place(self) -> Place | None:
        """Where this command runs the first job; None if no launcher is recognised."""
        return self.jobs[0].place

    @property
    def scan(self) -> Scan | None:
        """What was found of the images, if this command opens them, which the job of a sweep does in its turn."""
        return self.jobs[0].scan


class RefusedError(ConfigError):
    """Mistakes in a command line, with what could be read of it. Other nodes of the run may wait for this command."""

    def __init__(self, mistakes: Sequence[Mistake], request: Request):
        super().__init__(mistakes)
        self.request = request


def command_line(verb: str, argv: Sequence[str], environ: Mapping[str, str], *, opens: bool = True) -> Request:
    """Compose and check the options of a command that runs on this machine. argv: without the program's name. opens:
    whether train and evaluate go on to open the images, of which they then list all. Raises ConfigError with every
    mistake."""
    line, typed, jobs, in_files = _read(verb, argv)
    for job in () if line.only_prints else jobs:
        check_config.check_job(job, environ, verb, line.typed, is_multirun=typed.is_multirun, opens=opens)
    return _accepted(verb, line, typed, jobs, in_files)


def job_elsewhere(argv: Sequence[str], environ: Mapping[str, str]) -> Request:
    """Compose and check the options of a training that SLURM will run on other machines, whose GPUs, cores, disks and
    interfaces are unknown here. Raises ConfigError with every mistake."""
    line, typed, jobs, in_files = _read("train", argv)
    for job in jobs:
        check_config.check_job_elsewhere(job, environ, line.typed, is_multirun=typed.is_multirun)
    return _accepted("train", line, typed, jobs, in_files)


def composed(verb: str, argv: Sequence[str]) -> Request:
    """Compose the options without checking their values. Raises ConfigError for those that do not compose."""
    return _accepted(verb, *_read(verb, argv))


def read_single_process(
    verb: str, cls: type[T], argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[Request, T, list[Mistake]]:
    """Return (request, config, mistakes in single keys) of a command that runs in one process, ignoring any launcher
    around it. Raises ConfigError if a mistake makes further validation impossible."""
    request = composed(verb, argv)
    alone = {name: environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in environ}
    values, found = check_config.read(request.config, verb)
    if values is not None:
        found += check_config.check_values(values, alone, verb, request.typed, is_whole=False, place=Place())[0]
    if values is None or any(f"{verb}.name" in mistake.keys for mistake in found):  # a required choice is missing
        raise ConfigError(found)
    assert isinstance(values, cls)
    return request, values, of_values(found + validate_group(verb, values[verb], verb), request.config)


def _read(verb: str, argv: Sequence[str]) -> tuple[Words, Typed, list[Composed], list[Mistake]]:
    """Return (the words, the options, the jobs, the mistakes in the files of --config-dir) of a command line."""
    with hold_signals():
        commands.register(verb)  # even for --help, which composes the config
    line = words.read(verb, argv)
    if line.is_answered:
        return line, Typed([], [], [""], False, []), [], []
    files = Files(verb, line.flags.config_name or verb, line.flags.config_dir)
    typed = options.read(verb, line, files)
    of_paths = {key for mistake in typed.mistakes if mistake.typed for key in mistake.keys}
    meant = {option for each in (*line.mistakes, *typed.mistakes) for fix in each.fixes[:1] for option in fix.options}
    return line, typed, *compose(verb, files, typed, line.left_out | of_paths, meant)


def _accepted(verb: str, words: Words, typed: Typed, jobs: Sequence[Composed], in_files: Sequence[Mistake]) -> Request:
    """Return the request if it has no mistake. Raises RefusedError with all mistakes: those of words and options, those
    in files, and those of the jobs."""
    request = Request(
        verb,
        argv=words.argv,
        typed=words.typed,
        options=typed.options,
        multirun=typed.is_multirun,
        only_prints=words.only_prints,
        shown=words.flags.cfg,
        is_resolved=words.flags.resolve,
        jobs=[*jobs],
    )
    jobs_of: dict[Mistake, list[int]] = {}  # mistake -> numbers of the jobs that have it
    for number, job in enumerate(jobs):
        for mistake in dict.fromkeys(of_values(job.mistakes, job.config)):
            jobs_of.setdefault(mistake, []).append(number)
    found = [*words.mistakes, *typed.mistakes, *in_files]
    found += [_with_jobs(mistake, numbers, request.names) for mistake, numbers in jobs_of.items()]
    if found:
        nulls = {key_of(word) for word in words.typed if word.endswith("=null")}
        found = of_given_keys([*dict.fromkeys(found)], words.typed)
        raise RefusedError([_keeping(nulls, mistake) for mistake in found], request)
    return request


def _keeping(nulls: Set[str], mistake: Mistake) -> Mistake:
    """Put the fixes last that set a key which is null on purpose, because with them the null would be refused again."""
    return replace(
        mistake, fixes=tuple(sorted(mistake.fixes, key=lambda fix: bool({*map(key_of, fix.options)} & nulls)))
    )


def _with_jobs(mistake: Mistake, numbers: Sequence[int], names: Sequence[str]) -> Mistake:
    """Name the jobs that have a mistake, unless all jobs have it."""
    if len(numbers) == len(names):
        return mistake
    jobs = f"Job {numbers[0]} ({names[numbers[0]]}){' and others' if len(numbers) > 1 else ''}"
    return replace(mistake, what=f"{jobs}: {mistake.what}")
