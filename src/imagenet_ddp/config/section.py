"""Turn plain containers into the typed objects of config/schema and back, and make what they name by _target_."""

import functools
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, Self, TypeVar, cast

from hydra.errors import InstantiationException
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.config.validators import choice, is_mapping
from imagenet_ddp.errors import ConfigError, SignalExit, is_silent_end, own_place
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.text import first_line

T = TypeVar("T", bound="Section")
C = TypeVar("C", bound="OneOf")


@typing.dataclass_transform(field_specifiers=(field,))
class Section(Mapping[str, Any]):
    """Base of the classes of config/schema, each of which is a dataclass without a decorator. An instance is also a
    read-only mapping of its fields, for the code that spreads or flattens a group: {**config.data, "batch_size": 8}.

    The methods here serve all classes: those that dataclasses would generate for each are most of the time that
    importing the schema takes.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    def __init_subclass__(cls) -> None:
        dataclass(init=False, repr=False, eq=False, match_args=False)(cls)

    def __init__(self, *in_order: Any, **values: Any):
        declared = fields(self)
        values |= {each.name: value for each, value in zip(declared[: len(in_order)], in_order, strict=True)}
        if unknown := values.keys() - {each.name for each in declared}:
            raise TypeError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        for each in declared:
            if each.name in values:
                value = values[each.name]
            else:
                value = each.default if each.default_factory is MISSING else each.default_factory()
            setattr(self, each.name, value)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)})"

    def __getitem__(self, key: str) -> Any:
        if key not in _groups(type(self)):
            raise KeyError(key)
        return getattr(self, key)

    def __iter__(self) -> Iterator[str]:
        return iter(_groups(type(self)))

    def __len__(self) -> int:
        return len(_groups(type(self)))


# Groups of which one object is made: their _target_ names a class, which is called with their `args`.
WITH_ARGS = ("data", "transform", "model", "optim", "schedule", "loss", "module")
OF_ENTRIES = ("callbacks", "logger")  # groups of NAME: {_target_: CLASS, further arguments}
# beginnings of keys that nothing declares
FREE_KEYS = (*(f"{group}.args." for group in WITH_ARGS), *(f"{group}." for group in OF_ENTRIES))


class Replaceable(Section):
    """A group whose _target_ may name a class of the user's own."""

    @property
    def target(self) -> str | None:
        return self["_target_"]


class OneOf(Replaceable):
    """Base of a group that is one of several classes, each with its own keys beside those that all have: the class of
    `name`, or, if `_target_` is set, the class for one of the user's own. `one_of` records the classes.

    by_name: name -> class. own: the class for one of the user's own. any_of: has the keys of all classes. In it, the
    layers of a config are laid over each other; to_config then keeps the keys of the class that was chosen.
    """

    name: str = ""
    by_name: ClassVar[Mapping[str, type["OneOf"]]]
    own: ClassVar[type["OneOf"]]
    any_of: ClassVar[type["OneOf"]]

    @classmethod
    def chosen(cls, values: Mapping[str, Any]) -> type[Self]:
        """Return the class for these values; any_of if there is none of their name."""
        name = str(values.get("name", cls.name))
        return cast(Any, cls.own if values.get("_target_") else cls.by_name.get(name, cls.any_of))

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Return the object of the class for these values. Raises TypeError if it does not have one of the keys."""
        return cls.chosen(values)(**values)

    @classmethod
    def readers(cls, key: str) -> tuple[tuple[str, ...], str]:
        """Return (the names of the classes that have a key, as words: "a, b or c", "any but d"); () if all have it, or
        only `own` has it."""
        names = tuple(name for name, each in cls.by_name.items() if key in _groups(each))
        if len(names) in (0, len(cls.by_name)):
            return (), ""
        others = [name for name in cls.by_name if name not in names]
        return names, choice(*names).words if len(others) > 1 else f"any but {others[0]}"


@functools.cache
def hints(cls: type) -> dict[str, Any]:
    """Return field -> its type, with what Annotated adds to it."""
    return typing.get_type_hints(cls, include_extras=True)


def one_of(base: type[C], own: type[C], *classes: type[C]) -> dict[str, type[C]]:
    """Record the classes of a group, and return name -> class. own: for one of the user's own."""
    base.by_name, base.own = {each.name: each for each in classes}, own
    content: dict[str, Any] = {"__module__": base.__module__, "__qualname__": f"{base.__name__}.any_of"}  # for pickle
    types = content["__annotations__"] = dict[str, Any]()
    for each in (*classes, own):
        for key in fields(each):
            if key.name not in (types.keys() | _groups(base).keys()):
                types[key.name] = hints(each)[key.name]
                made: Any = field  # its types do not admit MISSING for "none"
                content[key.name] = made(default=key.default, default_factory=key.default_factory)
    base.any_of = cast(Any, type(base.__name__, (base,), content))  # the name that messages of OmegaConf show
    return base.by_name


