"""Read each word of a command line once, by the type that the schema declares for its key.

A key that is declared as text takes its characters: 2024_11_26 and 1.10 are no numbers, and a value that is the path of
a file or folder is that path, whatever its characters mean elsewhere. Everything else follows Hydra's grammar, by which
the values of a sweep are split first. Does not import torch.
"""

import functools
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hydra.conf import HydraConf
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException

from imagenet_ddp.cli.explain import first_sentence, has_several_values, not_readable
from imagenet_ddp.cli.files import Files
from imagenet_ddp.config import keys
from imagenet_ddp.config.keys import Key, declared
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.system.files import exists, expand_home
from imagenet_ddp.system.text import without_secrets

# text in quotes, or neither a list, nor a call, nor an interpolation
_WORD = re.compile(r"""'[^']*'|"[^"]*"|[^][(){}'"~][^][(){}'"]*""")
_PLAIN = re.compile(r"(?!(null|true|false|nan|inf)$)[a-z]\w*", re.ASCII)  # which Hydra reads as it is


HYDRA = ("hydra.", "hydra/")  # begin the keys of Hydra's own config


@dataclass(frozen=True)
class Option:
    """A word of a command line.

    word: as typed. key: the path of a value, or the group of a choice, with @PACKAGE if that is typed. sign: "", +, ++
    or ~ (delete). value: by the type of the key; of a choice, the name of its file. for_hydra: the word in Hydra's
    grammar, if the option chooses a file or is one of hydra.*; else "". is_choice: whether it chooses a file. jobs: one
    option per job, if the word has the values of a sweep.
    """

    word: str
    key: str
    sign: str = ""
    value: Any = None
    for_hydra: str = ""
    is_choice: bool = False
    jobs: tuple["Option", ...] = ()


@functools.cache
def declared_with_hydra(verb: str) -> Mapping[str, Key]:
    """Return the command's keys and Hydra's own."""
    return {**declared(verb), **keys.of_class(HydraConf, "hydra.")}


