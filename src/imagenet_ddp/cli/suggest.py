"""Every key that may be typed, and what a mistyped one may have meant. No torch."""

import dataclasses
import typing
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

from imagenet_ddp.cli import known_terms
from imagenet_ddp.config import schema, trainer_options
from imagenet_ddp.distributed.network import nccl_names
from imagenet_ddp.distributed.strategies import ddp_options

_TYPE_WORDS = {int: "an integer", float: "a number", bool: "true or false", str: "text", dict: "a group of keys"}


def known_keys(verb: str) -> dict[str, Any]:
    """Every key path that may be typed -> its type (None for the Trainer's, which `trainer_keys` knows)."""
    keys = dict(_flat(schema.VERBS[verb], ""))
    return keys | {f"trainer.{key}": None for key in [*trainer_options.ACCEPTED, *trainer_options.REFUSED]}


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
    if (known := known_terms.key_for(last)) in keys:
        return [known]
    if near := get_close_matches(key, [known for known in keys if "." in known], 1, 0.75):
        return near
    ends = {known.rpartition(".")[2]: known for known in reversed(keys)}
    return [ends[end] for end in get_close_matches(last, ends, 1, 0.7)]


def unknown(key: str, keys: Iterable[str], where: str = "") -> str:
    """The sentence for a key that no schema knows. where: " (in experiment/mine.yaml)"."""
    if text := ddp_options.answer(key, where) or nccl_names.answer(key, where):
        return text
    if key.split(".")[0] == "saving":
        return f"{key} is not a known key{where}. Hint: callbacks.checkpoint.every_n_epochs=10."
    close = [known for known in closest(key, keys) if known != key]
    hint = f"did you mean {' or '.join(close)}?" if close else "`--cfg job` lists all keys."
    return f"{key} is not a known key{where}. Hint: {hint}"


def kind_of(annotation: Any) -> tuple[Any, bool]:
    """(type without Optional, whether null is allowed); list[float] stays list[float]."""
    options = typing.get_args(annotation)
    if type(None) in options:
        return next(option for option in options if option is not type(None)), True
    return annotation, False


def words_for(annotation: Any) -> str:
    kind, nullable = kind_of(annotation)
    if dataclasses.is_dataclass(kind):
        return _TYPE_WORDS[dict]
    if typing.get_origin(kind) is list:
        numbers = typing.get_args(kind) == (float,)
        words = "a list of numbers such as [0.5,0.5,0.5]" if numbers else "a list such as [a,b]"
    else:
        words = _TYPE_WORDS.get(typing.get_origin(kind) or kind, "another value")
    return words + (" or null" if nullable else "")
