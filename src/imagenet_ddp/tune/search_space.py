"""Read the search space, a tree of train's keys with a range or a list of choices each. Does not import torch."""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Quote, QuotedString
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp.cli import check_config
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.config.section import FREE_KEYS
from imagenet_ddp.config.validators import shown
from imagenet_ddp.mistakes import Mistake, key_of, setting
from imagenet_ddp.system.text import first_sentence

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

RANGE = {"low", "high", "log", "step"}
# Keys that only determine where a trial runs or what it is called, not how well it learns.
NOT_SEARCHED = ("trainer.devices", "trainer.num_nodes", "trainer.accelerator", "cluster", "nccl", "resume", "sweep",
                "name", "allow_targets", "tune", "search")  # fmt: skip


@dataclass(frozen=True)
class Parameter:
    """A searched key. entry: {low, high, log, step} or a list of choices, as written."""

    key: str
    entry: Any
    distribution: "BaseDistribution"

    @property
    def values_to_check(self) -> Sequence[Any]:
        """Both ends of a range, or every choice. They are validated before anything starts."""
        return self.entry if isinstance(self.entry, list) else (self.entry["low"], self.entry["high"])

    def option(self, label: Any) -> str:
        """Format a value as a command line option, a float with four digits. label: the value that Optuna suggests."""
        distribution: Any = self.distribution
        if isinstance(self.entry, list):
            text = quote(self.entry[distribution.choices.index(label)])
        else:
            text = f"{label:.4g}" if isinstance(label, float) else str(label)
        return f"{'++' if self.key.startswith(FREE_KEYS) else ''}{self.key}={text}"


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


def as_overrides(argv: Sequence[str]) -> list[str]:
    """Rewrite search.KEY=... for Hydra, which needs ++ for keys that the space lacks. A range or a list replaces what
    the space has; without null before it, Hydra would merge the two."""
    found: list[str] = []
    for token in argv:
        key, _, value = token.lstrip("+").partition("=")
        if not key.startswith("search."):
            found.append(token)
            continue
        found += [f"++{key}=null"] if value[:1] in ("[", "{") else []
        found.append(f"++{key}={value}")
    return found


def read(search: Mapping[str, Any], typed: Sequence[str]) -> tuple[list[Parameter], list[Mistake]]:
    """Return (parameters, mistakes). search: search.* as a plain mapping. typed: the options for train."""
    parameters: list[Parameter] = []
    found: list[Mistake] = []
    fixed = set(map(key_of, typed))
    for key, entry in _entries(search, ""):
        try:
            parameters.append(_parameter(key, entry, fixed))
        except (TypeError, ValueError) as error:
            ways = f"`'search.{key}={{low:A,high:B}}'`, `'search.{key}=[A,B]'`"
            hint = f"type {ways}, or `search.{key}=null` to leave it out"
            found.append(
                Mistake(f"search.{key}={shown(entry)} cannot be searched: {error}", (f"search.{key}",), hint=hint)
            )
    if not parameters and not found:
        ways = setting("search=auto"), setting("search.optim.lr={low:0.01,high:1,log:true}")
        found.append(Mistake("the search space is empty", ("search",), ways))
    return parameters, found


def _entries(node: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, inner in node.items():
        if isinstance(inner, Mapping) and not RANGE & inner.keys():
            yield from _entries(inner, f"{prefix}{name}.")
        elif inner is not None:
            yield f"{prefix}{name}", inner


def _parameter(key: str, entry: Any, fixed: set[str]) -> Parameter:
    """Raises ValueError or TypeError, partly Optuna's own, if the entry is not valid."""
    from optuna import distributions

    if key in NOT_SEARCHED or key.partition(".")[0] in NOT_SEARCHED:
        raise ValueError("it must be the same for all trials")
    if key in fixed:
        raise ValueError(f"{key} is also typed")
    if isinstance(entry, list):
        plain = (bool, int, float, str, type(None))  # types that Optuna can store; other choices are stored as text
        labels = [choice if isinstance(choice, plain) else shown(choice) for choice in entry]
        return Parameter(key, entry, distributions.CategoricalDistribution(labels))
    if not isinstance(entry, Mapping):
        raise TypeError("it is neither a range nor a list")
    declaration = declared("train").get(key)
    is_whole = all(isinstance(value, int) for value in entry.values()) and not (
        declaration and declaration.type is float
    )
    with warnings.catch_warnings(action="ignore"):  # Optuna warns when it lowers high to the last step
        made = (distributions.IntDistribution if is_whole else distributions.FloatDistribution)(**entry)
    return Parameter(key, entry, made)


def check_values(
    parameters: Sequence[Parameter], config: DictConfig, environ: Mapping[str, str], typed: Sequence[str]
) -> list[Mistake]:
    """Return the mistakes that train would report for the ends of each range and for each choice. config: that of
    train, without mistakes."""
    found: list[Mistake] = []
    for parameter in parameters:
        for value in parameter.values_to_check:
            changed = config.copy()
            try:
                with open_dict(changed):
                    OmegaConf.update(changed, parameter.key, value, merge=False, force_add=True)
                mistakes = check_config.check(changed, environ, "train", typed)[0]
            except OmegaConfBaseException as error:
                mistakes = [Mistake(f"{parameter.key}={shown(value)}: {first_sentence(error)}", (parameter.key,))]
            found += [replace(mistake, what=f"search.{parameter.key}: {mistake.what}") for mistake in mistakes]
    return list(dict.fromkeys(found))
