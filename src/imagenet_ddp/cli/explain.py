"""Explain words of a command line that cannot be read, and options that do not fit the composed config.

Does not import torch.
"""

import os
import shlex
import typing
from collections.abc import Callable, Mapping
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType

from imagenet_ddp.cli.files import Files
from imagenet_ddp.cli.known_terms import removed, unknown
from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.config.keys import Key, declared
from imagenet_ddp.config.schema import trainer
from imagenet_ddp.config.validators import shown
from imagenet_ddp.data.sources.registry import TABLE_SUFFIXES, options_for
from imagenet_ddp.errors import causes
from imagenet_ddp.mistakes import Fix, Mistake, must_be, setting, without
from imagenet_ddp.models.check_learning import CLASSIFIERS
from imagenet_ddp.system.files import exists
from imagenet_ddp.system.text import first_line

if TYPE_CHECKING:
    from imagenet_ddp.cli.options import Option

SWEPT = ("train", "submit")  # commands that accept -m
SEARCH_INSTEAD = "leave hydra/sweeper out, and search with `python -m imagenet_ddp.tune`, which uses Optuna"
# any key below these can be added
FREE = ("callbacks.", "logger.", "data.args.", "model.args.", "optim.args.", "schedule.args.", "loss.args.")


def first_sentence(error: BaseException) -> str:
    """Return the first line of an error's text, ending in a full stop."""
    return first_line(error).rstrip(".") + "."


# ---- words that cannot be read


def not_readable(verb: str, word: str, files: Files, can_read: Callable[[str], bool]) -> Mistake:
    """Explain a word that does not follow Hydra's grammar."""
    key, equals, value = word.partition("=")
    bare, keys = key.lstrip("+~"), declared(verb)
    if not equals or not bare:
        what, fix = f"{shlex.quote(word)} must be key=value", _for_word(verb, word)
        return Mistake(what, fixes=fix, hint="" if fix else "`--help` shows examples", typed=(word,))
    if bare in keys and keys[bare].type not in (str, Any):
        words = keys[bare].words
        return Mistake(f"{bare} must be {words}, but cannot be read: {value}", (bare,), (_fix(bare, keys, files),))
    typed = _as_text(key, value)
    fixes = (Fix((typed,), said=f"put quotes around the value: `{shlex.quote(typed)}`"),) if can_read(typed) else ()
    what = f"{shlex.quote(word)} cannot be read by Hydra's grammar"
    return Mistake(what, (bare,), fixes, "" if fixes else "see `--help`", typed=(word,))


def _for_word(verb: str, word: str) -> tuple[Fix, ...]:
    """Return what to type for a word without =, which may be a checkpoint, a file or a folder; () if there is none of
    that name."""
    if not exists(word):
        return ()
    if Path(word).is_file() and Path(word).suffix in (".ckpt", ".pt", ".pth", ".tar"):
        options = [f"{'resume' if verb == 'train' else 'checkpoint'}={word}"]
    else:
        options = [f"images={word}"] if "images" in declared(verb) else options_for(word)
    return (setting(*map(quoted, options)),)


def has_several_values(verb: str, word: str, override: Override, keys: Mapping[str, Key]) -> Mistake:
    """Explain that an option has several values although -m is not set. keys: with those of Hydra."""
    name, _, value = word.partition("=")
    key = name.lstrip("+")
    known, fixes = keys.get(key), list[Fix]()
    kind = known.type if known else None
    if known and kind is str and known.allowed is None:
        fixes.append(setting(_as_text(name, value), aim="if this is one text"))
    is_list = typing.get_origin(kind) is list or key == "trainer.devices"
    if is_list and override.value_type == ValueType.SIMPLE_CHOICE_SWEEP:
        fixes.append(setting(f"{key}=[{value}]", aim="to use all of them together"))
    if verb in SWEPT and not override.is_hydra_override() and typing.get_origin(kind) is not list:
        fixes.append(Fix(("-m",), said="add -m to run one job per value"))
    hint = "" if fixes else f"type one value for {override.key_or_group}"
    return Mistake(f"{word} has several values, but -m is not set", (key,), tuple(fixes), hint)


def _as_text(key: str, value: str) -> str:
    """Return the option for a value whose characters Hydra must not interpret."""
    return f"{key}={QuotedString(value, Quote.double).with_quotes()}"


# ---- options that do not fit


