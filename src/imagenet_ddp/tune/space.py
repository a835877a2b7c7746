"""Read the search space, which maps keys of train to ranges or choices. Does not import torch."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import check_config
from imagenet_ddp.cli.explain import first_sentence
from imagenet_ddp.cli.known_terms import unknown
from imagenet_ddp.config.keys import Key, declared, key_of
from imagenet_ddp.config.validators import FLAG, integer, number, shown
from imagenet_ddp.errors import ConfigError

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RANGE = {"low", "high", "log", "step"}
WORDS = {*RANGE, "choices"}
# Any key below these is allowed, because they contain keyword arguments of classes named by _target_.
FREE = ("data.args.", "model.args.", "optim.args.", "callbacks.", "logger.")
# Keys that only determine where a trial runs or what it is called, not how well it learns.
NOT_SEARCHED = ("trainer.devices", "trainer.num_nodes", "trainer.accelerator", "cluster", "nccl", "resume", "sweep",
                "name", "allow_targets", "tune", "search")  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """A searched key. entry: {low, high, log, step} or {choices}, as written."""

    key: str
    entry: Mapping[str, Any]
    distribution: "BaseDistribution"

    def __str__(self) -> str:
        """Return the key with its range or choices, such as "optim.lr 0.005 to 0.5"."""
        if "choices" in self.entry:
            return f"{self.key} {' or '.join(shown(value) for value in self.entry['choices'])}"
        return f"{self.key} {shown(self.entry['low'])} to {shown(self.entry['high'])}"

    @property
    def values_to_check(self) -> Sequence[Any]:
        """Both ends of a range, or every choice. They are validated before anything starts."""
        distribution: Any = self.distribution
        return self.entry.get("choices") or (distribution.low, distribution.high)

    def option(self, label: Any) -> str:
        """Format a value as a command line option. label: the value that Optuna suggests."""
        distribution: Any = self.distribution
        value = self.entry["choices"][distribution.choices.index(label)] if "choices" in self.entry else label
        return f"{'++' if self.key.startswith(FREE) else ''}{self.key}={quote(value)}"


def quote(value: Any) -> str:
    """Quote a value so that Hydra's grammar reads it back unchanged."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{quote(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(quote, value)) + "]"
    plain_text = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value, re.ASCII)
    if isinstance(value, str) and (not plain_text or value.lower() in ("null", "true", "false", "nan", "inf")):
        return QuotedString(value, Quote.single).with_quotes()
    return shown(value)


def as_override(token: str) -> str:
    """Rewrite search.KEY=... for Hydra, which needs ++ for keys missing from the space. A list sets KEY.choices."""
    match = re.fullmatch(r"\+*(search\.[^=]+)=(.*)", token, re.DOTALL)
    if match is None:
        return token
    key, value = match.groups()
    if value.startswith("[") and key.rpartition(".")[2] not in WORDS:
        key += ".choices"
    return f"++{key}={value}"


def read(search: Mapping[str, Any], typed: Sequence[str]) -> tuple[list[Parameter], list[str]]:
    """Return (parameters, mistakes). search: search.* as a plain mapping. typed: options rewritten by `as_override`."""
    keys = declared("train")
    entries: dict[str, dict[str, Any]] = {}
    found: list[str] = []
    left_out: set[str] = set()
    for key, word, value in _leaves(search, keys, ""):
        if word:
            entries.setdefault(key, {})[word] = value
        elif value is None:
            left_out.add(key)
        else:
            found.append(f"search.{key} must be a range or a list, got {shown(value)}. {_hint(key)}")
    fixed = {key_of(option) for option in typed}
    parameters = []
    for key in (key for key in entries if key not in left_out):
        try:
            _check_searchable(key, keys, fixed)
            entry = _prefer_typed(key, entries[key], typed)
            parameters.append(Parameter(key, entry, _distribution(key, entry, keys.get(key))))
        except ConfigError as error:
            found += error.mistakes
    if not parameters and not found:
        found.append(
            "the search space is empty. Hint: type search=auto or `'search.optim.lr={low:0.01,high:1,log:true}'`."
        )
    return parameters, found


def check_values(
    parameters: Sequence[Parameter], config: DictConfig, environ: Mapping[str, str], typed: Sequence[str]
) -> list[str]:
    """Return the mistakes that train would report for the ends of each range and for each choice. config: that of
    train, without mistakes."""
    found = []
    for parameter in parameters:
        for value in parameter.values_to_check:
            changed = config.copy()
            try:
                with open_dict(changed):
                    OmegaConf.update(changed, parameter.key, value, merge=False, force_add=True)
                mistakes, _ = check_config.validate(changed, environ, "train", typed=typed)
            except OmegaConfBaseException as error:
                mistakes = [f"{parameter.key}={shown(value)}: {first_sentence(error)}"]
            found += [f"search.{parameter.key}: {text}" for text in mistakes]
    return list(dict.fromkeys(found))


