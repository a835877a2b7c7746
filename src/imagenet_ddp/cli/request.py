"""A command line without any mistake that can be found before torch is imported, or its mistakes."""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace

from omegaconf import DictConfig

from imagenet_ddp.cli.compose import Composed
from imagenet_ddp.cli.options import Option, Typed
from imagenet_ddp.cli.words import Words
from imagenet_ddp.data.sources.base import Scan
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, key_of


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
    names: list[str] = field(default_factory=lambda: [""])  # with -m: the options that distinguish each job
    jobs: list[list[str]] = field(default_factory=list[list[str]])  # the options of each job
    configs: list[DictConfig] = field(default_factory=list[DictConfig])  # one per job, without the hydra node
    hydra_nodes: list[DictConfig] = field(default_factory=list[DictConfig])  # of each job; interpolations resolve
    again: bool = False  # a job of a resumed sweep: it continues in its own folder if there is one
    # one per config; None where no launcher is recognised
    places: list[Place | None] = field(default_factory=list[Place | None])
    scan: Scan | None = None  # of the images of a single job that opens them

    @property
    def flags(self) -> list[str]:
        """The words of argv that are no options: -m, --config-dir and its folder, and so on."""
        words = list(self.typed)
        return [word for word in self.argv if not (word in words and not words.remove(word))]

    @property
    def hydra(self) -> DictConfig:
        """The hydra node of the first job."""
        return self.hydra_nodes[0]


class RefusedError(ConfigError):
    """Mistakes in a command line, with what could be read of it. Other nodes of the run may wait for this command."""

    def __init__(self, mistakes: Sequence[Mistake], request: Request):
        super().__init__(mistakes)
        self.request = request


def accepted(verb: str, words: Words, typed: Typed, jobs: Sequence[Composed], in_files: Sequence[Mistake]) -> Request:
    """Return the request if it has no mistake. Raises RefusedError with all mistakes: those of words and options, those
    in files, and those of the jobs."""
    request = Request(
        verb,
        words.argv,
        words.typed,
        typed.options,
        typed.is_multirun,
        words.only_prints,
        words.flags.cfg,
        words.flags.resolve,
        typed.names,
        [[option.word for option in job.options] for job in jobs],
        [job.config for job in jobs],
        [job.hydra for job in jobs],
        places=[job.place for job in jobs],
        scan=jobs[0].scan if len(jobs) == 1 else None,
    )
    jobs_of: dict[Mistake, list[int]] = {}  # mistake -> numbers of the jobs that have it
    for number, job in enumerate(jobs):
        for mistake in dict.fromkeys(job.mistakes):
            jobs_of.setdefault(mistake, []).append(number)
    found = [*words.mistakes, *typed.mistakes, *in_files]
    found += [_with_jobs(mistake, numbers, typed.names) for mistake, numbers in jobs_of.items()]
    if found:
        nulls = {key_of(word) for word in words.typed if word.endswith("=null")}
        raise RefusedError([_keeping(nulls, mistake) for mistake in dict.fromkeys(found)], request)
    return request


def _keeping(nulls: Set[str], mistake: Mistake) -> Mistake:
    """Put the fixes last that set a key which is null on purpose: they would lead in a circle."""
    return replace(
        mistake, fixes=tuple(sorted(mistake.fixes, key=lambda fix: bool({*map(key_of, fix.options)} & nulls)))
    )


def _with_jobs(mistake: Mistake, numbers: Sequence[int], names: Sequence[str]) -> Mistake:
    """Name the jobs that have a mistake, unless all jobs have it."""
    if len(numbers) == len(names):
        return mistake
    jobs = f"Job {numbers[0]} ({names[numbers[0]]}){' and others' if len(numbers) > 1 else ''}"
    return replace(mistake, what=f"{jobs}: {mistake.what}")
