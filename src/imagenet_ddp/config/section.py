"""Turn plain containers into the typed objects of config/schema, and back."""

import functools
import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T", bound="Section")


class Section(Mapping[str, Any]):
    """Base of the dataclasses of config/schema. An instance is also a read-only mapping of its fields, for the code
    that spreads or flattens a group: {**config.data, "batch_size": 8}."""

    def __getitem__(self, key: str) -> Any:
        if key not in _types(type(self)):
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(_types(type(self)))

    def __len__(self) -> int:
        return len(_types(type(self)))


@functools.cache
def _types(cls: type[Section]) -> dict[str, Any]:
    """Return field -> type."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(typing.cast(Any, cls))}


def to_config(values: Mapping[str, Any], cls: type[T]) -> T:
    """Return the object of a dataclass that holds these values. Keys that it does not declare are ignored, because an
    older version wrote them; keys that are missing have their default."""
    found: dict[str, Any] = {}
    for name, kind in _types(cls).items():
        if name in values:
            is_group = isinstance(kind, type) and issubclass(kind, Section)
            found[name] = to_config(values[name], kind) if is_group else values[name]
    return cls(**found)


def to_plain(value: Any) -> Any:
    """Return the value with plain dicts and lists in it, as YAML, JSON and checkpoints need them."""
    if isinstance(value, Mapping):
        return {key: to_plain(inner) for key, inner in value.items()}
    return [to_plain(inner) for inner in value] if isinstance(value, list | tuple) else value
