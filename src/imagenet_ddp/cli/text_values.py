"""Quote the values of text keys, so that Hydra keeps the characters typed. Does not import torch.

Hydra reads a value before it knows the type of its key: 2024_11_26 as the integer 20241126, 1.10 as 1.1, and in,out as
two values. Here the key is known. What is quoted stays quoted where Hydra composes again, in a sweep or on another
machine.
"""

import functools
import re
import typing
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from hydra.conf import HydraConf
from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType

from imagenet_ddp.config import keys
from imagenet_ddp.config.keys import Key

Parse = Callable[[str], Override | None]

# a quoted text, an interpolation, or the characters between two delimiters
_PART = re.compile(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\$\{[^}]*\}|[^][(){},'"]+""")


def quote(option: str, verb: str, parse: Parse, texts: Collection[str] = ()) -> str:
    """Return the option with quotes around what the key's type says is text, but Hydra would read as something else.

    A value that is the path of an existing file or folder is that path, whatever its characters mean to Hydra. Without
    such a path, commas, brackets and quotes mean what they mean to Hydra, as the values of a sweep. null stays null
    where the key accepts it. parse: reads an option by Hydra's grammar, returns None if it is invalid. texts: further
    text keys, which the command does not declare.
    """
    name, equals, value = option.partition("=")
    path = name.lstrip("+")
    key = _TEXT if path in texts else _declared(verb).get(path)
    is_group = "." not in path and not path.startswith("~") and (key is None or key.is_group)
    text = key if key is not None and key.type is str else None
    if not equals or not (is_group or text or (key and typing.get_args(key.type) == (str,))):
        return option
    if text and text.allowed is None and value != "null" and "${" not in value and exists(value):
        return f"{name}={_quoted(value)}" if _needs_quotes(value, parse) else option
    parsed = parse(option)
    if parsed is None and text and _PART.fullmatch(value) and value[0] not in "'\"~" and "${" not in value:
        return f"{name}={_quoted(value)}"
    if (
        parsed is None
        or parsed.value_type not in (ValueType.ELEMENT, *_LISTS)
        or isinstance(parsed.value(), dict | str)
    ):
        return option
    is_nullable = is_group or (text is not None and text.nullable)

    def part(found: re.Match[str]) -> str:
        word = found[0].strip()
        if word.startswith(("'", '"', "${")) or (is_nullable and word.lower() == "null"):
            return found[0]
        return found[0].replace(word, _quoted(word)) if word and _needs_quotes(word, parse) else found[0]

    return f"{name}={_PART.sub(part, value)}"


_TEXT = Key("", str, None, None, "", "")
_LISTS = (ValueType.CHOICE_SWEEP, ValueType.SIMPLE_CHOICE_SWEEP)


@functools.cache
def _declared(verb: str) -> Mapping[str, Key]:
    """Return the command's keys and Hydra's own."""
    return {**keys.declared(verb), **keys.of_class(HydraConf, "hydra.")}


def quoted(option: str) -> str:
    """Return key=value with the quotes that Hydra's grammar requires around the value."""
    key, _, value = option.partition("=")
    is_plain = re.fullmatch(r"[\w./:%+@-]*", value, re.ASCII)
    return option if is_plain else f"{key}={QuotedString(value, Quote.double).with_quotes()}"


def exists(path: str) -> bool:
    try:
        return bool(path) and Path(path).exists()
    except OSError:  # such as a name that is too long, which the check of the key reports
        return False


def _needs_quotes(text: str, parse: Parse) -> bool:
    """Return whether Hydra would read this text as anything but these characters."""
    parsed = parse(f"key={text}")
    return parsed is None or parsed.is_sweep_override() or parsed.value() != text


def _quoted(text: str) -> str:
    return QuotedString(text, Quote.single).with_quotes()
