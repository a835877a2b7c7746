"""The command line -> what Hydra shall run, or every mistake at once. Before Hydra starts, before torch is imported.

Hydra stops at its first error, with exit code 1 and a folder left behind. So the options are composed here first, by
Hydra's own loader; where it refuses the whole, it is asked option by option, and each refusal is said in our words.
What did compose is then shown to the check of each wing.
"""

import argparse
import copy
import dataclasses
import os
import re
import shlex
import sys
import textwrap
import traceback
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NoReturn

from hydra import version
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.utils import create_config_search_path, get_args_parser
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType
from hydra.core.utils import JobRuntime, setup_globals
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException

from imagenet_ddp import schema, trainer_keys
from imagenet_ddp.data import check as data_check
from imagenet_ddp.distributed import check as distributed_check
from imagenet_ddp.learning import check as learning_check
from imagenet_ddp.learning.names import CLASSIFIERS
from imagenet_ddp.run import check as run_check
from imagenet_ddp.schema import ConfigError
from imagenet_ddp.trainer_keys import shown

# What a _target_ may start with: a config is data, and must not be able to name os.system.
ALLOWED_TARGETS = ("imagenet_ddp", "torch", "torchvision", "lightning", "torchmetrics")
# What other programs call these keys.
ALIASES = {
    "arch": "model.name",
    "epochs": "trainer.max_epochs",
    "workers": "data.num_workers",
    "gpus": "trainer.devices",
    "nodes": "trainer.num_nodes",
    "wd": "optim.weight_decay",
    "dataset": "data.name",
    "checkpoint": "resume",
    "resume": "checkpoint",
}
_MISSING_HINTS = {
    "checkpoint": "checkpoint=runs/<name>/<time>/checkpoints/best.ckpt",
    "images": "images=FILE, images=FOLDER, or 'images=FOLDER/*.jpg'",
}
_TYPE_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "text", dict: "a group of keys"}


@dataclass(frozen=True)
class Request:
    """A command line without a mistake that could be seen before torch is imported."""

    verb: str
    argv: list[str]  # for Hydra: as typed, without --local-rank
    typed: list[str]  # the key=value options
    configs: list[DictConfig]  # one per job, without the hydra node, interpolations as they are
    hydra: DictConfig | None  # the hydra node of the first job; its interpolations resolve
    multirun: bool
    passthrough: bool  # Hydra only prints something (--help, --cfg, ...) and no job runs


def command_line(verb: str, argv: Sequence[str], environ: Mapping[str, str]) -> Request:
    """argv: without the program's name. Raises ConfigError with every mistake."""
    schema.register()  # here already, because --help composes too
    argv = without_local_rank(argv)
    if "--version" in argv:
        return Request(verb, argv, [], [], None, False, True)
    args, argv, found = _options(argv, known_keys(verb))
    if args.help or args.hydra_help or args.shell_completion:
        return Request(verb, argv, args.overrides, [], None, False, True)
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
        configs.append(config)
        if not only_shown:
            bare = _without_hydra(config)
            partial = verb != "train" or bare.get("resume") not in (None, "auto")
            mistakes += semantic(bare, environ, verb, typed=args.overrides, multirun=multirun, partial=partial)
            mistakes += _run_dir(config, multirun) if verb != "predict" else []
            hooks = OmegaConf.to_container(config.hydra.callbacks, resolve=False) if config.hydra.callbacks else {}
            mistakes += _targets(hooks, list(bare.allow_targets or []), "hydra.callbacks.")
        for text in dict.fromkeys(mistakes):
            said.setdefault(text, []).append(number)
    for text, numbers in said.items():
        if len(numbers) == len(jobs):
            found.append(text)
        elif len(numbers) == 1:
            found.append(f"Job {numbers[0]} ({names[numbers[0]]}): {text}")
        else:
            found.append(f"Jobs {', '.join(map(str, numbers))} of 0 to {len(jobs) - 1}: {text}")
    if found:
        raise ConfigError(list(dict.fromkeys(found)))
    bare = [_without_hydra(config) for config in configs]
    return Request(verb, argv, args.overrides, bare, configs[0].hydra, multirun, only_shown)


