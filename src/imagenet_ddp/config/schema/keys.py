"""Look up how the keys of a command are declared, and validate their values."""

import functools
import re
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING as NO_DEFAULT
from dataclasses import dataclass, fields, is_dataclass
from types import NoneType
from typing import Any

from omegaconf import MISSING

from imagenet_ddp.config.schema import commands
from imagenet_ddp.config.section import OneOf, hints
from imagenet_ddp.config.validators import (
    FLAG,
    NULL,
    Example,
    Instead,
    Kind,
    PerMachine,
    choice,
    expect,
    integer,
    is_nothing,
    number,
    shown,
)
from imagenet_ddp.mistakes import Fix, Mistake, example, meant
from imagenet_ddp.system.text import seconds_in

_OF_TYPES = {int: integer(), float: number(), bool: FLAG}
_SECONDS = {"s": 1, "min": 60, "h": 3600}  # the end of a key -> seconds in its unit
_COMMON = ("auto", "none", "null", "true", "false")  # values that keys of any meaning have
_TYPE_WORDS = {str: "text", dict: "a group of keys", list: "a list such as [a,b]"}


@dataclass(frozen=True)
class Key:
    """One key, or a group of keys if type is a dataclass."""

    path: str
    type: Any  # int for `int | None`
    allowed: Kind | None  # None: every value of the type
    default: Any
    meaning: str
    example: str  # a value for hints; an explanation may follow it
    nullable: bool = False
    readers: tuple[str, ...] = ()  # names of the choices in its group that have this key; (): all
    reader_words: str = ""  # "step or cosine", or "any but step"
    per_machine: PerMachine | None = None
    instead: Instead | None = None

    @property
    def is_group(self) -> bool:
        return is_dataclass(self.type)

    @property
    def words(self) -> str:
        """Return the words that complete the sentence "must be ..."."""
        if self.allowed is not None:
            return self.allowed.words
        if typing.get_args(self.type) == (float,):
            return "a list of numbers such as [0.5,0.5,0.5]"
        words = _TYPE_WORDS.get(typing.get_origin(self.type) or self.type, "a group of keys")
        return words + (" or null" if self.nullable else "")

    @property
    def fix(self) -> Fix:
        """Return an allowed value to type."""
        value, _, aim = self.example.partition(" ")
        return example(f"{self.path}={value}", aim=aim)

    def fix_for(self, value: Any) -> Fix | None:
        """Return what to type for a wrong value, if it is clear what that means."""
        if self.instead and shown(value).lower() in self.instead.values:
            return Fix((self.instead.option,), (self.path,), self.instead.aim, is_meant=True)
        near = self.nearest(value)
        return meant(f"{self.path}={near}") if near else None

    def nearest(self, value: Any) -> str | None:
        """Return the allowed value, as it is typed, that a wrong one probably means; None if there is none. A number
        may have the unit that its key names, or another form of time: 3min or 0:03:00 for budget_min."""
        if self.allowed is None:
            return None
        if self.nullable and is_nothing(value):
            return "null"
        last = self.path.rpartition("_")[2]
        if last in _SECONDS and (seconds := seconds_in(str(value))):
            return self.allowed.nearest(f"{seconds / _SECONDS[last]:.10g}")
        unit = re.escape(last.removesuffix("s"))
        return self.allowed.nearest(
            re.sub(rf"(?<=\d) ?({unit}s?|px|GB?)$", "", value) if isinstance(value, str) else value
        )


@functools.cache
def declared(command: str) -> Mapping[str, Key]:
    """Return every key path of a command, groups included."""
    return of_class(commands.COMMANDS[command], "")


def is_per_machine(path: str, command: str) -> bool:
    """Return whether each machine of a run sets this key, or this entry of a dict, for itself."""
    keys, (parent, _, entry) = declared(command), path.rpartition(".")
    if path in keys:
        return keys[path].per_machine is not None
    mark = keys[parent].per_machine if parent in keys else None
    return mark is not None and re.fullmatch(mark.entries, entry) is not None