def refused(option: "Option", error: Exception, verb: str, files: Files) -> Mistake:
    """Explain an option that does not fit the composed config. error: of Hydra, OmegaConf or YAML."""
    key, line, value, keys = option.key, option.word, option.value, declared(verb)
    if option.sign == "~":
        what = line.lstrip("~")
        required = f"{what} is required{', or not chosen,' if '=' in what else ''} and cannot be deleted"
        is_known = key in keys or files.names(key)
        return Mistake(required, (key,), (without(line),)) if is_known else unknown(key, keys)
    if option.is_choice:
        names = files.names(key.partition("@")[0])
        if value in names and not option.sign:
            reason, hint = in_file(error, f"{key}/{value}", is_group=key in keys)
            return Mistake(f"{line} cannot be composed: {reason}", (key,), hint=hint)
        return _wrong_choice(key, value, names)
    return _refused_value(option, error, keys, files)


def _refused_value(option: "Option", error: Exception, keys: Mapping[str, Key], files: Files) -> Mistake:
    """Explain a key=value that does not fit the composed config."""
    key, line, value, declaration = option.key, option.word, option.value, keys.get(option.key)
    parent, _, last = key.rpartition(".")
    if parent == "trainer" and last in trainer.REFUSED:
        return trainer.refusal(last, value)
    if declaration and option.sign == "+":
        bare = line.lstrip("+")
        return Mistake(f"{line}: {key} exists already", (key,), (setting(bare, aim="without +"),))
    if declaration and declaration.type is str and isinstance(value, dict | list):
        typed = _as_text(key, line.partition("=")[2])
        fix = Fix((typed,), said=f"put quotes around it: `{shlex.quote(typed)}`")
        return must_be(key, declaration.words, shown(value), fix)
    if declaration and not isinstance(value, dict):
        fix = _fix(key, keys, files)
        if (named := keys.get(f"{key}.name")) and value is not None:
            allowed = named.allowed
            name = value if allowed is None or allowed.accepts(value) else allowed.nearest(value)
            meant = f"{key}.name={name}" if name else named.fix.options[0]
            fix = Fix((meant,), (key,), said=f"set {meant}")
        return must_be(key, declaration.words, shown(value), fix)
    if declaration or key.startswith("hydra."):
        reason = first_sentence(error.__cause__ or error)
        return Mistake(f"{line} cannot be merged: {reason}", (key,), hint="leave it out, and type each key by itself")
    if key.startswith(FREE) and not removed(key):
        fix = Fix((f"+{line}",), (key,), said=f"type +{line} to add it")
        return Mistake(f"{key} does not exist, so it cannot be changed", (key,), (fix,))
    return unknown(key, keys, line.partition("=")[2])


def _fix(key: str, keys: Mapping[str, Key], files: Files) -> Fix:
    """Return what to type for a key or a group."""
    if not keys[key].is_group:
        return keys[key].fix
    if names := files.names(key):
        return setting(f"{key}={_simplest(names)}")
    inner = next(inner.fix for path, inner in keys.items() if path.startswith(f"{key}."))
    return replace(inner, without=(key,), said=inner.words)


def _simplest(names: list[str]) -> str:
    """Return the choice of a group that needs the fewest other settings."""
    return next((name for name in ("none", "default", "auto", "shapes") if name in names), (names or ["NAME"])[0])


def _wrong_choice(group: str, value: Any, names: list[str]) -> Mistake:
    """Return the mistake of an unknown group=value."""
    name, fix, hint = str(value), without(group), ""
    if instead := removed(f"{group}={name}"):
        fix, hint = None, instead
    elif group == "hydra/sweeper":
        fix, hint = None, SEARCH_INSTEAD
    elif group == "model" and name.lower() in CLASSIFIERS:
        fix = Fix((f"model.name={name.lower()}",), ("model",), said=f"set model.name={name.lower()}")
    elif group == "data" and (os.sep in name or Path(name).is_dir() or Path(name).suffix in TABLE_SUFFIXES):
        fix = setting(*options_for(name))
    elif near := get_close_matches(name.lower(), names, 1):
        fix = setting(f"{group}={near[0]}")
    elif group not in ("experiment", "recipe"):
        fix = setting(f"{group}={_simplest(names)}")
    what = f"{group} must be one of {', '.join(names)}, got {shown(value)}"
    return Mistake(what, (group,), (fix,) if fix else (), hint)


def in_file(error: Exception, name: str, *, is_group: bool) -> tuple[str, str]:
    """Return (reason, hint) of a mistake in a file in the user's --config-dir. The files of conf/ have none, because
    tests compose them."""
    text = next(filter(None, map(str, causes(error))), type(error).__name__)
    first = "" if is_group else ", whose first line must be `# @package _global_`"
    return " ".join(text.split()).rstrip("."), f"correct {name}.yaml{first}"