def refuse(error: ConfigError, verb: str | None = None) -> NoReturn:
    """Show the mistakes on stderr and exit with code 2; HYDRA_FULL_ERROR=1 adds the traceback."""
    if os.environ.get("HYDRA_FULL_ERROR") == "1":
        traceback.print_exception(error)
    stem = Path(sys.argv[0]).stem
    name = f"imagenet_ddp.{verb or stem}" if verb or stem in schema.VERBS else "imagenet_ddp"
    count = len(error.mistakes)
    lines = [f"{name}: {count} mistake{'s' if count > 1 else ''}, nothing was started"]
    for number, text in enumerate(error.mistakes, 1):
        lines += ["", *_wrapped(text, f"{number:2}. ")]
    print("\n".join(lines), file=sys.stderr)
    sys.exit(2)


def semantic(
    config: DictConfig,
    environ: Mapping[str, str],
    verb: str,
    *,
    typed: Sequence[str] = (),
    multirun: bool = False,
    partial: bool = False,
) -> list[str]:
    """Sentences for a config that composed: keys unknown to the schema, values, folders, launcher, classes by _target_.

    config: without the hydra node. typed: the options as typed, for the line to type instead.
    partial: a checkpoint fills in what is not typed, so keys of data and learning are looked at one by one only.
    """
    found: list[str] = []
    broken: set[str] = set()
    plain = _plain(config, "", found, broken)
    keys = known_keys(verb)
    plain = _fitted(plain, schema.VERBS[verb], "", found, broken, keys)
    trainer = plain["trainer"]
    found += [unknown(f"trainer.{key}", keys) for key in trainer if f"trainer.{key}" not in keys]
    for key, (allowed, _) in trainer_keys.ACCEPTED.items():
        if f"trainer.{key}" in broken:  # said already: go on with any value that fits
            trainer[key] = next(value for value in ("auto", 1, False, 1.0, None) if allowed.accepts(value))
    found += trainer_keys.mistakes(trainer)
    found += data_check.mistakes(plain, environ, verb=verb, partial=partial)
    found += learning_check.mistakes(plain, environ, partial=partial)
    found += distributed_check.mistakes(plain, environ, verb=verb, typed=typed, multirun=multirun)
    found += run_check.mistakes(plain, environ, verb=verb)
    found += _targets(plain, plain["allow_targets"])
    return found


def merge(
    stored: Mapping[str, Any], composed: DictConfig, typed: Iterable[str], afresh: Iterable[str] = ()
) -> DictConfig:
    """A checkpoint's config with what was typed on top. Neither argument is changed.

    stored: plain and resolved; keys unknown to composed are ignored, as they are of another version of this package.
    typed: options; each one's key is taken from composed, a group's choice (data=stl10) with its whole subtree, and
    experiment= or recipe= take everything but the name. afresh: further key paths to take from composed.
    """
    merged = copy.deepcopy(composed)
    with open_dict(merged):
        _lay_over(merged, stored)
        for override in OverridesParser.create().parse_overrides(list(typed)):
            group = override.key_or_group.split("/")[0]
            if override.is_hydra_override() or group == "hydra":
                continue
            if group in ("experiment", "recipe"):
                name = merged.name if "name" in stored else None
                merged = copy.deepcopy(composed)
                OmegaConf.set_struct(merged, False)
                if name is not None:
                    merged.name = name
                continue
            _take(merged, composed, override.package or group)
        # once more, because experiment= takes everything: name= may have been typed before it
        for path in [*afresh, *(["name"] if any(re.match(r"\+*name=", line) for line in typed) else [])]:
            _take(merged, composed, path)
    OmegaConf.set_struct(merged, True)
    return merged


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


