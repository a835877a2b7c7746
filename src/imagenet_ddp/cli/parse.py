"""The command line -> what Hydra shall run, or every mistake at once. Before Hydra starts, before torch is imported.

Hydra stops at its first error, with exit code 1 and a folder left behind. So the options are composed here first, by
Hydra's own loader; where it refuses the whole, it is asked option by option, and each refusal is said in our words.
What did compose is then shown to the check of each wing.
"""

import argparse
import contextlib
import copy
import dataclasses
import os
import re
import shlex
import sys
import traceback
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hydra._internal.utils import get_args_parser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from imagenet_ddp.cli.compose import Composer, first_line
from imagenet_ddp.cli.suggest import unknown
from imagenet_ddp.cli.translate import Translation, quoted, translate
from imagenet_ddp.config import commands, keys, trainer_options
from imagenet_ddp.config.keys import Key
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data import validate as data_check
from imagenet_ddp.data.sources.detect import options_for
from imagenet_ddp.distributed import validate as distributed_check
from imagenet_ddp.distributed.launchers import slurm_env
from imagenet_ddp.distributed.rendezvous import refusal
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models import validate as learning_check
from imagenet_ddp.runs import validate as run_check
from imagenet_ddp.runs.signals import Left, leaving
from imagenet_ddp.system import console

# What a _target_ may start with: a config is data, and must not be able to name os.system.
ALLOWED_TARGETS = ("imagenet_ddp", "torch", "torchvision", "lightning", "torchmetrics")
_PRINTING = ("--cfg", "-c", "--info", "-i", "--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc")
_NEEDED = "begin the file that --config-name names: `defaults: [train, _self_]`"
_ANSWERED = {"--help", "-h", "--hydra-help", "--version", "--shell-completion", "-sc"}  # whatever else is typed
_MISSING_HINTS = {
    "checkpoint": "checkpoint=runs/<name>/<time>/checkpoints/best.ckpt",
    "images": "images=FILE, images=FOLDER, or 'images=FOLDER/*.jpg'",
    "prepare.name": "prepare=imagenet, prepare=stl10, prepare=pack or prepare=check",
}


@dataclass(frozen=True)
class Request:
    """A command line without a mistake that could be seen before torch is imported."""

    verb: str
    argv: list[str]  # for Hydra: as typed, without --local-rank
    typed: list[str]  # the key=value options
    configs: list[DictConfig]  # one per job, without the hydra node, interpolations as they are
    jobs: list[list[str]]  # of -m: each job's options, and what tells it from the others
    names: list[str]
    hydra: DictConfig | None  # the hydra node of the first job; its interpolations resolve
    multirun: bool
    passthrough: bool  # Hydra only prints something (--help, --cfg, ...) and no job runs
    again: bool = False  # a job of a sweep that goes on in its folder, where it has one


class NotMetError(ConfigError):
    """Mistakes of a command before it has met the others of its run, which do not know of them yet."""

    def __init__(self, mistakes: list[str], request: Request):
        super().__init__(mistakes)
        self.request = request


