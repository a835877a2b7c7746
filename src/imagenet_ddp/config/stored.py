"""Treat a stored config as data: that of a checkpoint, of a run folder, or of a job that another machine sends.

What is typed, or stands in a file of --config-dir, is trusted. A stored config may name no code but that of conf/, no
address, and no file outside of the run folder to write to, unless the same is typed. It is never resolved, and no
object is made of its arguments.
"""

import functools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from hydra.core.override_parser.types import Quote, QuotedString

from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.section import FREE_KEYS, OF_ENTRIES
from imagenet_ddp.config.validators import is_mapping, shown
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Fix, Mistake, key_of

# Groups of which a command makes objects, or which it reads from an address; the other commands use all groups.
_USED = {
    "predict": ("model",),
    "demo": ("model",),
    "export": ("model", "data"),
    "evaluate": ("model", "data"),
    "features": ("model", "data"),
}
_FREE = (*FREE_KEYS, "nccl.env.")  # ++ adds keys below these
_NOT_USED = ("model.weights",)  # those of the checkpoint are used instead
_SERVICES = "imagenet_ddp.callbacks.loggers."  # begins the classes of conf/logger that send to a server
_ADDRESS = re.compile(r"\s*[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_OUTSIDE = re.compile(r"\s*[/~]|(.*/)?\.\.(/|$)", re.DOTALL)  # an absolute path, or one with ..
MOST_VALUES, MOST_LEVELS = 100_000, 30  # of a stored config; ours have about 200 values on 5 levels


def own_part(stored: Any, origin: str) -> Mapping[str, Any]:
    """Return what this program has added to a checkpoint of Lightning: {"config", "classes", ...}. origin: the path of
    the checkpoint, for messages. Raises ConfigError if there is no such part."""
    own = stored.get("imagenet_ddp") if is_mapping(stored) else None
    if not (is_mapping(own) and "config" in own):
        raise ConfigError(
            f"{origin} must be a checkpoint of imagenet_ddp, but has no classes and no config. "
            "Hint: make the net, and call its load_state_dict."
        )
    return own


def not_plain(value: Any) -> str:
    """Return why a value does not consist of mappings from text, lists, text, numbers, true, false and null, of a
    bounded number and depth; "" if it does."""
    waiting, num_values = [(value, 0)], 0
    while waiting:
        each, level = waiting.pop()
        num_values += 1
        if num_values > MOST_VALUES or level > MOST_LEVELS:
            return f"it has more than {MOST_VALUES:,} values, or more than {MOST_LEVELS} levels"
        if is_mapping(each):
            if not all(isinstance(key, str) for key in each):
                return "one of its keys is not text"
            waiting += [(inner, level + 1) for inner in each.values()]
        elif isinstance(each, list | tuple):
            waiting += [(inner, level + 1) for inner in cast("list[Any]", each)]
        elif not (each is None or isinstance(each, str | int | float)):
            return f"it contains a {type(each).__name__}"
    return ""


def literal(value: Any, brace: str = r"\${") -> Any:
    """Return plain containers in which OmegaConf finds no interpolation: `${...}` in a text is only text. brace: what
    stands for `${`."""
    if isinstance(value, str):
        return re.sub(r"(\\*)\$\{", lambda match: 2 * match[1] + brace, value)
    if is_mapping(value):
        return {key: literal(inner, brace) for key, inner in value.items()}
    return [literal(inner, brace) for inner in cast("list[Any]", value)] if isinstance(value, list | tuple) else value


def refused(
    config: Mapping[str, Any], typed: Mapping[str, Any], verb: str, origin: str, allowed: Sequence[str]
) -> list[Mistake]:
    """Return a mistake for each kind of value of a stored config that this command would follow, and that is not typed.

    config: plain and resolved, the stored config overridden by what is typed. typed: the config of the command line
    alone; what is equal at the same place is trusted. origin: where the config is stored, for messages. allowed: the
    classes of allow_targets.
    """
    classes: dict[str, Any] = {}
    lines: dict[str, str] = {}  # option to type -> what it is
    for key, node, other in _entries(config, typed, _USED.get(verb)):
        group, target = key.partition(".")[0], node.get("_target_")
        target = None if target is None else str(target)
        is_typed, is_ours = target == other.get("_target_"), (group, target) in _classes_of_conf()
        if not (is_typed or is_ours or target in allowed):
            classes[f"{key}._target_"] = target
            continue
        if not is_typed and str(target).startswith(_SERVICES):
            lines[_option(key, node)] = f"{key} (a service)"
            continue
        for path, text in _texts(node, other, key):
            is_address = bool(_ADDRESS.match(text)) and path not in _NOT_USED
            if is_address or (_is_outside(path, text) and (is_ours or target is None)):
                what = "an address" if is_address else "a path outside of the run folder"
                option = _option(path, text) if other or not is_ours else _option(key, node)  # an entry is typed whole
                lines[option] = f"{path} ({what})"
    found: list[Mistake] = []
    if classes:
        allow = f"allow_targets={shown(list(dict.fromkeys([*allowed, *classes.values()])))}"
        named = ", ".join(f"{key}={shown(target)}" for key, target in classes.items())
        what = (
            f"{origin} must name no code but that of this program, because its author must not choose what runs here, "
            f"got {named}"
        )
        found.append(Mistake(what, tuple(classes), (_fix(allow),)))
    if lines:
        what = (
            f"{' and '.join(lines.values())} must be typed, because the author of {origin}, which has "
            f"{'them' if len(lines) > 1 else 'it'}, must not choose where this machine sends, reads or writes"
        )
        found.append(Mistake(what, tuple(map(key_of, lines)), (_fix(*lines),)))
    return found


def _fix(*options: str) -> Fix:
    return Fix(options, said=f"if you trust it, add `{shlex.join(options)}`")


def to_type(config: Mapping[str, Any], verb: str) -> list[str]:
    """Return the options without which this command would refuse to follow this config from a checkpoint."""
    found = refused(config, {}, verb, "", [])
    return [option for mistake in found for fix in mistake.fixes for option in fix.options]


def _entries(
    config: Mapping[str, Any], typed: Mapping[str, Any], groups: Sequence[str] | None
) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    """Yield (key, node, what is typed there) of each group, and of each entry of callbacks and logger. groups: None
    means all."""
    for group, node in config.items():
        if not is_mapping(node) or (groups is not None and group not in groups):
            continue
        of_group: Any = typed.get(group) or {}
        if group not in OF_ENTRIES:
            yield group, node, of_group
            continue
        for name, entry in node.items():
            if is_mapping(entry):
                yield f"{group}.{name}", entry, of_group.get(name) or {}


def _texts(value: Any, typed: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield (key path, text) of each text that is not typed."""
    if value == typed:
        return
    if is_mapping(value):
        for key, inner in value.items():
            yield from _texts(inner, typed.get(key) if is_mapping(typed) else None, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for inner in cast("list[Any]", value):
            yield from ((path, text) for _, text in _texts(inner, None, path))
    elif isinstance(value, str):
        yield path, value


def _is_outside(path: str, text: str) -> bool:
    """Return whether a text names a file or folder outside of the run folder, which would be written, or loaded as a
    library by NCCL."""
    if path.startswith("nccl.env."):
        return "/" in text or path.endswith("_FILE")
    return (path.partition(".")[0] in OF_ENTRIES or path == "data.cache_dir") and bool(_OUTSIDE.match(text))


def _option(path: str, value: Any) -> str:
    """Return the option that sets a key to this value, in Hydra's grammar."""
    return f"{'++' if path.startswith(_FREE) else ''}{path}={_quoted(value)}"


def _quoted(value: Any) -> str:
    if is_mapping(value):
        return "{" + ",".join(f"{key}:{_quoted(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(_quoted(inner) for inner in cast("list[Any]", value)) + "]"
    if isinstance(value, str) and not re.fullmatch(r"[\w./:%+@-]+", value, re.ASCII):
        return QuotedString(value, Quote.double).with_quotes()
    return shown(value)


@functools.cache
def _classes_of_conf() -> frozenset[tuple[str, str]]:
    """Return (group, class) of each class that a file of conf/ names."""
    return frozenset(
        (file.parent.name, target)
        for file in conf_dir().glob("*/*.yaml")
        for target in re.findall(r"^ *_target_: *(\S+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    )