def with_all_keys(cls: type[T]) -> T:
    """Return the defaults of a config in whose groups each key of each choice can be set."""
    return cls(**{name: group.any_of() for name, group in _groups(cls).items() if group and issubclass(group, OneOf)})


def without_other_choices(values: Mapping[str, Any], cls: type[Section]) -> dict[str, Any]:
    """Return the values without the keys of the sources, optimizers, schedules and losses that are not chosen."""
    kept = dict(values)
    for name, group in _groups(cls).items():
        if group and issubclass(group, OneOf) and is_mapping(values.get(name)):
            keys = _groups(group.chosen(values[name]))
            kept[name] = {key: value for key, value in values[name].items() if key in keys}
    return kept


@functools.cache
def _groups(cls: type[Section]) -> dict[str, type[Section] | None]:
    """Return field -> its class if it is a group, else None."""
    hints = typing.get_type_hints(cls)
    kinds = {field.name: hints[field.name] for field in fields(cls)}
    return {
        name: kind if isinstance(kind, type) and issubclass(kind, Section) else None for name, kind in kinds.items()
    }


def to_config(values: Mapping[str, Any], cls: type[T]) -> T:
    """Return the object of a dataclass that holds these values. Keys that it does not declare are ignored, because an
    older version wrote them, or because they are of another class of a OneOf; keys that are missing have their
    default."""
    if issubclass(cls, OneOf):
        cls = cls.chosen(values)
    kept: dict[str, Any] = {
        name: values[name] if group is None else to_config(values[name], group)
        for name, group in _groups(cls).items()
        if name in values
    }
    return cls(**kept)


def typed_config(config: DictConfig, cls: type[T], *, partial: bool = False) -> T:
    """Return the composed config as the object that the code reads, interpolations resolved. partial: keys may be
    missing, because a checkpoint fills them in."""
    content: Any = OmegaConf.to_container(config, resolve=True, throw_on_missing=not partial)
    return to_config(content, cls)


def to_plain(value: Any) -> Any:
    """Return the value with plain dicts and lists in it, as YAML, JSON and checkpoints need them."""
    if is_mapping(value):
        return {key: to_plain(inner) for key, inner in value.items()}
    return [to_plain(inner) for inner in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def make(key: str, target: str, arguments: Mapping[str, Any], kind: type = object, /, **more: Any) -> Any:
    """Call a class or function by name: target(**arguments, **more). key: the config key of the target, for messages.
    kind: of what the call must return. config/stored.py has checked a target that was not typed. Raises ConfigError if
    the name does not exist, if the call does not accept these arguments or fails, or if it returns anything else."""
    failures = ImportError, InstantiationException, TypeError, ValueError, StopIteration, SystemExit
    try:
        # Hydra only finds the name: it would also make an object of each _target_ in the arguments, which are data
        function = instantiate({"_target_": target, "_partial_": True})
    except SignalExit:  # a SystemExit that is a stop
        raise
    except failures as error:
        what = f"{key} must name a class or function that can be imported, got {target}: {_reason(error)}"
        raise ConfigError(Mistake(what, (key,), hint="correct the name, or the module")) from error
    try:
        made = function(**arguments, **more)
    except SignalExit:
        raise
    except failures as error:
        what = f"{key}={target} must be callable with its arguments, but the call failed: {_reason(error)}"
        names = ", ".join(f"{name}=..." for name in (*arguments, *more))
        group = key.partition(".")[0]
        is_function = group in ("loss", "schedule", "transform")
        returns = f"name a function or class that returns the {group} function, " if is_function else ""
        hint = f"it is called with {names or 'no arguments'}; {returns}correct it, or correct the arguments"
        is_missing = isinstance(error, ModuleNotFoundError)  # its words say what to install
        raise ConfigError(Mistake(what, (key,), hint="" if is_missing else hint)) from error
    if not isinstance(made, kind):
        what = f"{key}={target} must return a {kind.__module__}.{kind.__name__}, got {type(made).__name__}"
        raise ConfigError(Mistake(what, (key,), hint="name such a class, or a function that returns an object of it"))
    return made


def _reason(error: BaseException) -> str:
    """Return what the first cause of an exception says, and where it was raised in the code of the user."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, InstantiationException):  # of Hydra itself
        return "it is a value that cannot be called, or may run other programs"
    said = f"{type(error).__name__} was raised" if is_silent_end(error) else first_line(error).rstrip(".")
    return f"{said} ({place})" if (place := own_place(error)) else said


def leaves(node: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to {"trainer.devices": 2, ...}. An empty mapping remains a value."""
    found: dict[str, Any] = {}
    for key, value in node.items():
        path = f"{prefix}{key}"
        if is_mapping(value) and value:
            found.update(leaves(value, f"{path}."))
        else:
            found[path] = value
    return found