def _options(argv: list[str], keys: Mapping[str, Any]) -> tuple[argparse.Namespace, list[str], list[str]]:
    """(Hydra's options, argv for Hydra, mistakes). key=value may stand on either side of an option such as -m."""
    parser = get_args_parser()
    parser.error = _raise  # type: ignore[method-assign]
    try:
        args, rest = parser.parse_known_args(argv)
    except _OptionError as error:
        hint = "`--hydra-help` lists the options that begin with -."
        raise ConfigError(f"the command line cannot be read: {error}. HINT: {hint}") from error
    found = []
    for token in [token for token in rest if token.startswith("-")]:
        behind = argv[argv.index(token) + 1 :][:1]
        if "=" not in token and behind and "=" not in behind[0] and not behind[0].startswith("-"):  # --lr 0.1
            args.overrides = [line for line in args.overrides if line != behind[0]]
            rest = [line for line in rest if line != behind[0]]
            token = f"{token}={behind[0]}"
        name, _, value = token.lstrip("-").partition("=")
        close = closest(name.replace("-", "_"), keys)
        hint = f"did you mean {close[0]}={value or 'VALUE'}?" if close else "options are typed as key=value."
        found.append(f"{token} is not an option. HINT: {hint}")
    if late := [token for token in rest if not token.startswith("-")]:
        # argparse gives up on words behind an option in the middle; Hydra would refuse them
        args.overrides = [*args.overrides, *late]
        words = list(args.overrides)
        flags = [token for token in argv if not (token in words and not words.remove(token))]
        argv = [*args.overrides, *flags]
    commands = [f"--{name}" for name in ("run", "multirun", "cfg", "info") if getattr(args, name)]
    if len(commands) > 1:
        found.append(f"only one of {', '.join(commands)} can be meant. HINT: leave the others out.")
    if args.resolve and not args.cfg and not args.help:
        found.append("--resolve belongs to --cfg. HINT: --cfg job --resolve.")
    if args.config_path is not None:
        found.append("--config-path would replace this program's conf/. HINT: --config-dir FOLDER adds a folder to it.")
    if args.config_dir is not None and not Path(args.config_dir).is_dir():
        where = Path(args.config_dir).absolute()
        found.append(f"--config-dir is expected to be a folder, but {where} is none. HINT: --config-dir FOLDER.")
        args.config_dir = None
    if args.experimental_rerun is not None:
        found.append("--experimental-rerun is not supported. HINT: resume=auto goes on with a run.")
    return args, argv, found


# ---- keys --------------------------------------------------------------------------------------------------------


def known_keys(verb: str) -> dict[str, Any]:
    """Every key path that may be typed -> its type (None for the Trainer's, which `trainer_keys` knows)."""
    keys = dict(_flat(schema.VERBS[verb], ""))
    return keys | {f"trainer.{key}": None for key in [*trainer_keys.ACCEPTED, *trainer_keys.REFUSED]}


def _flat(node: type, prefix: str) -> Iterable[tuple[str, Any]]:
    for name, kind in typing.get_type_hints(node).items():
        yield prefix + name, kind
        if dataclasses.is_dataclass(kind):
            yield from _flat(typing.cast(type, kind), f"{prefix}{name}.")


def closest(key: str, keys: Iterable[str]) -> list[str]:
    """The known keys that may be meant, best first; empty where none is near."""
    key = key.lower()
    last = key.rpartition(".")[2]
    keys = list(keys)
    if same := [known for known in keys if known.rpartition(".")[2] == last]:
        return sorted(same, key=lambda known: known.partition(".")[0] != key.partition(".")[0])[:2]
    if ALIASES.get(last) in keys:
        return [ALIASES[last]]
    if near := get_close_matches(key, [known for known in keys if "." in known], 1, 0.75):
        return near
    ends = {known.rpartition(".")[2]: known for known in reversed(keys)}
    return [ends[end] for end in get_close_matches(last, ends, 1, 0.7)]


