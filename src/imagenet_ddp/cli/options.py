"""Read each word KEY=VALUE of a command line once, by the type that the schema declares for its key.

A key that is declared as text takes its characters: 2024_11_26 and 1.10 are no numbers, and a value that is the path of
a file or folder is that path, whatever its characters mean elsewhere. Everything else follows Hydra's grammar, by which
the values of a sweep are split first. Does not import torch.
"""

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.conf import HydraConf
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.cli.explain_words import QUOTES, SEARCH_INSTEAD, SWEPT, has_several_values, not_readable
from imagenet_ddp.cli.words import Words
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.paths import is_path
from imagenet_ddp.config.schema import keys
from imagenet_ddp.config.schema.keys import Key, declared
from imagenet_ddp.mistakes import Mistake, key_of, without_effect
from imagenet_ddp.runs.signals import hold_signals
from imagenet_ddp.system.files import exists, expand_home
from imagenet_ddp.system.text import first_sentence, without_secrets

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


@dataclass(frozen=True)
class Typed:
    """The options of a command line. jobs: those of each job, of which there are several with -m. names: the options
    that distinguish each job. mistakes: in options that are left out."""

    options: list[Option]
    jobs: list[list[Option]]
    names: list[str]
    is_multirun: bool
    mistakes: list[Mistake]


class Files:
    """The config files of one command: those of conf/, then those of --config-dir. If both have a
    file of the same name, Hydra reads that of conf/."""

    @hold_signals()
    def __init__(self, verb: str, config_name: str, config_dir: str | None):
        self.config_name = config_name
        self.own_folder = Path(config_dir).absolute() if config_dir is not None else None
        state = GlobalHydra.instance()
        outer, state.hydra = state.hydra, None  # a job of a sweep is read within hydra.main
        try:
            with initialize_config_dir(str(conf_dir()), job_name=verb, version_base="1.3"):
                hydra: Any = state.hydra
                loader: ConfigLoader = hydra.config_loader
        finally:
            state.hydra = outer
        if self.own_folder is not None:
            search_path = loader.get_search_path()
            path, before_schema = f"file://{self.own_folder}", SearchPathQuery(provider="schema")
            search_path.prepend(provider="command-line", path=path, anchor=before_schema)  # as Hydra itself does
            loader = type(hydra.config_loader)(search_path)  # opens its search path when it is made
        self.loader = loader
        # group -> its choices; [] if the key is not a group. Hydra looks at every file again, which takes 30 ms.
        self.names: Callable[[str], list[str]] = functools.cache(
            functools.partial(loader.get_group_options, config_name=config_name)
        )
        # (options that choose files, and those of hydra.*, in Hydra's grammar; mode) -> the config of the files. Raises
        # any exception of Hydra, OmegaConf or YAML.
        self.compose: Callable[[list[str], RunMode], DictConfig] = hold_signals()(
            functools.partial(loader.load_configuration, config_name)
        )


def read(verb: str, words: Words, files: Files) -> Typed:
    """Read the words KEY=VALUE of a command line, and the values that its files give to sweep."""
    reader = OptionReader(verb, files)
    of_others = {each for mistake in words.mistakes for fix in mistake.fixes for each in fix.options if "=" in each}
    options, found = reader.read(words.typed, sweeps=words.flags.multirun, others=of_others)
    if not (words.flags.multirun or any(option.word.upper() == "HYDRA.MODE=MULTIRUN" for option in options)):
        return Typed(options, [options], [""], False, found)
    flags = [word for word in words.argv if word in ("-m", "--multirun") or key_of(word) == "hydra.mode"] or ["-m"]
    if verb not in SWEPT:
        what = f"{flags[0]} starts several jobs, but {verb} runs one"
        found.append(Mistake(what, fixes=(without_effect(*flags),)))
    params, more = _sweeper_params(files, options)
    swept, mistakes = reader.read(params, sweeps=True)
    return Typed(options, *_split_jobs([*swept, *options]), True, found + more + mistakes)


