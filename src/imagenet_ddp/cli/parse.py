"""Turn a command line into checked configs, or report every mistake at once. Does not import torch.

hydra.main stops at its first error, with exit code 1 and a folder left behind. Here, data flows one way: the command
line is split into words (words.py), each word is read once (options.py), the config of each job is composed in layers
(compose.py), read as typed objects and checked (check_config.py, check_launch.py), and all mistakes are reported
together (request.py). Lines are checked by command_line for this machine, by job_elsewhere for those on which SLURM
will run a job, and by read_single_process for a command without ranks; composed checks nothing.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from imagenet_ddp.cli import check_config, options, words
from imagenet_ddp.cli.compose import Composed, compose
from imagenet_ddp.cli.options import Files, Typed
from imagenet_ddp.cli.request import RefusedError as RefusedError
from imagenet_ddp.cli.request import Request, accepted
from imagenet_ddp.cli.words import Words
from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.schema.keys import validate_group
from imagenet_ddp.config.section import typed_config
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.runs.signals import hold_signals

T = TypeVar("T", bound=commands.CommonConfig)


def command_line(verb: str, argv: Sequence[str], environ: Mapping[str, str], *, opens: bool = True) -> Request:
    """Compose and check the options of a command that runs on this machine. argv: without the program's name. opens:
    whether train and evaluate go on to open the images, of which they then list all. Raises ConfigError with every
    mistake."""
    line, typed, jobs, in_files = _read(verb, argv)
    for job in () if line.only_prints else jobs:
        check_config.check_job(job, environ, verb, line.typed, is_multirun=typed.is_multirun, opens=opens)
    return accepted(verb, line, typed, jobs, in_files)


def job_elsewhere(argv: Sequence[str], environ: Mapping[str, str]) -> Request:
    """Compose and check the options of a training that SLURM will run on other machines, whose GPUs, cores, disks and
    interfaces are unknown here. Raises ConfigError with every mistake."""
    line, typed, jobs, in_files = _read("train", argv)
    for job in jobs:
        check_config.check_job_elsewhere(job, environ, line.typed, is_multirun=typed.is_multirun)
    return accepted("train", line, typed, jobs, in_files)


def composed(verb: str, argv: Sequence[str]) -> Request:
    """Compose the options without checking their values. Raises ConfigError for those that do not compose."""
    return accepted(verb, *_read(verb, argv))


def read_single_process(
    verb: str, cls: type[T], argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[Request, T, list[Mistake]]:
    """Return (request, config, mistakes in single keys) of a command that runs in one process, ignoring any launcher
    around it. Raises ConfigError if a mistake makes further validation impossible."""
    request = composed(verb, argv)
    alone = {name: environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in environ}
    values, found = check_config.read(request.configs[0], verb)
    if values is not None:
        found += check_config.check_values(values, alone, verb, request.typed, is_whole=False, place=Place())[0]
    if values is None or any(f"{verb}.name" in mistake.keys for mistake in found):  # a required choice is missing
        raise ConfigError(found)
    config = typed_config(request.configs[0], cls)
    return request, config, found + validate_group(verb, config[verb], verb)


def _read(verb: str, argv: Sequence[str]) -> tuple[Words, Typed, list[Composed], list[Mistake]]:
    """Return (the words, the options, the jobs, the mistakes in the files of --config-dir) of a command line."""
    with hold_signals():
        commands.register(verb)  # even for --help, which composes the config
    line = words.read(verb, argv)
    if line.is_answered:
        return line, Typed([], [], [""], False, []), [], []
    files = Files(verb, line.flags.config_name or verb, line.flags.config_dir)
    typed = options.read(verb, line, files)
    return line, typed, *compose(verb, files, typed.jobs, line.left_out)