def unknown(key: str, keys: Iterable[str], where: str = "") -> str:
    """The sentence for a key that no schema knows. where: " (in experiment/mine.yaml)"."""
    close = [known for known in closest(key, keys) if known != key]
    hint = f"did you mean {' or '.join(close)}?" if close else "`--cfg job` lists all keys."
    return f"{key} is not a known key{where}. HINT: {hint}"


def _kind(annotation: Any) -> tuple[Any, bool]:
    """(type without Optional, whether null is allowed); list[float] stays list[float]."""
    options = typing.get_args(annotation)
    if type(None) in options:
        return next(option for option in options if option is not type(None)), True
    return annotation, False


def _words(annotation: Any) -> str:
    kind, nullable = _kind(annotation)
    if typing.get_origin(kind) is list:
        numbers = typing.get_args(kind) == (float,)
        words = "a list of numbers such as [0.5,0.5,0.5]" if numbers else "a list such as [a,b]"
    else:
        words = _TYPE_WORDS.get(typing.get_origin(kind) or kind, "another value")
    return words + (" or null" if nullable else "")


# ---- composing ---------------------------------------------------------------------------------------------------


class Composer:
    """Hydra's own reader and loader for one verb, asked option by option where they refuse the whole."""

    def __init__(self, verb: str, config_name: str, config_dir: str | None):
        version.setbase("1.3")
        setup_globals()
        JobRuntime().set("name", verb)
        search_path = create_config_search_path(str(schema.conf_dir()))
        if config_dir is not None:
            path, behind_schema = f"file://{Path(config_dir).absolute()}", SearchPathQuery(provider="schema")
            search_path.prepend(provider="command-line", path=path, anchor=behind_schema)
        self.config_name = config_name
        self.schema = schema.VERBS[verb]
        self.keys = known_keys(verb)
        self.loader = ConfigLoaderImpl(search_path)
        self.parser = OverridesParser.create(config_loader=self.loader)

    # -- reading

    def read(self, lines: Sequence[str], *, sweeps: bool) -> tuple[list[Override], list[str]]:
        """(what Hydra's grammar can read, mistakes). Where a quoted form is proposed, the checks go on with that."""
        overrides, found = [], []
        for line in lines:
            override = self._parsed(line)
            if override is None or not override.key_or_group:
                text, proposal = self._unreadable(line)
                found.append(text)
                override = self._parsed(proposal) if proposal else None
            elif override.is_sweep_override() and not sweeps:
                text, proposal = self._sweep_without_m(line, override)
                found.append(text)
                override = self._parsed(proposal) if proposal else None
            elif override.is_sweep_override() and override.is_hydra_override():
                found.append(f"{line}: Hydra's own keys cannot be swept. HINT: one value for {override.key_or_group}.")
                override = None
            if override is not None:
                overrides.append(override)
        return overrides, found

    def _parsed(self, line: str) -> Override | None:
        try:
            return self.parser.parse_overrides([line])[0]
        except HydraException:
            return None

    def _unreadable(self, line: str) -> tuple[str, str | None]:
        """(sentence, the form that can be read and means the same)."""
        key, equals, value = line.partition("=")
        bare = key.lstrip("+~")
        if not equals or not bare:
            close = closest(bare or value, self.keys)
            hint = (
                f"did you mean {close[0]}={bare if close[0].rpartition('.')[2] != bare else 'VALUE'}?" if close else ""
            )
            return f"{shlex.quote(line)} is expected to be key=value. HINT: {hint or '`--help` shows examples.'}", None
        if bare not in self.keys and not re.fullmatch(r"[\w./@:$-]+", bare, re.ASCII):
            return unknown(bare, self.keys), None
        kind = _kind(self.keys.get(bare, str))[0]
        if kind is not str and kind is not Any:
            words = _words(self.keys[bare]) if self.keys[bare] is not None else "a value of Lightning's Trainer"
            return (
                f"{bare} is expected to be {words}, but cannot be read: {value}. HINT: set {self._hint(bare)}.",
                None,
            )
        if value.startswith("~"):  # no shell expands it there
            value = str(Path(value).expanduser())
            if self._parsed(f"{key}={value}") is not None:
                return f"{line}: ~ is not expanded there. HINT: {shlex.quote(f'{key}={value}')}", f"{key}={value}"
        proposal = f"{key}={QuotedString(value, Quote.double).with_quotes()}"
        if "${" in value or self._parsed(proposal) is None:
            return (
                f"{shlex.quote(line)} cannot be read by Hydra's grammar. HINT: put the value in quotes of its own.",
                None,
            )
        return (
            f"{line} cannot be read by Hydra's grammar, which wants special characters quoted. "
            f"HINT: `{shlex.quote(proposal)}`",
            proposal,
        )

    def _sweep_without_m(self, line: str, override: Override) -> tuple[str, str | None]:
        key, _, value = line.partition("=")
        bare = key.lstrip("+~")
        one_by_one = "add -m to run one after the other"
        text = f"{line} has several values, but -m is not set. HINT: "
        if override.value_type != ValueType.SIMPLE_CHOICE_SWEEP or self.loader.repository.group_exists(bare):
            return f"{text}{one_by_one}.", None
        kind = _kind(self.keys.get(bare, str))[0]
        listed = f"`{shlex.quote(f'{key}=[{value}]')}`"
        if bare == "trainer.devices":
            return f"{text}{listed} for GPUs {value.replace(',', ' and ', 1)} together, or {one_by_one}.", None
        if typing.get_origin(kind) is list:
            return f"{text}{listed}, or {one_by_one}.", f"{key}=[{value}]"
        if kind is str:
            proposal = f"{key}={QuotedString(value, Quote.double).with_quotes()}"
            return f"{text}`{shlex.quote(proposal)}` for one value with a comma, or {one_by_one}.", proposal
        return f"{text}{one_by_one}.", None

    # -- jobs

    def jobs(self, overrides: list[Override]) -> tuple[list[list[Override]], list[str], list[str]]:
        """(overrides of each job of a sweep, what tells it from the others, mistakes).

        Another sweeper than Hydra's own chooses its values later: then there is one job, without what is swept.
        """
        fixed = [override for override in overrides if not override.is_sweep_override()]
        config, _ = self.compose(fixed, RunMode.MULTIRUN)
        sweeper = config.hydra.sweeper
        if OmegaConf.is_missing(config.hydra, "sweeper") or not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
            return [fixed], [""], []
        for_hydra = [override for override in overrides if override.is_hydra_override()]
        swept = [override for override in overrides if not override.is_hydra_override()]
        try:
            params = [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()]
            batch = BasicSweeper.split_arguments(self.parser.parse_overrides(params) + swept, None)[0]
        except HydraException as error:
            return (
                [fixed],
                [""],
                [f"the sweep cannot be made: {_first_line(error)} HINT: a,b,c or range(1,4) as values."],
            )
        common = set.intersection(*map(set, batch))
        names = [" ".join(line for line in lines if line not in common) for lines in batch]
        return [[*for_hydra, *self.parser.parse_overrides(lines)] for lines in batch], names, []

    # -- composing

    def compose(self, overrides: list[Override], mode: RunMode = RunMode.RUN) -> tuple[DictConfig, list[str]]:
        """(the config of all options that Hydra takes, mistakes for the others)."""
        try:
            return self._load(overrides, mode), self._dropped(overrides)
        except Exception:  # whatever it is, it is looked for option by option
            pass
        found = self._dropped(overrides)
        search = [override for override in overrides if override.key_or_group == "hydra.searchpath"]
        kept = list(search)
        try:
            config = self._load(kept, mode)
        except MissingConfigException as error:
            hint = "HINT: --config-dir FOLDER, where it lies, or leave --config-name out."
            raise ConfigError(f"the configuration cannot be composed: {_first_line(error)} {hint}") from error
        except Exception as error:
            raise ConfigError(f"the configuration cannot be composed: {self._inside(error, 'config')}") from error
        repository = self.loader._parse_overrides_and_create_caching_repo(self.config_name, _lines(kept))[1]
        choices = [
            o for o in overrides if "@" in _line(o) or (repository.group_exists(o.key_or_group) and not _is_dict(o))
        ]
        values = [o for o in overrides if not any(o is other for other in [*choices, *search])]
        try:
            config, kept = self._load(kept + choices, mode), kept + choices
        except Exception:
            for override in choices:
                try:
                    config = self._load([*kept, override], mode)
                    kept.append(override)
                except Exception as error:
                    options = repository.get_group_options(override.key_or_group)
                    found.append(self._refused_choice(override, options, error))
                    if close := get_close_matches(str(override.value()), options, 1):
                        # go on as if that had been typed, so that what hangs on it is looked at too
                        meant = self._parsed(f"{override.key_or_group}={close[0]}")
                        try:
                            config = self._load([*kept, meant], mode) if meant else config
                            kept += [meant] if meant else []
                        except Exception:
                            pass
        for override in values:
            try:
                ConfigLoaderImpl._apply_overrides_to_config([override], config)
            except Exception as error:
                found.append(self._refused_value(override, error))
        return config, found

    def _load(self, overrides: list[Override], mode: RunMode) -> DictConfig:
        return self.loader.load_configuration(self.config_name, _lines(overrides), mode)

    def _dropped(self, overrides: list[Override]) -> list[str]:
        """The recipe is optional, so that own data need none; Hydra would drop a mistyped one in silence."""
        options = self.loader.repository.get_group_options("recipe")
        typed = [override for override in overrides if override.key_or_group == "recipe" and not override.is_delete()]
        return [
            self._refused_choice(override, options, MissingConfigException("no such recipe"))
            for override in typed
            if isinstance(override._value, str) and override._value not in options
        ]

    def _refused_choice(self, override: Override, options: list[str], error: Exception) -> str:
        """A choice in a group (data=...) that did not compose."""
        group, value = override.key_or_group, override.value() if not override.is_delete() else None
        if override.is_delete():
            none = f" HINT: {group}=none." if "none" in options else f" HINT: leave {_line(override)} out."
            return f"{group} is needed and cannot be deleted.{none}"
        if isinstance(value, str) and value in options:
            if override.is_add():
                return f"{_line(override)}: {group} is chosen already. HINT: {group}={value}, without +."
            if "Could not override" in str(error):
                return f"{_line(override)} cannot be composed: {_first_line(error)} HINT: leave it out."
            return f"{_line(override)} cannot be composed: {self._inside(error, group + '/' + value)}"
        if isinstance(error, MissingConfigException) or not isinstance(value, str):
            close = get_close_matches(str(value), options, 1)
            hint = f"set {group}={close[0] if close else 'none' if 'none' in options else (options or ['NAME'])[0]}"
            if not close and group in ("experiment", "recipe"):
                hint = "leave it out"
            if group == "model" and value in CLASSIFIERS:
                hint = f"set model.name={value}"
            elif not close and f"{group}._target_" in self.keys:
                hint += f", or {group}._target_=PACKAGE.CLASS for your own"
            return f"{group} is expected to be one of {', '.join(options)}, but is {shown(value)}. HINT: {hint}."
        return f"{_line(override)} cannot be composed: {_first_line(error)} HINT: leave it out."

    def _refused_value(self, override: Override, error: Exception) -> str:
        """A key=value that could not be laid over the composed config."""
        key, line = override.key_or_group, _line(override)
        parent, _, last = key.rpartition(".")
        cause = error.__cause__ or error
        if override.is_delete():
            if key in self.keys:
                return f"{key} is needed and cannot be deleted. HINT: leave {line} out."
            return unknown(key, self.keys)
        value = override.value()
        if parent == "trainer" and last in trainer_keys.REFUSED:
            return trainer_keys.refusal(last, value)
        if isinstance(value, dict) and key in {known.partition(".")[0] for known in self.keys}:
            return f"{line} does not fit: {_first_line(cause)} HINT: one by one, {key}.KEY=VALUE."
        annotation = self.keys.get(key)
        if annotation is not None and dataclasses.is_dataclass(_kind(annotation)[0]):
            hint = f"{key}.name={value}" if f"{key}.name" in self.keys and value is not None else f"{key}.KEY=VALUE"
            return f"{key} is expected to be a group of keys, but is {shown(value)}. HINT: set {hint}."
        if annotation is not None:
            return f"{key} is expected to be {_words(annotation)}, but is {shown(value)}. HINT: set {self._hint(key)}."
        if "could not be converted" in str(cause) or "Invalid" in str(cause) or "not Optional" in str(cause):
            return f"{line}: {_first_line(cause)} HINT: `--cfg all` shows the key as it is."
        if key.startswith("hydra."):
            return f"{key} is not a known key of Hydra. HINT: `--cfg hydra` lists them."
        if any(key.startswith(f"{free}.") for free in ("callbacks", "logger", "data.args", "model.args", "optim.args")):
            first = f", or choose {key.partition('.')[0]}=NAME first" if "." in key and ".args" not in key else ""
            return f"{key} is not there to be changed. HINT: +{line} adds it{first}."
        return unknown(key, self.keys)

    def _hint(self, key: str) -> str:
        """key=its default, or an example."""
        if key == "allow_targets":
            return "'allow_targets=[mypkg]'"
        parent, _, last = key.rpartition(".")
        if parent == "trainer" and last in trainer_keys.ACCEPTED:
            return f"{key}={trainer_keys.ACCEPTED[last][1]}"
        cls = self.keys.get(parent) if parent else self.schema
        default = getattr(cls, last, None) if last != "name" else "resnet18" if parent == "model" else "NAME"
        if default is None and dataclasses.is_dataclass(cls):
            default = getattr(typing.cast(Any, cls)(), last, None)
        return f"{key}={'VALUE' if default is None or default == '???' else shown(default)}"

    def _inside(self, error: Exception, name: str) -> str:
        """A mistake in a file: of the person's own --config-dir, as conf/ itself is tested."""
        text = str(error)
        where = re.search(r"In '([^']+)'", text)
        file = f" (in {where.group(1) if where else name}.yaml)"
        if unknown_key := re.search(r"Key '[^']*' (?:is )?not in .*?full_key: (\S+)", text, re.DOTALL):
            return unknown(unknown_key.group(1), self.keys, file)
        full_key = re.search(r"full_key: (\S+)", text)
        first, *others = text.splitlines() or [type(error).__name__]
        reason = re.sub(r"^In '[^']+': ", "", first)
        if reason.endswith("raised while composing config:"):
            reason = next((line for line in others if line.strip()), reason)
        return f"{full_key.group(1) + ': ' if full_key else ''}{reason.strip()}{file}. HINT: correct that file."


