"""Explain words of a command line that cannot be read. Does not import torch."""

import re
import shlex
import typing
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from typing import Any

from hydra.core.override_parser.types import Override, Quote, QuotedString, ValueType

from imagenet_ddp.cli.flags import is_own, of_other_program
from imagenet_ddp.cli.known_terms import here, term_of
from imagenet_ddp.cli.overrides import quoted
from imagenet_ddp.cli.photograph_lines import OF_FOLDER, RECIPE
from imagenet_ddp.config import conf_dir, option_of
from imagenet_ddp.config.schema.keys import Key, declared
from imagenet_ddp.config.schema.read_if import read_by
from imagenet_ddp.config.section import OF_ENTRIES
from imagenet_ddp.data.sources.registry import options_for
from imagenet_ddp.mistakes import Fix, Mistake, example, key_of, meant, setting, without
from imagenet_ddp.models.check_nets import CLASSIFIERS
from imagenet_ddp.models.timm_names import is_of_timm
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.system.files import beside, exists, expand_home

# Options that name a data set, a recipe, or a net that has no weights: those images are no photographs to fine-tune on.
OF_RECIPES = {"experiment", "recipe", "data", "data.name", "data._target_", "model._target_"}
# Options of a training from scratch, as pytorch/examples, torchvision and timm begin one. The words of programs that
# begin with published weights, such as lr0, are not among them.
OF_SCRATCH = {"optim", "optim.lr", "schedule.name", "data.repeats"}
FROM_SCRATCH = "model.weights=null"
QUOTES = dict.fromkeys(map(ord, "\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb"), "")  # of documents
_IMAGE = re.compile(r"\.(jpe?g|png|webp|heic|tiff?|gif|bmp)$", re.IGNORECASE)
SWEPT = ("train", "submit")  # commands that accept -m
LEARN = ("train", "tune", "doctor", "features")  # commands that have use for weights, whatever is typed
SEARCH_INSTEAD = "leave hydra/sweeper out, and search with `python -m imagenet_ddp.tune`, which uses Optuna"


def not_readable(
    verb: str, word: str, names: Callable[[str], list[str]], can_read: Callable[[str], bool], others: Set[str]
) -> Mistake:
    """Explain a word that does not follow Hydra's grammar. names: group -> its choices. others: the other options
    of the command line."""
    key, equals, value = word.partition("=")
    bare, keys = key.lstrip("+~"), declared(verb)
    straight = word.translate(QUOTES)
    if straight != word and not exists(value) and can_read(straight) and "=" in straight:
        return Mistake(f"{word} has the quotes of a document", fixes=(Fix((straight,), is_meant=True),), typed=(word,))
    if not equals or not bare:
        return _bare_word(verb, word, others)
    if bare in keys and keys[bare].type not in (str, Any):
        fix = meant(f"{bare}={near}") if (near := keys[bare].nearest(value)) else fix_of(bare, keys, names)
        return Mistake(f"{bare} must be {keys[bare].words}, but cannot be read: {value}", (bare,), (fix,))
    if bare not in keys and (term := term_of(bare, verb)):  # item_tfms=Resize(224)
        return of_other_program(verb, [word], term, [value])
    typed = as_text(key, value)
    fixes = (Fix((typed,), said=f"put quotes around the value: `{shlex.quote(typed)}`"),) if can_read(typed) else ()
    what = f"{shlex.quote(word)} cannot be read by Hydra's grammar"
    return Mistake(what, (bare,), fixes, "" if fixes else "see `--help`", typed=(word,))


def _bare_word(verb: str, word: str, others: Set[str]) -> Mistake:
    """Explain a word without =: a key or a value that is typed alone, a word of another program, or a path."""
    keys, missing = declared(verb), ", and does not exist" if "/" in word and not exists(word) else ""
    what = f"{shlex.quote(word)} must be key=value{missing}"
    name, colon, after = word.partition(":")
    if not word.strip():  # an empty variable, or a backslash with a space after it at the end of a line
        said = f"leave {shlex.quote(word)} out; a backslash that continues a line must be its last character"
        return Mistake(what, fixes=(replace(without(word), said=said),), typed=(word,))
    if word in keys and keys[word].type is bool:  # undo
        return Mistake(what, (word,), (setting(f"{word}=true"),), typed=(word,))
    if colon and after.strip() and is_own(verb, name, after.strip()):
        return Mistake(what, (name,), (setting(quoted(f"{name}={after.strip()}")),), typed=(word,))
    if re.search(r"\.(py|sh|sbatch)$", word) and not exists(word):  # the script of another program
        return Mistake(what, fixes=(without(word),), typed=(word,))
    term = None if exists(word) else term_of(word, verb)
    if term and "{}" not in term.here:  # a flag
        return of_other_program(verb, [word], term, [])
    near = None if exists(word) else beside(Path(word), Path.is_dir)
    is_path = exists(word) or (near is not None and str(near).casefold() == word.casefold())  # Photos for photos
    value = [] if is_path else _as_value(verb, word)
    ways = [value] if value else ways_to_read(verb, _path_options(verb, word), others)
    if near and not ways:
        ways = ways_to_read(verb, _path_options(verb, str(near)), others)
    if not ways:
        folder = f"a folder of photographs is typed as {' '.join(OF_FOLDER)}; " * (verb in LEARN)
        return Mistake(what, hint=f"{folder}`--help` shows examples", typed=(word,))
    if (key := key_of(ways[0][-1])) in ("data.root", "images"):
        from imagenet_ddp.data.sources.walk import unpacked

        if fix := unpacked(Path(word), key):
            return Mistake(what, (key,), (fix,), typed=(word,))
    fixes = tuple(setting(*map(quoted, way)) for way in ways)
    return Mistake(what, tuple(map(key_of, ways[-1])), fixes, typed=(word,))