def _leaves(node: Mapping[str, Any], keys: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str, Any]]:
    """Yield (key, word or "", value). A key may be written with dots, or as a tree like train's config."""
    for name, inner in node.items():
        path = f"{prefix}{name}"
        if isinstance(inner, Mapping) and inner:
            yield from _leaves(inner, keys, f"{path}.")
            continue
        parent, _, last = path.rpartition(".")
        is_word = last in WORDS or (parent in keys and not _is_group(parent, keys))
        yield (parent, last, inner) if is_word else (path, "", inner)


def _is_group(key: str, keys: Mapping[str, Any]) -> bool:
    return f"{key}." in FREE or any(known.startswith(f"{key}.") for known in keys)


def _check_searchable(key: str, keys: Mapping[str, Any], fixed: set[str]) -> None:
    if key in NOT_SEARCHED or key.partition(".")[0] in NOT_SEARCHED:
        raise ConfigError(f"search.{key}: {key} must be the same for all trials. Hint: type `search.{key}=null`.")
    if key not in keys and not key.startswith(FREE):
        raise ConfigError(f"search.{key}: {unknown(key, keys)}")
    if _is_group(key, keys):
        end = "name" if f"{key}.name" in keys else "KEY"
        raise ConfigError(f"search.{key} must be a key, got a group of keys. Hint: type `'search.{key}.{end}=[A,B]'`.")
    if key in fixed:
        raise ConfigError(
            f"{key} must be either typed or searched, got both. Hint: leave {key} out, or type `search.{key}=null`."
        )


def _prefer_typed(key: str, entry: Mapping[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    """Return the entry without the file's range if choices are typed, and without its choices if a range is typed."""
    words: set[str] = set()
    for option in typed:
        name, value = key_of(option), option.partition("=")[2]
        if name == f"search.{key}":
            words |= set(re.findall(r"(\w+)\s*:", value))
        elif name.startswith(f"search.{key}."):
            words.add(name.rpartition(".")[2])
    replaced = RANGE - words if "choices" in words else {"choices"} if words else set()
    return {word: value for word, value in entry.items() if value is not None and word not in replaced}


def _distribution(key: str, entry: Mapping[str, Any], of_train: Key | None) -> "BaseDistribution":
    """Return Optuna's distribution for a range or choices. of_train: train's declaration of the key, or None for a key
    below FREE. Raises ConfigError if the entry is not valid."""
    from optuna import distributions

    name, got = f"search.{key}", f"got {shown(entry)}"
    if set(entry) == {"choices"}:
        choices = entry["choices"]
        if not isinstance(choices, list) or len(set(map(shown, choices))) < max(2, len(choices)):
            raise ConfigError(f"{name}.choices must be a list of two or more different values, {got}. {_hint(key)}")
        plain = (bool, int, float, str, type(None))  # types that Optuna can store; other choices are stored as text
        return distributions.CategoricalDistribution(
            [choice if isinstance(choice, plain) else shown(choice) for choice in choices]
        )
    if not {"low", "high"} <= set(entry) <= RANGE:
        raise ConfigError(
            f"{name} must have low and high (and optionally log or step) or only choices, {got}. {_hint(key)}"
        )
    kind = of_train.type if of_train and of_train.type else Any
    if of_train and kind not in (int, float, Any):
        raise ConfigError(
            f"{name} must be a list, because {key} is {of_train.words}, {got}. Hint: type `'{name}=[A,B]'`."
        )
    is_whole = kind is int or (kind is not float and all(isinstance(value, int) for value in entry.values()))
    kinds = {word: FLAG if word == "log" else integer() if is_whole else number() for word in entry}
    if found := [
        f"{name}.{word} must be {kinds[word].words}, got {shown(value)}. {_hint(key)}"
        for word, value in entry.items()
        if not kinds[word].accepts(value)
    ]:
        raise ConfigError(found)
    try:
        with warnings.catch_warnings(action="ignore"):  # Optuna warns when it lowers high to the last step
            made = (distributions.IntDistribution if is_whole else distributions.FloatDistribution)(**entry)
        if made.single():
            raise ValueError("it contains only one value.")
    except ValueError as error:
        raise ConfigError(f"{name} must be a range that Optuna can search, {got}: {error} {_hint(key)}") from error
    return made


def _hint(key: str) -> str:
    return f"Hint: type `'search.{key}={{low:A,high:B}}'` or `'search.{key}=[A,B]'`."
