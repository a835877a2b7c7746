"""Find what was not meant as it was typed: invisible characters, empty values, a comma as the decimal point, and keys
of Hydra that have no effect."""

import re
import unicodedata
from collections.abc import Mapping, Sequence

from imagenet_ddp.config.keys import Key, key_of
from imagenet_ddp.mistakes import Fix, Mistake, setting, without
from imagenet_ddp.system.files import exists

# Keys of Hydra that have no effect, because a run does not use Hydra's own start of a job.
UNREAD = ("hydra.job.chdir", "hydra.job.env_set", "hydra.callbacks", "hydra.output_subdir")
JOINERS = "\u200c\u200d"  # part of the spelling in Persian, and of emoji


def read(words: Sequence[str], keys: Mapping[str, Key], *, sweeps: bool) -> tuple[list[str], list[Mistake]]:
    """Return (the words as they were probably meant, without empty options; mistakes). keys: those that are declared.
    sweeps: a comma separates the values of a sweep."""
    kept: list[str] = []
    found: list[Mistake] = []
    for word in words:
        visible = "".join(char for char in word if not _is_invisible(char))
        name, equals, value = visible.partition("=")
        key = key_of(visible)
        declared = keys.get(key)
        if visible != word and not exists(word.partition("=")[2]):
            found.append(_invisible(word, visible, key))
        else:
            visible = word
        is_free_text = declared is not None and declared.type is str and declared.allowed is None
        if equals and (not value.strip() or (is_free_text and value in ("''", '""'))):
            hint = f"if it is a shell variable, set that first; type {name}=null for none"
            found.append(Mistake(f"{key or word} is empty", (key,), hint=hint))
        elif key.startswith(UNREAD):
            found.append(Mistake(f"{word} has no effect", (key,), (without(word),)))
        elif declared is not None and declared.type is float and not sweeps and re.fullmatch(r"-?\d+,\d+", value):
            found.append(
                Mistake(
                    f"{word} has a comma", (key,), (setting(visible.replace(",", "."), aim="with a decimal point"),)
                )
            )
        else:
            kept.append(visible)
    return kept, found


def _is_invisible(char: str) -> bool:
    kind = unicodedata.category(char)
    return char not in f" \t\n{JOINERS}" and kind in ("Cc", "Cf", "Zs", "Zl", "Zp")


def _invisible(word: str, visible: str, key: str) -> Mistake:
    char = next(filter(_is_invisible, word))
    name = unicodedata.name(char, "control character").lower()
    if char == "\r":
        name = "carriage return"
    code = f"U+{ord(char):04X}"
    shown = "".join(f"<U+{ord(each):04X}>" if _is_invisible(each) else each for each in word)
    fix = Fix((visible,), () if "=" in visible else (word,))
    hint = "if a script contains it, run `sed -i 's/\\r$//' SCRIPT`: it was saved on Windows" if char == "\r" else ""
    return Mistake(f"{shown} contains an invisible character, {name} ({code})", (key,), (fix,), hint, (word,))
