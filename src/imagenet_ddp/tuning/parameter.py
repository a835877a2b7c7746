"""One searched key: its range or choices, and what is wrong with them. No torch, no Optuna."""

import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Quote, QuotedString

from imagenet_ddp.keys import kind_of, words_for
from imagenet_ddp.trainer_keys import FLAG, number, shown

RANGE = ("low", "high", "log", "step")
WORDS = (*RANGE, "choices")
# Below these anything may stand: keyword arguments of the person's own classes.
FREE = ("data.args.", "model.args.", "optim.args.", "callbacks.", "logger.")


@dataclass(frozen=True)
class Parameter:
    """A range (low to high, both included) or choices."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    step: float | None = None
    whole: bool = False  # whole numbers
    choices: tuple[Any, ...] = ()

    @property
    def labels(self) -> tuple[Any, ...]:
        """The choices as Optuna can store them: lists as text."""
        return tuple(
            value if value is None or isinstance(value, bool | int | float | str) else shown(value)
            for value in self.choices
        )

    @property
    def ends(self) -> tuple[Any, ...]:
        """The values that train is asked about before anything starts."""
        return self.choices or (self.low, self.high)

    @property
    def plain(self) -> dict[str, Any]:
        if self.choices:
            return {"choices": list(self.choices)}
        more = {"log": True} if self.log else {"step": self.step} if self.step is not None else {}
        return {"low": self.low, "high": self.high, **more}

    def option(self, label: Any) -> str:
        """As it is typed to train. label: a number of the range, or one of the labels."""
        value = self.choices[self.labels.index(label)] if self.choices else label
        return f"{'++' if self.key.startswith(FREE) else ''}{self.key}={in_grammar(value)}"


def in_grammar(value: Any) -> str:
    """A value as Hydra's grammar reads it back."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{key}:{in_grammar(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(in_grammar, value)) + "]"
    plain_text = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w./-]*", value, re.ASCII)
    if isinstance(value, str) and (not plain_text or value.lower() in ("null", "true", "false", "nan", "inf")):
        return QuotedString(value, Quote.single).with_quotes()
    return shown(value)


def parameter(key: str, entry: Mapping[str, Any], annotation: Any) -> tuple[Parameter | None, list[str]]:
    """(None, why not) where the entry makes no range and no choices. annotation: train's type of the key."""
    entry = {word: value for word, value in entry.items() if value is not None}
    here = f"search.{key}"
    if others := [str(word) for word in entry if word not in WORDS]:
        return None, [f"{here}.{others[0]} is not known. HINT: {', '.join(RANGE)}, or choices."]
    if "choices" in entry:
        if len(entry) > 1:
            more = ", ".join(word for word in entry if word != "choices")
            return None, [f"{here} has choices and {more} too. HINT: leave one of them out, or set it to null."]
        return _choices(key, entry["choices"])
    kind = kind_of(annotation)[0] if annotation is not None else typing.Any
    if kind not in (int, float, typing.Any):
        return None, [f"{here} has a range, but {key} is {words_for(annotation)}. HINT: `'{here}=[A,B]'`."]
    if lacking := [word for word in ("low", "high") if word not in entry]:
        return None, [f"{here}.{lacking[0]} is needed, but not set. HINT: `'{here}={{low:0.01,high:1}}'`."]
    found = [
        f"{here}.{word} is expected to be {wanted.words}, but is {shown(entry[word])}. "
        f"HINT: set {here}.{word}={example}."
        for word, wanted, example in (
            ("low", number(above=0) if entry.get("log") is True else number(), "0.01"),
            ("high", number(), "1"),
            ("log", FLAG, "true"),
            ("step", number(above=0), "1"),
        )
        if word in entry and not wanted.accepts(entry[word])
    ]
    if found:
        return None, found
    low, high, step, log = entry["low"], entry["high"], entry.get("step"), bool(entry.get("log"))
    values = {word: entry[word] for word in ("low", "high", "step") if word in entry}
    if kind is int:
        found += [
            f"{here}.{word} is expected to be a whole number as {key} is, but is {shown(value)}. "
            f"HINT: set {here}.{word}={max(1, round(value))}."
            for word, value in values.items()
            if value != int(value)
        ]
    if low >= high:
        found.append(f"{here}.low is expected to be less than high, but they are {shown(low)} and {shown(high)}.")
    elif step is not None and step > high - low:
        found.append(f"{here}.step is expected to fit between {shown(low)} and {shown(high)}, but is {shown(step)}.")
    if log and step is not None:
        found.append(f"{here} has log and step, but only one of them can be. HINT: `{here}.step=null`.")
    if found:
        return None, found
    whole = kind is int or (kind is typing.Any and all(isinstance(value, int) for value in values.values()))
    cast = int if whole else float
    return Parameter(key, cast(low), cast(high), log, None if step is None else cast(step), whole), []


def _choices(key: str, choices: Any) -> tuple[Parameter | None, list[str]]:
    here = f"search.{key}"
    if not isinstance(choices, list) or len(choices) < 2:
        return None, [
            f"{here}.choices is expected to be a list of two values or more, but is {shown(choices)}. "
            f"HINT: `'{here}=[A,B]'`, or type {key} itself."
        ]
    texts = [shown(choice) for choice in choices]
    if twice := sorted({text for text in texts if texts.count(text) > 1}):
        return None, [f"{here}.choices holds {', '.join(twice)} twice. HINT: once is enough."]
    return Parameter(key, choices=tuple(choices)), []
