"""Turn a command line into checked configs, or report every mistake at once. Does not import torch.

hydra.main stops at its first error, with exit code 1 and a folder left behind. The options are therefore read
(read_options.py) and composed (compose.py) here first, and the composed config is validated (check_config.py).
"""

import contextlib
import pickle
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import check_files, check_words, hydra_flags, known_terms
from imagenet_ddp.cli.check_config import validate
from imagenet_ddp.cli.compose import FREE, Composer, first_sentence
from imagenet_ddp.cli.overrides import quoted, typed_config
from imagenet_ddp.cli.read_options import SWEPT, line_of
from imagenet_ddp.config.keys import key_of, validate_group
from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.sources.registry import implied, options_for
from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, setting, without
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.signals import hold_signals
from imagenet_ddp.system.files import not_writable_reason

T = TypeVar("T", bound=commands.CommonConfig)

# Keys of Hydra that have no effect, because a run does not use Hydra's own start of a job.
UNREAD = ("hydra.job.chdir", "hydra.job.env_set", "hydra.callbacks", "hydra.output_subdir")


@dataclass(frozen=True)
class Request:
    """A command line without any mistake detectable before torch is imported."""

    verb: str
    argv: list[str]  # for Hydra: as typed, without --local-rank, text values quoted where Hydra would change them
    typed: list[str]  # the key=value options of argv
    configs: list[DictConfig]  # one per job, without the hydra node, interpolations unresolved
    jobs: list[list[str]]  # the options of each job
    names: list[str]  # with -m: the options that distinguish each job
    hydra_nodes: list[DictConfig]  # the hydra node of each job; its interpolations resolve
    multirun: bool
    passthrough: bool  # Hydra only prints something (--help, --cfg, ...) and no job runs
    again: bool = False  # a job of a resumed sweep: it continues in its own folder if there is one
    # one per config; None where no launcher is recognised
    places: list[Place | None] = field(default_factory=list[Place | None])

    @property
    def hydra(self) -> DictConfig:
        """The hydra node of the first job."""
        return self.hydra_nodes[0]


class NotMetError(ConfigError):
    """Mistakes in one node's command line, not yet known to the other nodes of the run."""

    def __init__(self, mistakes: Sequence[Mistake], request: Request):
        super().__init__(mistakes)
        self.request = request


def command_line(
    verb: str, argv: Sequence[str], environ: Mapping[str, str], *, compose_only: bool = False, elsewhere: bool = False
) -> Request:
    """Compose and validate the options. Raises ConfigError with every mistake.

    argv: without the program's name. compose_only: skip all checks beyond composing. elsewhere: the options are for a
    SLURM job on other machines, whose GPUs, cores, disks and interfaces are unknown here.
    """
    with hold_signals():
        commands.register(verb)  # even for --help, which composes the config
    argv, found = known_terms.split_options(hydra_flags.without_local_rank(argv))
    args, argv = hydra_flags.read(argv)
    if not hydra_flags.ANSWERED.isdisjoint(argv):
        return Request(verb, argv, args.overrides, [], [], [], [], False, True)
    composer = Composer(verb, args.config_name or verb, args.config_dir)
    # in other projects an experiment is added; here it has a default, which Hydra refuses to add again
    argv, args.overrides = (
        [word.replace("+experiment=", "experiment=", 1) for word in words] for words in (argv, args.overrides)
    )
    args.overrides, odd = check_words.read(args.overrides, composer.keys, sweeps=args.multirun)
    found += odd
    argv, args.overrides = (composer.quoted(words, sweeps=args.multirun) for words in (argv, args.overrides))
    if _resumes_path(args.overrides):
        argv, args.overrides = over_stored(argv), over_stored(args.overrides)
    overrides, more = composer.read(args.overrides, sweeps=args.multirun)
    found += more
    found += [
        Mistake(f"{line} has no effect", (key_of(line),), (without(line),))
        for line in args.overrides
        if key_of(line).startswith(UNREAD)
    ]
    multirun = args.multirun or any(o.input_line.upper() == "HYDRA.MODE=MULTIRUN" for o in overrides if o.input_line)
    if multirun and verb not in SWEPT:
        typed = [word for word in argv if word in ("-m", "--multirun") or key_of(word) == "hydra.mode"] or ["-m"]
        found.append(Mistake(f"{typed[0]} starts several jobs, but {verb} runs one", fixes=(without(*typed),)))
    jobs, names, more = composer.jobs(overrides) if multirun else ([overrides], [""], [])
    found += more

    request = Request(verb, argv, args.overrides, [], [], names, [], multirun, passthrough=bool(args.cfg or args.info))
    jobs_of: dict[Mistake, list[int]] = {}  # mistake -> numbers of the jobs that have it
    for number, job in enumerate(jobs):
        config, mistakes, refused = _compose(composer, verb, job)
        refused |= {key for mistake in odd for key in mistake.keys if key not in map(key_of, args.overrides)}
        if args.config_dir is not None:
            choices, name = config.hydra.runtime.choices, args.config_name or verb
            mistakes += check_files.validate(Path(args.config_dir), choices, name, composer.keys)
        bare, place = _without_hydra(config), None
        if not (request.passthrough or compose_only):
            more, place = _validate_job(config, bare, environ, verb, args.overrides, multirun, elsewhere, refused)
            mistakes += more
        for mistake in dict.fromkeys(mistakes):
            jobs_of.setdefault(mistake, []).append(number)
        request.configs.append(bare)
        request.jobs.append([line_of(override) for override in job])
        request.hydra_nodes.append(config.hydra)
        request.places.append(place)
    found += [_with_jobs(mistake, numbers, names) for mistake, numbers in jobs_of.items()]
    if found:
        raise NotMetError(list(dict.fromkeys(found)), request)
    return request


