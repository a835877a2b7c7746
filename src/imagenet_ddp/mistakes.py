"""Say what is wrong in a command or its input, and what to type instead."""

import re
import shlex
from dataclasses import dataclass

# Words in the option of a fix that stand for something of the user's.
PLACEHOLDERS = {"CLASS", "FILE", "FOLDER", "HOST", "NAME", "PACKAGE", "PASSWORD", "PATH", "SIZE", "TIME", "USER",
                "VALUE"}  # fmt: skip


def key_of(option: str) -> str:
    """Return the key of a typed option, such as data.root for +data.root=FOLDER."""
    return option.partition("=")[0].lstrip("+~")


def stands_for(path: str) -> str:
    """Return the begin of a hint about a word of the documentation that was typed in place of a path, else ""."""
    return f"{path} stands for a path of your own: " if path in {*PLACEHOLDERS, "NEW"} else ""


@dataclass(frozen=True)
class Fix:
    """One way to correct a command.

    options: to type; each replaces the typed option of its key. without: typed options, or their keys, to leave out.
    aim: what this achieves, such as "to use 2 CPU processes". said: words for the whole, in place of "set ... and leave
    ... out". run: a command for the shell after which the same line is right, in place of options. is_example: the
    values only illustrate what may be typed. is_meant: what is typed now says the same: a value in another form, or an
    option without effect that is left out.
    """

    options: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    aim: str = ""
    said: str = ""
    run: str = ""
    is_example: bool = False
    is_meant: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether it corrects the command line as it stands."""
        return not self.run and not any({*re.findall(r"[A-Z]+", option)} & PLACEHOLDERS for option in self.options)

    @property
    def words(self) -> str:
        """Return the fix as part of a sentence: "set optim.lr=0.1", "leave optim.momentum out"."""
        if self.said or self.run:
            return self.said or f"run `{self.run}`"
        typed = shlex.join(self.options)
        # in backticks, a command is never wrapped
        parts = [f"set {typed if typed == ' '.join(self.options) else f'`{typed}`'}"] if self.options else []
        parts += [f"leave {' and '.join(self.without)} out"] if self.without else []
        lead = "for example, " if self.is_example else ""
        return lead + " and ".join(parts) + (f" {self.aim}" if self.aim else "")


def setting(*options: str, aim: str = "") -> Fix:
    return Fix(options, aim=aim)


def example(*options: str, aim: str = "") -> Fix:
    return Fix(options, aim=aim, is_example=True)


def meant(*options: str, aim: str = "") -> Fix:
    return Fix(options, aim=aim, is_meant=True)


def did_you_mean(option: str) -> Fix:
    return Fix((option,), said=f"did you mean {shlex.quote(option)}?", is_meant=True)


def without(*keys: str) -> Fix:
    return Fix(without=keys)


def without_effect(*keys: str) -> Fix:
    """Return the fix of options that would change nothing, wherever they stand."""
    return Fix(without=keys, is_meant=True)


@dataclass(frozen=True)
class Mistake:
    """A mistake in a command or its input.

    what: what was expected and what was found, without a full stop: "optim.lr must be a number > 0, got -1". keys: the
    keys whose values make it a mistake. fixes: ways to correct it. hint: advice where the user must decide or do
    something else; it follows the fixes. typed: words of the command line that are no options, which a fix replaces.
    missing: the path that does not exist, if that is the whole mistake.
    """

    what: str
    keys: tuple[str, ...] = ()
    fixes: tuple[Fix, ...] = ()
    hint: str = ""
    typed: tuple[str, ...] = ()
    missing: str = ""

    @property
    def is_of_value(self) -> bool:
        """Whether it is in the form of must_be: the value of one key is not allowed, whatever else is set."""
        return len(self.keys) == 1 and self.what.startswith(f"{self.keys[0]} must be ") and ", got " in self.what

    @property
    def is_corrected(self) -> bool:
        """Whether the first fix corrects the command line."""
        return bool(self.fixes) and self.fixes[0].is_complete

    @property
    def advice(self) -> str:
        """Return what follows "Hint: ", without a full stop."""
        words = [fix.words for fix in self.fixes]
        # "set a=1, or b=2" where all ways are of one kind
        if words and re.match("(for example, )?set ", words[0]):
            words[1:] = [re.sub("^(for example, )?set ", "", text) for text in words[1:]]
        return ", or ".join([*words, *filter(None, [self.hint])])

    def __str__(self) -> str:
        end = "" if self.what.endswith((".", "?")) else "."
        advice = self.advice
        return f"{self.what}{end}" + (f" Hint: {advice}{'' if advice.endswith(('.', '?')) else '.'}" if advice else "")


def must_be(key: str, allowed: str, got: str, *fixes: Fix, hint: str = "") -> Mistake:
    """Return the mistake of a value of one key: "KEY must be ALLOWED, got GOT"."""
    return Mistake(f"{key} must be {allowed}, got {got}", (key,), fixes, hint)