def command_line(
    verb: str, argv: Sequence[str], environ: Mapping[str, str], *, compose_only: bool = False, elsewhere: bool = False
) -> Request:
    """argv: without the program's name. compose_only: skip all checks beyond composing. elsewhere: check the options
    for a SLURM job on other machines, whose GPUs, cores, disks and interfaces are unknown here. Raises ConfigError
    with every mistake."""
    commands.register(verb)  # here already, because --help composes too
    argv = without_local_rank(argv)
    if "--version" in argv:
        return Request(verb, argv, [], [], [], [], None, False, True)
    if not _ANSWERED & set(argv) and (translation := translate(verb, argv, environ)):
        raise ConfigError([translation.text, *_mistakes_of(translation, environ, compose_only)])
    args, argv, found = _options(argv)
    if args.help or args.hydra_help or args.shell_completion:
        return Request(verb, argv, args.overrides, [], [], [], None, False, True)
    composer = Composer(verb, args.config_name or verb, args.config_dir)
    overrides, more = composer.read(args.overrides, sweeps=args.multirun)
    found += more
    multirun = args.multirun or any(o.input_line.upper() == "HYDRA.MODE=MULTIRUN" for o in overrides if o.input_line)
    jobs, names, more = composer.jobs(overrides) if multirun else ([overrides], [""], [])
    found += more

    configs: list[DictConfig] = []
    said: dict[str, list[int]] = {}  # mistake -> the jobs that have it
    only_shown = bool(args.cfg or args.info)
    for number, job in enumerate(jobs):
        config, mistakes = composer.compose(job)
        if options := _form_of_root(verb, config, job):
            mistakes = [_rootless(config, options)]
            # go on as if that had been typed, so that what hangs on it is looked at too
            config, more = composer.compose([*job, *composer.parser.parse_overrides(options)])
            mistakes += more
        configs.append(config)
        if not (only_shown or compose_only):
            bare = _without_hydra(config)
            partial = verb != "train" or bare.get("resume") not in (None, "auto")
            only = bare.get("sweep", {}).get("job", "auto")
            if only != "auto" and not multirun:
                mistakes.append(f"sweep.job={only} is about the jobs of -m, but -m is not set. Hint: add -m.")
            in_array = elsewhere or slurm_env.array_task(environ) is not None
            alone = isinstance(only, int) or (only == "auto" and in_array)
            several = multirun and not alone
            mistakes += validate(
                bare,
                environ,
                verb,
                typed=args.overrides,
                multirun=several,
                partial=partial,
                num_jobs=len(jobs),
                elsewhere=elsewhere,
            )
            mistakes += _run_dir(config, multirun) if verb != "predict" and not elsewhere else []
            hooks = OmegaConf.to_container(config.hydra.callbacks, resolve=False) if config.hydra.callbacks else {}
            mistakes += _targets(hooks, list(bare.get("allow_targets") or []), "hydra.callbacks.")
        for text in dict.fromkeys(mistakes):
            said.setdefault(text, []).append(number)
    for text, numbers in said.items():
        if len(numbers) == len(jobs):
            found.append(text)
        elif len(numbers) == 1:
            found.append(f"Job {numbers[0]} ({names[numbers[0]]}): {text}")
        else:
            found.append(f"Jobs {', '.join(map(str, numbers))} of 0 to {len(jobs) - 1}: {text}")
    bare = [_without_hydra(config) for config in configs]
    lines = [[str(override.input_line) for override in job] for job in jobs]
    hydra = configs[0].get("hydra")
    request = Request(verb, argv, args.overrides, bare, lines, names, hydra, multirun, only_shown)
    if found:
        raise NotMetError(list(dict.fromkeys(found)), request)
    return request


def _mistakes_of(translation: Translation, environ: Mapping[str, str], compose_only: bool) -> list[str]:
    """What else is wrong with the line, once its words are this program's."""
    if translation.has_placeholders:
        return []
    try:
        command_line(translation.verb, translation.argv, environ, compose_only=compose_only)
    except ConfigError as error:
        return error.mistakes
    return []


def _form_of_root(verb: str, config: DictConfig, job: Sequence[Override]) -> list[str]:
    """What to type where data.root is typed and data= is not: the images there are somebody's own, and the default
    would draw its own among them. Empty where a checkpoint, an experiment or a _target_ says what they are."""
    typed = {override.key_or_group: override for override in job if not override.is_delete()}
    if "data.root" not in typed or {"data", "data.name", "data._target_"} & typed.keys() or verb == "predict":
        return []
    try:
        if not OmegaConf.select(config, "data.root") or OmegaConf.select(config, "data.name") != "shapes":
            return []
    except OmegaConfBaseException:  # it does not resolve, which is reported elsewhere
        return []
    if OmegaConf.select(config, "data._target_") or verb == "evaluate" or config.get("resume") not in (None, "auto"):
        return []
    return [quoted(option) for option in options_for(str(config.data.root))]


def _rootless(config: DictConfig, options: Sequence[str]) -> str:
    return (
        f"data.root={config.data.root} must be typed with data=, the form of the images there; without it, small "
        f"images would be generated in that folder. Hint: {shlex.join(options)}."
    )


def refuse(error: ConfigError, verb: str | None = None) -> NoReturn:
    """Show the mistakes on stderr, also those who wait for this command, and exit with code 2."""
    show(error, verb)
    if isinstance(error, NotMetError) and error.request.verb in ("train", "evaluate"):
        _tell_others(error)
    sys.exit(2)


def _tell_others(error: NotMetError) -> None:
    nodes, request = ("cluster", "trainer", "strategy"), error.request
    if request.multirun:
        return
    # whatever is wrong with the options may also be in the way here, and has been said
    with contextlib.suppress(Left, Exception), leaving():
        config = {name: OmegaConf.to_container(request.configs[0][name], resolve=True) for name in nodes}
        if refused := refusal.of(config, os.environ):
            sys.stderr.flush()
            refusal.tell(refused, error.mistakes)