def _as_value(verb: str, word: str) -> list[str]:
    """Return the options that have a word as their value: prepare=check, model.name=resnet50, trainer.accelerator=cpu;
    [] if none has, or several do."""
    keys = read_by(verb)
    if option := option_of(verb, word, near=True):
        return [option]
    if "model.name" in keys and (word in CLASSIFIERS or is_of_timm(word)):
        return [*["model.library=timm"] * (word not in CLASSIFIERS), f"model.name={word}"]
    takers = [path for path, key in keys.items() if key.allowed is not None and word in key.allowed.forms]
    return [f"{takers[0]}={word}"] if len(takers) == 1 else []


def ways_to_read(verb: str, options: list[str], others: Set[str]) -> list[list[str]]:
    """Return what may be typed to read images, the best first: for a folder of photographs, the experiment that is made
    for them. options: those of the layout. others: the other words KEY=VALUE of the command line."""
    said = {option for word in others for option in _said_here(verb, word)}
    is_open = OF_RECIPES.isdisjoint(map(key_of, said)) and FROM_SCRATCH not in said
    is_open &= "model.weights=DEFAULT" in said or OF_SCRATCH.isdisjoint(map(key_of, others))
    if options[:1] == ["data=imagefolder"] and is_open and (verb in LEARN or _checks(verb, others)):
        return [[RECIPE, *options[1:]], options]
    return [options] if options else []


def _said_here(verb: str, word: str) -> list[str]:
    """Return a word KEY=VALUE, or the options that say the same if it is of another program."""
    key, _, value = word.partition("=")
    term = None if key in declared(verb) or (conf_dir() / key).is_dir() else term_of(key, verb)
    return here(term, read_by(verb), value).replace("{}", value).split(" ") if term else [word]


def _checks(verb: str, others: Set[str]) -> bool:
    """Return whether prepare=check is meant, which may be misspelt, under another name, or not typed."""
    prepare = [word.partition("=")[2] for word in others if key_of(word) == "prepare"]
    return verb == "prepare" and all(option_of(verb, name, near=True) in ("prepare=check", "") for name in prepare)


def _path_options(verb: str, word: str) -> list[str]:
    """Return the options to type for a word without =, which may be a checkpoint, a file or a folder; [] if there is
    none of that name, and it is not written as a path."""
    is_path = exists(word) or ("/" in word and "://" not in word)
    if not is_path and not ("images" in declared(verb) and _IMAGE.search(word)):
        return []
    word = str(expand_home(word))
    is_file = not Path(word).is_dir() and Path(word).suffix in (".ckpt", ".pt", ".pth", ".tar")
    if is_file or CheckpointStore.of_run(Path(word)).files():
        return [f"{'resume' if verb == 'train' else 'checkpoint'}={word}"]
    return [f"images={word}"] if "images" in declared(verb) else options_for(word)


def has_several_values(verb: str, word: str, override: Override, keys: Mapping[str, Key]) -> Mistake:
    """Explain that an option has several values although -m is not set. keys: with those of Hydra."""
    name, _, value = word.partition("=")
    key = name.lstrip("+")
    known, fixes = keys.get(key), list[Fix]()
    if known is None and (term := term_of(key, verb)):
        return of_other_program(verb, [word], term, [value], key)
    kind = known.type if known else None
    if known and kind is str and known.allowed is None:
        fixes.append(meant(as_text(name, value), aim="if this is one text"))
    is_list = typing.get_origin(kind) is list or key in ("trainer.devices", *OF_ENTRIES)
    if is_list and override.value_type == ValueType.SIMPLE_CHOICE_SWEEP:
        fixes.append(meant(f"{key}=[{value}]", aim="to use all of them together"))
    is_swept = typing.get_origin(kind) is not list and key != "trainer.devices"  # of which 0 is no number of devices
    if verb in SWEPT and not override.is_hydra_override() and is_swept:
        fixes.append(Fix(("-m",), said="add -m to run one job per value"))
    hint = "" if fixes else f"type one value for {override.key_or_group}"
    return Mistake(f"{word} has several values, but -m is not set", (key,), tuple(fixes), hint)


def as_text(key: str, value: str) -> str:
    """Return the option for a value whose characters Hydra must not interpret."""
    return f"{key}={QuotedString(value, Quote.double).with_quotes()}"


def fix_of(key: str, keys: Mapping[str, Key], names: Callable[[str], list[str]]) -> Fix:
    """Return what to type for a key or a group. names: group -> its choices."""
    if not keys[key].is_group:
        return keys[key].fix
    if choices := names(key):
        return example(f"{key}={simplest(choices)}")
    inner = next(inner.fix for path, inner in keys.items() if path.startswith(f"{key}."))
    return replace(inner, without=(key,), said=inner.words)


def simplest(names: list[str]) -> str:
    """Return the choice of a group that needs the fewest other settings."""
    return next((name for name in ("none", "default", "auto", "shapes") if name in names), (names or ["NAME"])[0])
