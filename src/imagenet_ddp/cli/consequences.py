"""Leave out mistakes that only follow from another: from the default in place of a wrong choice, from a value that is
not allowed, or from a key that has no value because it was misspelt."""

from collections.abc import Sequence, Set
from dataclasses import replace
from typing import Any

from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.config.schema import keys
from imagenet_ddp.config.section import OF_ENTRIES, leaves
from imagenet_ddp.mistakes import Mistake, key_of


def independent(
    found: Sequence[Mistake], wrong: Set[str], config: DictConfig, verb: str, typed: Sequence[str]
) -> list[Mistake]:
    """Return the mistakes that do not depend on a wrong choice: those in keys that do not exist, those that name only
    typed keys of other groups, and those in values that no choice allows.

    wrong: groups whose typed choice, and keys whose typed value, is a mistake; the config has the default in its place.
    """
    if not wrong:
        return list(found)
    declared, chosen = keys.declared(verb), set(map(key_of, typed))
    groups = wrong
    if wrong & {"data", "recipe", "experiment"}:  # recipes follow from data, and set keys of any group
        groups = {path.partition(".")[0] for path in declared if "." in path} | {*OF_ENTRIES}
    chosen |= {f"{key}.name" for key in chosen}  # of a group
    if "data.root" in chosen:
        chosen |= {"data.train_dir", "data.val_dir"}  # folders below it
    whole = [key for key in groups & declared.keys() if declared[key].is_group]
    alone = {each for group in whole for each in keys.validate_group(group, config[group], verb)}

    def depends(mistake: Mistake) -> bool:
        named = [key for key in mistake.keys if key in wrong or key.partition(".")[0] in groups]
        return any(key not in chosen or {key, key.partition(".")[0]} & wrong for key in named)

    def is_unknown(key: str) -> bool:
        group = declared.get(key.partition(".")[0])
        return key not in declared and group is not None and group.is_group

    return [each for each in found if each in alone or any(map(is_unknown, each.keys)) or not depends(each)]


def of_values(found: Sequence[Mistake], config: DictConfig) -> list[Mistake]:
    """Return the mistakes without those that name a key whose value is not allowed, or one that has its value from that
    key. If nothing reads the key, it is to be left out, whatever its value. config: with its interpolations."""
    wrong = {each.keys[0]: each for each in reversed(found) if each.is_of_value}  # key -> the first
    # also of a value that is not allowed beside another: data.pad must be less than data.image_size
    for key in {each.keys[0] for each in found if each.keys and each.what.startswith(f"{each.keys[0]} must be ")}:
        if out := next((each for each in found if any(key in fix.without for fix in each.fixes)), None):
            wrong[key] = out
    plain: Any = OmegaConf.to_container(config, resolve=False)
    of_key = {f"${{{key}}}": mistake for key, mistake in wrong.items()}
    wrong |= {
        path: of_key[value] for path, value in leaves(plain).items() if isinstance(value, str) and value in of_key
    }
    kept = [each for each in found if all(wrong[key] == each for key in each.keys if key in wrong)]
    return [_leaving(wrong.keys() & each.keys, each) for each in kept]


def _leaving(keys: Set[str], mistake: Mistake) -> Mistake:
    """Return the mistake without the fixes that would keep the wrong value of a key, if one leaves it out."""
    fixes = tuple(fix for fix in mistake.fixes if keys & {*fix.without})
    return replace(mistake, fixes=fixes or mistake.fixes)


def of_given_keys(found: Sequence[Mistake], typed: Sequence[str]) -> list[Mistake]:
    """Return the mistakes without those in keys that another's correction sets, in place of a misspelt key or a word
    that is no option: their value is not the one that was meant. A correction that is itself refused, or whose value
    another replaces, such as words joined to one path, is left out for what corrects that. typed: the options as typed,
    with those of joined words."""
    for first in [each for each in found if each.typed and each.fixes and len(each.fixes[0].options) == 1]:
        (joined,) = first.fixes[0].options
        others = [each for each in found if each is not first]
        after = [each for each in others if each.typed == (joined,)]
        after += [each for each in others if joined in typed and not each.typed and _sets(each, joined)]
        if after:
            whole = replace(after[0], typed=first.typed)
            found = [whole if each is after[0] else each for each in others]
    renaming = [
        each for each in found if each.fixes and each.fixes[0].options and (each.fixes[0].without or each.typed)
    ]
    renamed = {key_of(option) for each in renaming for option in each.fixes[0].options} - set(map(key_of, typed))
    renamed |= {f"{key}.name" for key in renamed}  # of a group
    return [each for each in found if each in renaming or not renamed & set(each.keys)]


def _sets(mistake: Mistake, option: str) -> bool:
    """Return whether the correction of a mistake sets the key of an option."""
    return any(key_of(each) == key_of(option) for fix in mistake.fixes[:1] for each in fix.options)