def _resumes_path(lines: Sequence[str]) -> bool:
    values = [line.partition("=")[2].strip("'\"") for line in lines if key_of(line) == "resume"]
    return bool(values) and values[-1] not in ("", "auto", "null")


def over_stored(words: Sequence[str]) -> list[str]:
    """Return the words of a command that resumes a run, so that it can also set, or delete, what only the stored config
    has: an argument of a callback, for example. merge_overrides lays them over that config, which is then checked."""
    changed = [f"++{word[1:]}=null" if word.startswith(tuple(f"~{each}" for each in FREE)) else word for word in words]
    return [f"++{word}" if word.startswith(FREE) and "=" in word else word for word in changed]


def _compose(composer: Composer, verb: str, job: list[Override]) -> tuple[DictConfig, list[Mistake], set[str]]:
    """Return (config, mistakes, groups whose choice is a mistake) of one job. If data= is missing, compose as if it
    were typed, to validate the options that depend on it."""
    config, mistakes, refused = composer.compose(job)
    if "experiment" not in refused and (options := _missing_data_options(verb, config, job)):
        config, more, _ = composer.compose([*job, *composer.parser.parse_overrides(options)])
        what = (
            f"data.root={config.data.root} must be typed with data=, which names the layout of that folder; without "
            "data=, small images would be generated there"
        )
        mistakes = [Mistake(what, ("data.root", "data"), (setting(*options),)), *more]
    if verb not in (*commands.USE_MODEL, "evaluate"):
        set_implied(config)
    elif typed := _value(config, "checkpoint"):
        config.checkpoint = str(CheckpointStore.to_use(Path(typed)))
    return config, mistakes, refused


def set_implied(config: DictConfig) -> None:
    """Set the data.* keys that follow from what is found in data.root, unless a checkpoint provides them."""
    with contextlib.suppress(OmegaConfBaseException, OSError):  # validate() reports both
        if config.get("resume") in (None, "auto"):
            config.data.update(implied(typed_config(config.data, DataConfig, partial=True)))


