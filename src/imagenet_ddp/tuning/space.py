"""What a study searches: train's keys, each with a range or with choices, and every mistake in them. No torch, no
Optuna."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from imagenet_ddp import check
from imagenet_ddp.compose import first_line
from imagenet_ddp.keys import known_keys, unknown
from imagenet_ddp.trainer_keys import shown
from imagenet_ddp.tuning.parameter import FREE, RANGE, WORDS, Parameter, parameter

# What tells where a trial runs, or what it is called, tells nothing of how well it learns.
NOT_SEARCHED = ("trainer.devices", "trainer.num_nodes", "trainer.accelerator", "cluster", "nccl", "resume", "sweep",
                "name", "allow_targets", "tune", "search")  # fmt: skip


def written(token: str) -> str:
    """An option search.KEY=... as Hydra takes it, whether or not the space has that key yet; a list is choices."""
    match = re.fullmatch(r"\+*(search\.[^=]+)=(.*)", token, re.DOTALL)
    if match is None:
        return token
    key, value = match.groups()
    if value.startswith("[") and key.rpartition(".")[2] not in WORDS:
        key += ".choices"
    return f"++{key}={value}"


def read(search: Mapping[str, Any], typed: Sequence[str]) -> tuple[list[Parameter], list[str]]:
    """(the space, mistakes). search: plain. typed: the options as `written`; a kind of entry that is typed replaces
    the other kind that a file has."""
    keys = known_keys("train")
    entries: dict[str, dict[str, Any]] = {}
    found: list[str] = []
    for key, entry in _entries(search, keys, ""):
        if entry is None:
            entries.pop(key, None)
        elif isinstance(entry, Mapping):
            entries[key] = {**entries.get(key, {}), **entry}
        else:
            found.append(
                f"search.{key} is expected to be a range or a list, but is {shown(entry)}. "
                f"HINT: `'search.{key}={{low:0.01,high:1,log:true}}'`, or `'search.{key}=[A,B]'`."
            )
    fixed = {option.partition("=")[0].lstrip("+~") for option in typed}
    parameters = []
    for key, entry in entries.items():
        said = _known(key, keys, fixed)
        if not said:
            made, said = parameter(key, _without_replaced(key, entry, typed), keys.get(key))
            parameters += [made] if made else []
        found += said
    if not parameters and not found:
        found.append("nothing is searched. HINT: search=sgd, or `'search.optim.lr={low:0.01,high:1,log:true}'`.")
    return parameters, found


def refused_ends(
    parameters: Sequence[Parameter], config: DictConfig, environ: Mapping[str, str], typed: Sequence[str]
) -> list[str]:
    """What train itself would say to the ends of each range, and to each choice. config: train's, found good."""
    found = []
    for searched in parameters:
        for value in searched.ends:
            changed = config.copy()
            try:
                with open_dict(changed):
                    OmegaConf.update(changed, searched.key, value, merge=False, force_add=True)
                said = check.semantic(changed, environ, "train", typed=typed)
            except OmegaConfBaseException as error:
                said = [f"{searched.key}={shown(value)}: {first_line(error)}"]
            found += [f"search.{searched.key}: {text}" for text in said]
    return list(dict.fromkeys(found))


def _entries(node: Mapping[str, Any], keys: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    """(key, what is said of it). A key may be written with its dots, or as a tree of mappings like train's config."""
    for name, inner in node.items():
        path = f"{prefix}{name}"
        is_group = _is_group(path, keys)
        if not isinstance(inner, Mapping) or not inner or (path in keys and not is_group):
            yield path, inner
            continue
        if own := {word: value for word, value in inner.items() if word in WORDS}:
            yield path, own if is_group else inner
        if is_group or not own:
            yield from _entries({name: inner[name] for name in inner if name not in own}, keys, f"{path}.")


def _is_group(key: str, keys: Mapping[str, Any]) -> bool:
    return f"{key}." in FREE or any(known.startswith(f"{key}.") for known in keys)


def _known(key: str, keys: Mapping[str, Any], fixed: set[str]) -> list[str]:
    if key.startswith(NOT_SEARCHED) and (key in NOT_SEARCHED or key.partition(".")[0] in NOT_SEARCHED):
        return [f"search.{key}: {key} is the same for all trials. HINT: `search.{key}=null`."]
    if key not in keys and not key.startswith(FREE):
        return [f"search.{key}: {unknown(key, keys)}"]
    if _is_group(key, keys):
        hint = f"search.{key}.name=[A,B]" if f"{key}.name" in keys else f"search.{key}.KEY=[A,B]"
        return [f"search.{key} is expected to name one key, but {key} is a group of keys. HINT: `'{hint}'`."]
    if key in fixed:
        return [f"{key} is typed and searched too. HINT: leave it out, or `search.{key}=null`."]
    return []


def _without_replaced(key: str, entry: Mapping[str, Any], typed: Sequence[str]) -> dict[str, Any]:
    words: set[str] = set()
    for option in typed:
        name, _, value = option.lstrip("+").partition("=")
        if name == f"search.{key}":
            words |= set(re.findall(r"(\w+)\s*:", value))
        elif name.startswith(f"search.{key}."):
            words.add(name.rpartition(".")[2])
    if "choices" in words and not words & set(RANGE):
        return {word: value for word, value in entry.items() if word not in RANGE}
    if words & set(RANGE) and "choices" not in words:
        return {word: value for word, value in entry.items() if word != "choices"}
    return dict(entry)