def validate_group(group: str, values: Mapping[str, Any], command: str = "train") -> list[Mistake]:
    """Return a mistake for each value of a group that is not allowed. group: "" for keys outside of any group."""
    found: list[Mistake] = []
    for path, key in declared(command).items():
        parent, _, name = path.rpartition(".")
        is_own = name == "name" and values.get("_target_")  # its name is free
        if parent == group and name in values and key.allowed is not None and not is_own:
            fixes = [_of_sibling(path, values[name], command) or key.fix_for(values[name]) or key.fix]
            if name == "name" and (own := declared(command).get(f"{group}._target_")):
                fixes.append(own.fix)
            found += expect(path, values[name], key.allowed, *fixes)
    return found


def _of_sibling(path: str, value: Any, command: str) -> Fix | None:
    """Return the fix of a value that only one other key of the same group takes: data.policy for randaugment."""
    parent = path.rpartition(".")[0]
    takers = [
        other
        for other, key in declared(command).items()
        if other.rpartition(".")[0] == parent and other != path and key.allowed and value in key.allowed.forms
    ]
    if not isinstance(value, str) or len(takers) != 1 or value in _COMMON:
        return None
    return Fix((f"{takers[0]}={value}",), (path,), said=f"set {takers[0]}={value} in place of {path}", is_meant=True)


def _meaning(group: type[OneOf], key: str, readers: Sequence[str], words: str) -> str:
    """Return the meaning of a key that some choices of a group have: "step: factor of each drop; exponential: ..."."""
    names: dict[str, list[str]] = {}  # by meaning
    for name in readers:
        text = next(extra for extra in typing.get_args(hints(group.by_name[name])[key]) if isinstance(extra, str))
        names.setdefault(text.removesuffix("."), []).append(name)
    if words.startswith("any but"):
        return f"{words}: {'; '.join(names)}."
    return "; ".join(f"{', '.join(each)}: {text}" for text, each in names.items()) + "."


def of_class(config: type, prefix: str) -> dict[str, Key]:
    """Return the key paths that a dataclass declares, groups included."""
    found: dict[str, Key] = {}
    config = vars(config).get("any_of", config)  # of a OneOf, the keys of all choices
    for field in fields(config):
        path, hint = prefix + field.name, hints(config)[field.name]
        annotated, *extras = typing.get_args(hint) if typing.get_origin(hint) is typing.Annotated else (hint,)
        types = [each for each in typing.get_args(annotated) if each is not NoneType]
        nullable = NoneType in typing.get_args(annotated)
        declared_type = types[0] if nullable else annotated
        allowed = next((extra for extra in extras if isinstance(extra, Kind)), _OF_TYPES.get(declared_type))
        if allowed is not None and nullable:
            allowed |= NULL
        default = field.default_factory() if field.default_factory is not NO_DEFAULT else field.default
        default_text = "VALUE" if default == MISSING else shown(default)
        example = next((extra.text for extra in extras if isinstance(extra, Example)), default_text)
        meaning = next((extra for extra in extras if isinstance(extra, str)), "")
        per_machine = next((extra for extra in extras if isinstance(extra, PerMachine)), None)
        instead = next((extra for extra in extras if isinstance(extra, Instead)), None)
        readers, reader_words = (), ""
        if issubclass(config, OneOf):
            readers, reader_words = config.readers(field.name)
            meaning = _meaning(config, field.name, readers, reader_words) if readers else meaning
            allowed = choice(*config.by_name) if field.name == "name" else allowed
        found[path] = Key(path, declared_type, allowed, default, meaning, example, nullable, readers, reader_words,
                          per_machine, instead)  # fmt: skip
        if is_dataclass(declared_type):
            found |= of_class(typing.cast(type, declared_type), f"{path}.")
    return found
