"""Join the words that the shell made of one value, because it has spaces and no quotes. Does not import torch."""

import itertools
import re
import shlex
from collections.abc import Iterator, Sequence

from imagenet_ddp.cli.known_terms import term_of
from imagenet_ddp.config import conf_dir, option_of
from imagenet_ddp.config.paths import is_path
from imagenet_ddp.config.schema.keys import declared
from imagenet_ddp.mistakes import Fix, Mistake, key_of, setting
from imagenet_ddp.system.files import exists


def without_spaces(verb: str, words: Sequence[str]) -> tuple[list[str], list[Mistake]]:
    """Return (the words KEY=VALUE of a command, with those joined that have spaces around =, or in a path, a list or
    the name of the run; a mistake for each)."""
    kept, found, rest = list[str](), list[Mistake](), list(words)
    while rest:
        if typed := _spaces_around_equals(rest):
            joined = re.sub(r"\s*=\s*", "=", "".join(typed), count=1)
            what, fix = f"{' '.join(typed)} must have no spaces around =", setting(joined)
        elif _is_key(verb, rest[0]) and len(rest) > 1 and not re.search("^-|=", rest[1]) and not _is_key(verb, rest[1]):
            typed, joined = rest[:2], f"{rest[0]}={rest[1]}"
            what, fix = f"{' '.join(typed)} must have = between key and value", setting(joined)
        elif typed := _list_with_spaces(rest):
            text = re.sub(r"[\s,]*,[\s,]*|(?<![\[{:\s])\s+(?![\]}:\s])", ",", " ".join(typed))
            joined = text.replace(" ", "")
            what, fix = f"{' '.join(typed)} must have no spaces, or be in quotes", setting(joined)
        elif typed := path_with_spaces(verb, rest, words):
            what, fix = in_quotes(typed).what, in_quotes(typed).fixes[0]
            joined = fix.options[0]
        else:
            kept.append(rest.pop(0))
            continue
        del rest[: len(typed)]
        kept.append(joined)
        found.append(Mistake(what, (key_of(joined),), (fix,), typed=tuple(typed)))
    return kept, found


def in_quotes(words: Sequence[str]) -> Mistake:
    """Return the mistake of words that are one path."""
    joined = " ".join(words)
    fix = Fix((joined,), said=f"type {shlex.quote(joined)}")
    return Mistake(f"{joined} has a space, and must be in quotes", (key_of(joined),), (fix,), typed=tuple(words))


def _is_key(verb: str, word: str) -> bool:
    """Return whether a word is a key that needs a value, also one of another program, or a group of choices, and no
    path."""
    known, term = declared(verb).get(word), term_of(word, verb)
    is_group = word.isidentifier() and (conf_dir() / word).is_dir()
    needs_value = (known is not None and known.type is not bool) or (term is not None and "{}" in term.here)
    return (is_group or needs_value) and not exists(word)


def _spaces_around_equals(words: Sequence[str]) -> list[str]:
    """Return the leading words that the shell made of KEY = VALUE, KEY= VALUE or KEY =VALUE; [] if there are none."""
    word, sign, value = (*words, "", "")[:3]
    # one word, in quotes; of KEY="$(wc -l < FILE)", whose number has spaces before it on macOS, Hydra reads the number
    if re.match(r"[\w./+~]+(\s+=\s*|=\s+(?![\d\s]))\S", word) and not exists(word.partition("=")[2]):
        return [word]
    if word.endswith("=") and "=" not in word[:-1] + sign and sign:  # KEY= VALUE
        return [word, sign]
    if "=" not in word and sign == "=" and value and "=" not in value:  # KEY = VALUE
        return [word, sign, value]
    if "=" not in word and len(sign) > 1 and sign[0] == "=" and "=" not in sign[1:]:  # KEY =VALUE
        return [word, sign]
    return []


def _list_with_spaces(words: Sequence[str]) -> list[str]:
    """Return the leading words KEY=[A, B, ... or KEY=A, B, ... that the shell made of one list; [] if there is none."""
    if not re.match(r"[^=]+=.*([\[{]|,$)", words[0]) or exists(words[0].partition("=")[2]):
        return []
    count = 1
    while count < len(words) and "=" not in words[count] and not words[count].startswith("-"):
        text = " ".join(words[:count])
        if _is_closed(text) and not text.endswith(",") and words[count][0] != ",":
            break
        count += 1
    text = " ".join(words[:count])
    return [*words[:count]] if count > 1 and _is_closed(text) else []


def _is_closed(text: str) -> bool:
    return text.count("[") == text.count("]") and text.count("{") == text.count("}")


def path_with_spaces(verb: str, words: Sequence[str], line: Sequence[str]) -> list[str]:
    """Return the leading words PATH or KEY=PATH, WORD, ... that are one path, or the name of the run; [] if the first
    is whole. line: all words KEY=VALUE of the command."""
    if whole := of_one_path(words):
        return whole
    key, _, value = words[0].rpartition("=")
    more = [*_of_one_text(verb, key, _without_key(words[1:]), line)]
    is_open = bool(more) and (key == "name" or (is_path(key, " ".join([value, *more])) and not exists(value)))
    return [words[0], *more] if is_open else []


def of_one_path(words: Sequence[str]) -> list[str]:
    """Return the leading words PATH or KEY=PATH, WORD, ... that are one path which exists; [] if there are none."""
    more = _without_key(words[1:])
    for count in range(len(more), 0, -1):
        if exists(" ".join([words[0].rpartition("=")[2], *more[:count]])):
            return [*words[: 1 + count]]
    return []


def _without_key(words: Sequence[str]) -> list[str]:
    return [*itertools.takewhile(lambda word: "=" not in word, words)]


def _of_one_text(verb: str, key: str, words: Sequence[str], line: Sequence[str]) -> Iterator[str]:
    """Yield the leading words that have no meaning of their own: they are no option, no path, no yes/no key, and name
    no choice. A path of images has none if the key of images is typed, or is this one."""
    keys, typed = declared(verb), {key, *map(key_of, line)}
    images = "images" if "images" in keys else "data.root"
    for word in words:
        is_flag = word in keys and keys[word].type is bool
        is_choice = (option := option_of(verb, word)) and key_of(option) not in typed
        is_images = exists(word) and images not in typed
        if not word.strip() or re.search(r"^-.|^[/~]|\.py$", word) or is_flag or is_choice or is_images:
            return
        yield word