def show(error: ConfigError, verb: str | None = None, end: str = "nothing was started") -> None:
    """HYDRA_FULL_ERROR=1 adds the traceback. end: of the first line."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        traceback.print_exception(error)
    stem = Path(sys.argv[0]).stem
    name = f"imagenet_ddp.{verb or stem}" if verb or stem in commands.COMMANDS else "imagenet_ddp"
    count = len(error.mistakes)
    lines = [f"{name}: {count} mistake{'s' if count > 1 else ''}, {end}"]
    for number, text in enumerate(error.mistakes, 1):
        head = f"{number:2}. "
        lines += ["", *console.wrapped(text, 80, head, " " * len(head))]
    print("\n".join(lines), file=sys.stderr)


def validate(
    config: DictConfig,
    environ: Mapping[str, str],
    verb: str,
    *,
    typed: Sequence[str] = (),
    multirun: bool = False,
    partial: bool = False,
    num_jobs: int = 2,
    elsewhere: bool = False,
) -> list[str]:
    """Sentences for a config that composed: keys unknown to the schema, values, folders, launcher, classes by _target_.

    config: without the hydra node. typed: the options as typed, for the line to type instead.
    partial: a checkpoint fills in what is not typed, so keys of data and learning are looked at one by one only.
    """
    found: list[str] = []
    broken: set[str] = set()
    plain = _plain(config, "", found, broken)
    declared = keys.declared(verb)
    lacking = [field.name for field in dataclasses.fields(commands.COMMANDS[verb]) if field.name not in plain]
    if len(lacking) > 5:  # a file of --config-name of one's own, without ours below it
        return [f"the configuration must have all keys of {verb}, got none of {', '.join(lacking)}. Hint: {_NEEDED}."]
    plain = _fitted(plain, commands.COMMANDS[verb], "", found, broken, declared)
    trainer = plain["trainer"]
    found += [
        unknown(f"trainer.{key}", declared)
        for key in trainer
        if key not in trainer_options.ACCEPTED.keys() | trainer_options.REFUSED.keys()
    ]
    for key, (allowed, _, _) in trainer_options.ACCEPTED.items():
        if f"trainer.{key}" in broken:  # said already: go on with any value that fits
            trainer[key] = next(value for value in ("auto", 1, False, 1.0, None) if allowed.accepts(value))
    found += trainer_options.validate(trainer)
    if elsewhere and trainer.get("accelerator") == "auto":
        trainer["accelerator"] = "gpu"
    found += data_check.validate(plain, environ, verb=verb, partial=partial, elsewhere=elsewhere)
    found += learning_check.validate(plain, environ, partial=partial)
    found += distributed_check.validate(
        plain, environ, verb=verb, typed=typed, multirun=multirun, num_jobs=num_jobs, elsewhere=elsewhere
    )
    elsewhere = elsewhere or distributed_check.is_elsewhere(plain, environ)
    found += run_check.validate(plain, environ, verb=verb, elsewhere=elsewhere)
    found += _targets(plain, plain["allow_targets"])
    return found


def only_prints(argv: Sequence[str]) -> bool:
    """Whether Hydra prints something, and nothing is run."""
    return any(token.partition("=")[0] in _PRINTING for token in argv)


def without_local_rank(argv: Sequence[str]) -> list[str]:
    """argv without --local-rank=N, --local_rank=N or --local-rank N, which torch.distributed.launch puts there."""
    kept, skip = [], False
    for token in argv:
        if skip and token.isdecimal():
            skip = False
            continue
        skip = token in ("--local-rank", "--local_rank")
        if not skip and not re.match(r"--local[-_]rank=", token):
            kept.append(token)
    return kept


# ---- Hydra's options ---------------------------------------------------------------------------------------------


class _OptionError(Exception):
    pass


def _raise(message: str) -> NoReturn:
    raise _OptionError(message)


def _options(argv: list[str]) -> tuple[argparse.Namespace, list[str], list[str]]:
    """(Hydra's options, argv for Hydra, mistakes). key=value may stand on either side of an option such as -m."""
    parser = get_args_parser()
    parser.error = _raise  # type: ignore[method-assign]
    try:
        args, rest = parser.parse_known_args(argv)
    except _OptionError as error:
        hint = "`--hydra-help` lists the options that begin with -."
        raise ConfigError(f"the command line cannot be read: {error}. Hint: {hint}") from error
    found: list[str] = []
    if late := [token for token in rest if not token.startswith("-")]:
        # argparse gives up on words behind an option in the middle; Hydra would refuse them
        args.overrides = [*args.overrides, *late]
        words = list(args.overrides)
        flags = [token for token in argv if not (token in words and not words.remove(token))]
        argv = [*args.overrides, *flags]
    commands = [f"--{name}" for name in ("run", "multirun", "cfg", "info") if getattr(args, name)]
    if len(commands) > 1:
        found.append(f"only one of {', '.join(commands)} can be meant. Hint: leave the others out.")
    if args.resolve and not args.cfg and not args.help:
        found.append("--resolve belongs to --cfg. Hint: --cfg job --resolve.")
    if args.config_path is not None:
        found.append("--config-path would replace this program's conf/. Hint: --config-dir FOLDER adds a folder to it.")
    if args.config_dir is not None and not Path(args.config_dir).is_dir():
        where = Path(args.config_dir).absolute()
        found.append(f"--config-dir must be a folder, but {where} is none. Hint: --config-dir FOLDER.")
        args.config_dir = None
    if args.experimental_rerun is not None:
        found.append("--experimental-rerun is not supported. Hint: resume=auto goes on with a run.")
    return args, argv, found


# ---- a composed config, plain --------------------------------------------------------------------------------------


def _without_hydra(config: DictConfig) -> DictConfig:
    bare = copy.copy(config)
    with open_dict(bare):
        bare.pop("hydra", None)
    return bare


def _plain(node: Any, prefix: str, found: list[str], broken: set[str]) -> Any:
    """Containers with interpolations resolved. Missing values become None; `broken` collects what does not resolve."""
    if not isinstance(node, DictConfig | ListConfig):
        return node
    plain: dict[Any, Any] = {}
    raw: Any = OmegaConf.to_container(node, resolve=False)
    for key in node if isinstance(node, DictConfig) else range(len(node)):
        path = f"{prefix}{key}"
        if OmegaConf.is_missing(node, key):
            if path in _MISSING_HINTS:
                found.append(f"{path} is needed, but not set. Hint: {_MISSING_HINTS[path]}.")
            plain[key] = None
            continue
        try:
            value = typing.cast(Any, node)[key]
        except OmegaConfBaseException as error:
            broken.add(path)
            if not isinstance(error, InterpolationToMissingValueError):  # there the missing key itself is said
                hint = "Hint: ${data.name} stands for a key, ${oc.env:HOME} for a variable."
                found.append(f"{path}={raw[key]} does not resolve: {first_line(error)} {hint}")
            continue
        plain[key] = _plain(value, f"{path}.", found, broken)
    return plain if isinstance(node, DictConfig) else list(plain.values())


def _fitted(
    node: Mapping[str, Any], cls: type, prefix: str, found: list[str], broken: set[str], declared: Mapping[str, Key]
) -> dict[str, Any]:
    """The node with the schema's keys and no other; what is said, and filled in, is what is deleted or unknown."""
    fitted: dict[str, Any] = {}
    found += [unknown(prefix + str(key), declared) for key in node if prefix + str(key) not in declared]
    for field in dataclasses.fields(cls):
        path = prefix + field.name
        kind = declared[path].type
        if field.name not in node and path not in broken:
            found.append(f"{path} is needed, but missing. Hint: {_NEEDED}.")
        if dataclasses.is_dataclass(kind):
            inner = node.get(field.name)
            inner = inner if isinstance(inner, Mapping) else dataclasses.asdict(typing.cast(Any, kind)())
            fitted[field.name] = _fitted(inner, typing.cast(type, kind), f"{path}.", found, broken, declared)
        elif field.name in node:
            fitted[field.name] = node[field.name]
        else:
            fitted[field.name] = field.default_factory() if callable(field.default_factory) else field.default
    return fitted


def _targets(node: Any, extra: Sequence[str], path: str = "") -> list[str]:
    """Each _target_ must begin with an allowed package, dotted component by component."""
    found = []
    if isinstance(node, Mapping):
        target = node.get("_target_")
        if target is not None and not _is_allowed(str(target), extra):
            package = str(target).partition(".")[0]
            allow = shlex.quote(f"allow_targets={shown([*extra, package])}")
            found.append(
                f"{path}_target_ must begin with one of {', '.join([*ALLOWED_TARGETS, *extra])}, "
                f"got {target}. Hint: where you trust that package: `{allow}`"
            )
        for key, value in node.items():
            found += _targets(value, extra, f"{path}{key}.")
    elif isinstance(node, list):
        for number, value in enumerate(node):
            found += _targets(value, extra, f"{path}{number}.")
    return found


def _is_allowed(target: str, extra: Iterable[str]) -> bool:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)+", target):
        return False
    return any(target.startswith(f"{package}.") or target == package for package in [*ALLOWED_TARGETS, *extra])


def _run_dir(config: DictConfig, multirun: bool) -> list[str]:
    """The run folder itself does not exist yet; its nearest parent that does must be a folder one may write in."""
    key = "hydra.sweep.dir" if multirun else "hydra.run.dir"
    try:
        folder = Path(str(OmegaConf.select(config, key))).absolute()
    except OmegaConfBaseException as error:
        lines: Any = OmegaConf.to_container(config.hydra.overrides.hydra, resolve=False)
        is_typed = any(str(line).startswith(key) for line in lines)
        return [f"{key} does not resolve: {first_line(error)} Hint: {key}=FOLDER."] if is_typed else []
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    what = "cannot be written in" if there.is_dir() else "is a file"
    return [f"{key} must be a folder that can be made ({folder}), but {there} {what}. Hint: {key}=FOLDER."]