class OptionReader:
    """Read the options of one command."""

    def __init__(self, verb: str, files: Files):
        self.verb, self.files, self.keys = verb, files, declared_with_hydra(verb)
        self.parser = OverridesParser.create(config_loader=files.loader)

    def read(self, words: Sequence[str], *, sweeps: bool) -> tuple[list[Option], list[Mistake]]:
        """Return (options, mistakes). sweeps: whether a word may have several values, one for each job."""
        options, found, unreadable = list[Option](), list[Mistake](), list[str]()
        for word in map(self._with_home, words):
            texts = self._texts(word, sweeps=sweeps)
            override = None if texts else self._parsed(word)
            if texts is None and (override is None or not override.key_or_group):
                unreadable.append(word)
            elif texts or (override and not override.is_sweep_override()):
                options.append(self._sweep(word, texts) if texts else self._of_grammar(word, override))
            elif override and not sweeps:
                found.append(has_several_values(self.verb, word, override, self.keys))
            elif override and override.is_hydra_override():
                key = override.key_or_group
                what = f"{word}: Hydra's own keys cannot be swept"
                found.append(Mistake(what, (key,), hint=f"type one value for {key}"))
            elif override:
                try:
                    lines = [f"{override.get_key_element()}={value}" for value in override.sweep_string_iterator()]
                    if not lines:
                        raise HydraException("an option has no value.")
                    each = [self._of_grammar(line, self._parsed(line)) for line in lines]
                    options.append(replace(each[0], word=word, jobs=tuple(each)))
                except (HydraException, ValueError) as error:  # range(1,4,0) is a ValueError
                    what = f"the sweep cannot be split into jobs: {first_sentence(error)}"
                    found.append(Mistake(what, hint="type the values as a,b,c or range(1,4)"))
        # only the first: the others are often parts of the same quoted value
        found = [not_readable(self.verb, word, self.files, self.can_read) for word in unreadable[:1]] + found
        return options, found

    def can_read(self, word: str) -> bool:
        """Return whether Hydra's grammar can read a word."""
        return self._parsed(word) is not None

    def _parsed(self, word: str) -> Override | None:
        try:
            return self.parser.parse_overrides([word])[0]
        except HydraException:
            return None

    def _of_grammar(self, word: str, override: Override | None) -> Option:
        assert override is not None
        element, value = override.get_key_element(), override.value()
        key = element.lstrip("+~")
        is_choice = "@" in key or (self._is_group(key) and not isinstance(value, dict))
        for_hydra = word if is_choice or override.is_hydra_override() else ""
        return Option(word, key, element.removesuffix(key), value, for_hydra, is_choice)

    def _is_group(self, key: str) -> bool:
        """Return whether there are files to choose."""
        is_value = key in self.keys and self.keys[key].type in (str, int, float, bool)
        return not is_value and "." not in key and bool(self.files.names(key))

    def _sweep(self, word: str, texts: Sequence[str]) -> Option:
        """Return the option of a text, or of several, one for each job."""
        name, _, _ = word.partition("=")
        each = [self._of_text(f"{name}={text}" if len(texts) > 1 else word, text) for text in texts]
        return replace(each[0], word=word, jobs=tuple(each)) if len(each) > 1 else each[0]

    def _of_text(self, word: str, text: str) -> Option:
        name, _, _ = word.partition("=")
        key = name.lstrip("+")
        sign, known, is_choice, value = name[: len(name) - len(key)], self.keys.get(key), self._is_group(key), text
        for_hydra = is_choice or key.startswith("hydra.")
        if is_choice or known is None or known.nullable or known.is_group:
            value = None if text.lower() == "null" else text
        if text[:1] in ("'", '"') and not exists(text) and (override := self._parsed(f"{key}={text}")):
            value = str(override.value())
        if for_hydra and value is not None and not _PLAIN.fullmatch(value):
            text = QuotedString(value, Quote.single).with_quotes()
        return Option(word, key, sign, value, f"{name}={text}" if for_hydra else "", is_choice)

    def _may_be_path(self, key: str) -> bool:
        known = self.keys.get(key)
        return known is not None and known.type is str and known.allowed is None

    def _with_home(self, word: str) -> str:
        """Expand ~ at the start of a path, which the shell does not do after =."""
        name, _, value = word.partition("=")
        is_path = value.startswith("~") and self._may_be_path(name.lstrip("+"))
        return f"{name}={expand_home(value)}" if is_path else word

    def _texts(self, word: str, *, sweeps: bool) -> list[str] | None:
        """Return the value of a text or a choice, or its values in a sweep, as characters; None if Hydra's grammar
        reads it: another type of key, a list, a call, an interpolation."""
        name, equals, value = word.partition("=")
        key = name.lstrip("+")
        known = self.keys.get(key)
        is_text = known is not None and known.type is str
        if not equals or len(name) - len(key) > 2 or "${" in value:
            return None
        if not is_text and ("." in key or not ((known is not None and known.is_group) or self.files.names(key))):
            return None
        if self._may_be_path(key) and value != "null" and exists(value):
            return [value]
        words = [each.strip() for each in value.split(",")] if "," in value else [value]
        splits = sweeps and "\\" not in value  # of an escape, as in a\,b, Hydra knows the meaning
        if not all(map(_WORD.fullmatch, words)) or (len(words) > 1 and not (splits and self.can_read(word))):
            return None
        return words


def split_jobs(options: Iterable[Option]) -> tuple[list[list[Option]], list[str]]:
    """Return (the options of each job of a sweep, the options that distinguish each job). Of a key that is typed twice,
    the last word counts."""
    own = [option for option in options if option.key.startswith(HYDRA)]
    last = {(option.sign, option.key): option.jobs or (option,) for option in options if option not in own}
    jobs = [[*own, *job] for job in itertools.product(*last.values())]
    common = set[str].intersection(*({option.word for option in job} for job in jobs))
    return jobs, [without_secrets(" ".join(option.word for option in job if option.word not in common)) for job in jobs]