def _sweeper_params(files: Files, options: Sequence[Option]) -> tuple[list[str], list[Mistake]]:
    """Return (the words of a sweep in hydra.sweeper.params, mistakes in the choice of a sweeper)."""
    chosen = [option.for_hydra for option in options if option.for_hydra and not option.jobs]
    try:
        sweeper: Any = OmegaConf.select(files.compose(chosen, RunMode.MULTIRUN), "hydra.sweeper") or {}
    except Exception:  # compose.py finds the mistake
        return [], []
    if not str(sweeper.get("_target_")).endswith(".BasicSweeper"):
        what = "hydra/sweeper must be basic, because all jobs are checked first"
        return [], [Mistake(what, ("hydra/sweeper",), hint=SEARCH_INSTEAD)]
    return [f"{key}={value}" for key, value in (sweeper.get("params") or {}).items()], []


@functools.cache
def declared_with_hydra(verb: str) -> Mapping[str, Key]:
    """Return the command's keys and Hydra's own."""
    return {**declared(verb), **keys.of_class(HydraConf, "hydra.")}


class OptionReader:
    def __init__(self, verb: str, files: Files):
        self.verb, self.files, self.keys = verb, files, declared_with_hydra(verb)
        self.parser = OverridesParser.create(config_loader=files.loader)

    def read(
        self, words: Sequence[str], *, sweeps: bool, others: Set[str] = frozenset()
    ) -> tuple[list[Option], list[Mistake]]:
        """Return (options, mistakes). sweeps: whether a word may have several values, one for each job. others: options
        that the correction of the other words sets."""
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
        return options, self._unreadable(unreadable, others | {option.word for option in options}) + found

    def _unreadable(self, words: Sequence[str], others: Set[str]) -> list[Mistake]:
        """Explain the first word, and the first path for each other key. Other words are often parts of the same quoted
        value. others: the words that can be read."""
        found, of_key, typed = list[Mistake](), dict[tuple[str, ...], int](), {*map(key_of, others)}
        for word in words:
            mistake = not_readable(self.verb, word, self.files.names, self.can_read, others)
            if found and not (mistake.typed and (mistake.keys or mistake.fixes)):
                continue
            number = of_key.setdefault(mistake.keys, len(found)) if mistake.keys else len(found)
            if number == len(found):
                found.append(mistake)
                if "=" in word or typed.isdisjoint(mistake.keys[-1:]):  # else images=a.jpg b.jpg
                    continue
            hint = f"type one value for {mistake.keys[-1]}"
            if mistake.keys == ("images",):
                hint += ", such as a folder, or a pattern in quotes: `'images=FOLDER/*.jpg'`"
            found[number] = replace(found[number], fixes=(), hint=hint)
        return found

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

    def _is_only_path(self, key: str, word: str) -> bool:
        """Return whether a path, which may not exist, has characters that Hydra cannot read: decisions (1).csv."""
        value = word.partition("=")[2]
        return is_path(key, value) and value.translate(QUOTES) == value and not self.can_read(word)

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
        if self._may_be_path(key) and value != "null" and (exists(value) or self._is_only_path(key, word)):
            return [value]
        words = [each.strip() for each in value.split(",")] if "," in value else [value]
        splits = sweeps and "\\" not in value  # an escape, as in a\,b, is for Hydra to read
        if not all(map(_WORD.fullmatch, words)) or (len(words) > 1 and not (splits and self.can_read(word))):
            return None
        return words


def _split_jobs(options: Iterable[Option]) -> tuple[list[list[Option]], list[str]]:
    """Return (the options of each job of a sweep, the options that distinguish each job). Of a key that is typed twice,
    the last word counts."""
    own = [option for option in options if option.key.startswith(HYDRA)]
    last = {(option.sign, option.key): option.jobs or (option,) for option in options if option not in own}
    jobs = [[*own, *job] for job in itertools.product(*last.values())]
    common = set[str].intersection(*({option.word for option in job} for job in jobs))
    return jobs, [without_secrets(" ".join(option.word for option in job if option.word not in common)) for job in jobs]