def _line(override: Override) -> str:
    return override.input_line or ""


def _lines(overrides: list[Override]) -> list[str]:
    return [_line(override) for override in overrides]


def _is_dict(override: Override) -> bool:
    return isinstance(override._value, dict)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".") + "."


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
                found.append(f"{path} is needed, but not set. HINT: {_MISSING_HINTS[path]}.")
            plain[key] = None
            continue
        try:
            value = typing.cast(Any, node)[key]
        except OmegaConfBaseException as error:
            broken.add(path)
            if not isinstance(error, InterpolationToMissingValueError):  # there the missing key itself is said
                hint = "HINT: ${data.name} stands for a key, ${oc.env:HOME} for a variable."
                found.append(f"{path}={raw[key]} does not resolve: {_first_line(error)} {hint}")
            continue
        plain[key] = _plain(value, f"{path}.", found, broken)
    return plain if isinstance(node, DictConfig) else list(plain.values())


def _fitted(
    node: Mapping[str, Any], cls: type, prefix: str, found: list[str], broken: set[str], keys: Mapping[str, Any]
) -> dict[str, Any]:
    """The node with the schema's keys and no other; what is said, and filled in, is what is deleted or unknown."""
    fitted: dict[str, Any] = {}
    found += [unknown(prefix + str(key), keys) for key in node if prefix + str(key) not in keys]
    for field in dataclasses.fields(cls):
        path = prefix + field.name
        kind = keys[path]
        if field.name not in node and path not in broken:
            found.append(
                f"{path} is needed, but missing. HINT: --config-name wants a file with defaults: [train, _self_]."
            )
        if dataclasses.is_dataclass(kind):
            inner = node.get(field.name)
            inner = inner if isinstance(inner, Mapping) else dataclasses.asdict(typing.cast(Any, kind)())
            fitted[field.name] = _fitted(inner, typing.cast(type, kind), f"{path}.", found, broken, keys)
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
                f"{path}_target_ is expected to begin with one of {', '.join([*ALLOWED_TARGETS, *extra])}, "
                f"but is {target}. HINT: where you trust that package: `{allow}`"
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
        is_typed = any(str(line).startswith(key) for line in config.hydra.overrides.hydra)
        return [f"{key} does not resolve: {_first_line(error)} HINT: {key}=FOLDER."] if is_typed else []
    there = next(place for place in (folder, *folder.parents) if place.exists())
    if there.is_dir() and os.access(there, os.W_OK | os.X_OK):
        return []
    what = "cannot be written in" if there.is_dir() else "is a file"
    return [f"{key} is expected to be a folder that can be made ({folder}), but {there} {what}. HINT: {key}=FOLDER."]