def _validate_job(
    config: DictConfig,
    bare: DictConfig,
    environ: Mapping[str, str],
    verb: str,
    typed: Sequence[str],
    multirun: bool,
    elsewhere: bool,
    refused: Set[str],
) -> tuple[list[Mistake], Place | None]:
    """Return the mistakes of one job. bare: config without the hydra node. refused: as of validate()."""
    found: list[Mistake] = []
    only = _value(bare, "sweep.job", "auto")
    if only != "auto" and not multirun:
        what = f"sweep.job={only} selects jobs of -m, but -m is not set"
        found.append(Mistake(what, ("sweep.job",), (Fix(("-m",), said="add -m"),)))
    one_only = isinstance(only, int) or (only == "auto" and (elsewhere or slurm.array_task(environ) is not None))
    is_whole = verb in ("train", "doctor") or ("checkpoint" in bare and _value(bare, "checkpoint") is None)
    partial = not is_whole or _value(bare, "resume") not in (None, "auto")
    place = None
    try:
        mistakes, place = validate(
            bare, environ, verb, typed=typed, multirun=multirun and not one_only, partial=partial, elsewhere=elsewhere,
            refused=refused,
        )  # fmt: skip
        found += mistakes
        found += _run_dir(config, multirun) if verb not in (*commands.USE_MODEL, "doctor") and not elsewhere else []
    except OSError as error:  # such as a name that is too long, or a parent folder without search permission
        what = f"{error.filename} cannot be used as a path: {error.strerror}"
        found.append(Mistake(what, hint="type another path"))
    return found, place


def _with_jobs(mistake: Mistake, numbers: Sequence[int], names: Sequence[str]) -> Mistake:
    """Name the jobs that have a mistake, unless all jobs have it."""
    if len(numbers) == len(names):
        return mistake
    jobs = f"Job {numbers[0]} ({names[numbers[0]]}){' and others' if len(numbers) > 1 else ''}"
    return replace(mistake, what=f"{jobs}: {mistake.what}")


def _missing_data_options(verb: str, config: DictConfig, job: Sequence[Override]) -> list[str]:
    """Return the options to type if data.root is typed without data=. That folder holds the user's images, among which
    the default, data=shapes, would generate its own. Return [] if a checkpoint, an experiment or a _target_ determines
    the data."""
    typed = {override.key_or_group: override for override in job if not override.is_delete()}
    root, resume = _value(config, "data.root"), _value(config, "resume")
    is_told = {"data", "data.name", "data._target_"} & typed.keys() or _value(config, "data._target_")
    if "data.root" not in typed or not root or is_told or verb in (*commands.USE_MODEL, "evaluate"):
        return []
    if _value(config, "data.name") != "shapes" or resume not in (None, "auto"):
        return []
    return [quoted(option) for option in options_for(str(root))]


def _value(config: DictConfig, key: str, default: Any = None) -> Any:
    """Return the value, or the default if the key is missing or does not resolve. validate() reports either mistake."""
    try:
        return OmegaConf.select(config, key, default=default)
    except OmegaConfBaseException:
        return default


def _without_hydra(config: DictConfig) -> DictConfig:
    bare: DictConfig = pickle.loads(pickle.dumps(config))  # takes a third of the time of a copy
    with open_dict(bare):
        bare.pop("hydra", None)
    return bare


def _run_dir(config: DictConfig, multirun: bool) -> list[Mistake]:
    """Return a mistake if the run folder cannot be created."""
    key = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    try:
        folder = Path(str(OmegaConf.select(config, key))).absolute()
    except OmegaConfBaseException as error:
        lines: Any = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
        is_typed = any(line.startswith(key) for line in lines)  # else validate() reports the key in it
        what = f"{key} does not resolve: {first_sentence(error)}"
        return [Mistake(what, (key,), (setting(f"{key}=FOLDER"),))] if is_typed else []
    if not (reason := not_writable_reason(folder)):
        return []
    what = f"{key} must be a folder that can be created ({folder}), but {reason}"
    return [Mistake(what, (key,), (setting(f"{key}=FOLDER"),))]


def read_single_process(
    verb: str, cls: type[T], argv: Sequence[str], environ: Mapping[str, str]
) -> tuple[Request, T, list[Mistake]]:
    """Return (request, config, mistakes in single keys) of a command that runs in one process, ignoring any launcher
    around it. Raises ConfigError if a mistake makes further validation impossible."""
    request = command_line(verb, argv, environ, compose_only=True)
    alone = {name: environ[name] for name in ("HOME", "XDG_CACHE_HOME") if name in environ}
    found, _ = validate(request.configs[0], alone, verb, typed=request.typed, partial=True)
    if any(f"{verb}.name" in mistake.keys for mistake in found):  # a required choice is missing
        raise ConfigError(found)
    config = typed_config(request.configs[0], cls)
    return request, config, found + validate_group(verb, config[verb], verb)