# ---- merging -----------------------------------------------------------------------------------------------------


def _lay_over(node: DictConfig, stored: Mapping[str, Any]) -> None:
    """Copy into the node what it has a key for; a value that no longer fits its type is left as composed."""
    for key, value in stored.items():
        if key not in node:
            continue
        typed_node = isinstance(value, Mapping) and dataclasses.is_dataclass(OmegaConf.get_type(node, key))
        try:
            if typed_node:
                _lay_over(node[key], value)
            elif key == "trainer" and isinstance(value, Mapping):
                for name in trainer_keys.ACCEPTED.keys() & value.keys():
                    node[key][name] = value[name]
            else:
                node[key] = value
        except OmegaConfBaseException:
            continue


def _take(merged: DictConfig, composed: DictConfig, path: str) -> None:
    """Copy one key path, or delete it where composed has none."""
    parent, _, last = path.rpartition(".")
    source = OmegaConf.select(composed, parent) if parent else composed
    if not isinstance(source, DictConfig) or last not in source._content:  # type: ignore[operator]
        target = OmegaConf.select(merged, parent) if parent else merged
        if isinstance(target, DictConfig) and last in target:
            target.pop(last)
        return
    value = copy.deepcopy(source._get_node(last))
    OmegaConf.update(merged, path, value, merge=False, force_add=True)


# ---- showing -----------------------------------------------------------------------------------------------------


def _wrapped(text: str, head: str) -> list[str]:
    """80 columns, the hint on a line of its own; what stands in backticks or quotes is never broken."""
    glued = re.sub(r"`[^`]*`", lambda match: match.group().replace(" ", "\0"), text)
    lines = []
    for part in re.split(r" (?=HINT: )", glued):
        indent = " " * len(head)
        lines += textwrap.wrap(
            part,
            80,
            initial_indent=indent if lines else head,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return [line.replace("\0", " ") for line in lines]
