"""Words of a script with what can be known put in for its variables. No torch.

Known are the script's own plain assignments, sums, defaults (${NAME:-x}), and those variables of SLURM that follow from
the #SBATCH lines. Another variable without a default stays as it is written, and so does the output of a command.
"""

import ast
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from imagenet_ddp.submitting import syntax

ARGUMENTS = "\0@"  # stands for "$@": what is typed behind the script's name
_NAME = r"[A-Za-z_]\w*"
_SUMS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


@dataclass(frozen=True)
class Word:
    text: str
    known: bool = True  # nothing in it is left as it is written
    line: int = 0


@dataclass
class Command:
    line: int
    words: list[Word]
    exec: bool
    variables: dict[str, Word] = field(default_factory=dict)  # what the script has set by then, and in front of it


class Variables:
    """environ: what SLURM sets; None: it does not set that."""

    def __init__(self, environ: Mapping[str, str | None], arguments: Sequence[Word] = (Word(ARGUMENTS),)):
        self.environ, self.arguments = environ, list(arguments)
        self.arrays: dict[str, list[Word]] = {}
        self.texts: dict[str, Word] = {}
        self.later: Variables | None = None  # the values at the script's end: a function runs after it is read

    def text(self, name: str) -> Word | None:
        """None: not set, as far as is known."""
        if name in self.texts:
            return self.texts[name]
        if name in self.environ:
            value = self.environ[name]
            return None if value is None else Word(value)
        if self.later and name in self.later.texts:
            return self.later.texts[name]
        return Word(f"${name}", False) if name.startswith("SLURM") else None

    def array(self, name: str) -> list[Word] | None:
        found = self.arrays.get(name)
        return self.later.arrays.get(name) if found is None and self.later else found


def run(
    text: str,
    environ: Mapping[str, str | None],
    *,
    first_line: int = 1,
    arguments: Sequence[Word] = (Word(ARGUMENTS),),
) -> list[Command]:
    """The script's commands in their order, with their words expanded."""
    simple = syntax.commands(text, first_line)
    first = Variables(environ, arguments)
    _run(simple, first)
    second = Variables(environ, arguments)
    second.later = first
    return _run(simple, second)


def _run(simple: Sequence[syntax.Simple], variables: Variables) -> list[Command]:
    found = []
    for each in simple:
        if each.array is not None:
            words = [word for raw in each.words for word in expand(raw, variables, each.line)]
            before = variables.arrays.get(each.array.rstrip("+"), []) if each.array.endswith("+") else []
            variables.arrays[each.array.rstrip("+")] = [*before, *words]
            continue
        raws, lines = list(each.words), list(each.lines)
        if raws[0] in ("export", "local", "declare", "readonly", "typeset"):
            raws, lines = [raw for raw in raws[1:] if not raw.startswith("-")], lines[1:]
        own: dict[str, Word] = {}
        while raws and (found_one := re.match(rf"({_NAME})(\+?)=", raws[0])):
            values = expand(raws[0][found_one.end() :], variables, lines[0], split=False)
            own[found_one[1]] = values[0] if values else Word("", True, lines[0])
            if found_one[2]:
                own[found_one[1]] = Word(f"${found_one[1]}", False, lines[0])
            raws, lines = raws[1:], lines[1:]
        if not raws or each.words[0] in ("export", "local", "declare", "readonly", "typeset"):
            variables.texts.update(own)
            continue
        words = [word for raw, line in zip(raws, lines, strict=False) for word in expand(raw, variables, line)]
        found.append(Command(lines[0], words, each.exec, {**variables.texts, **own}))
    return found


def expand(raw: str, variables: Variables, line: int = 0, *, split: bool = True) -> list[Word]:
    """None, one or several words, as a shell would make of it."""
    whole = raw[1:-1] if len(raw) > 1 and raw[0] == raw[-1] == '"' else raw
    if whole in ("$@", "${@}", "$*"):
        return [Word(word.text, word.known, line) for word in variables.arguments]
    if found := re.fullmatch(rf"\$\{{({_NAME})\[[@*]\]\}}", whole):
        words = variables.array(found[1])
        return [Word(raw, False, line)] if words is None else [Word(word.text, word.known, line) for word in words]
    parts: list[tuple[str, bool]] = []  # text, and whether a shell would split it at spaces
    known = _parts(raw, variables, parts, quoted=False)
    if not split:
        return [Word("".join(text for text, _ in parts), known, line)]
    words, now, begun = [], "", False
    for text, splits in parts:
        if not splits:
            now, begun = now + text, True
            continue
        first, *others = re.split(r"\s+", text)
        now, begun = now + first, begun or bool(first)
        for other in others:
            words += [now] if begun else []
            now, begun = other, bool(other)
    words += [now] if begun else []
    return [Word(word, known, line) for word in words]


def _parts(raw: str, variables: Variables, parts: list[tuple[str, bool]], *, quoted: bool) -> bool:
    """Whether all of it is known."""
    at, known = 0, True
    while at < len(raw):
        letter = raw[at]
        if letter == "'" and not quoted:
            end = raw.find("'", at + 1) % (len(raw) + 1)
            parts.append((raw[at + 1 : end], False))
            at = end + 1
        elif letter == '"':
            end = syntax.behind(raw, at)
            parts.append(("", False))
            known &= _parts(raw[at + 1 : end - 1], variables, parts, quoted=True)
            at = end
        elif letter == "\\" and at + 1 < len(raw):
            keeps = quoted and raw[at + 1] not in '$`"\\'
            parts.append((raw[at : at + 2] if keeps else raw[at + 1], False))
            at += 2
        elif letter in "$`":
            end, value = _expansion(raw, at, variables)
            known &= value.known
            parts.append((value.text, not quoted and value.known))
            at = end
        else:
            parts.append((letter, False))
            at += 1
    return known


def _expansion(raw: str, at: int, variables: Variables) -> tuple[int, Word]:
    """(behind it, its value)."""
    if raw[at] == "`" or raw.startswith("$((", at) or raw.startswith(("$(", "${"), at):
        end = syntax.behind(raw, at)
        written = raw[at:end]
        if written.startswith("$((") and written.endswith("))"):
            number = _sum(written[3:-2], variables)
            return end, Word(written, False) if number is None else Word(str(number))
        if written.startswith("${"):
            return end, _braces(written, variables)
        return end, Word(written, False)
    found = re.compile(rf"\$({_NAME}|[0-9@*#?$!-])").match(raw, at)
    if not found:
        return at + 1, Word("$")
    value = variables.text(found[1]) if re.fullmatch(_NAME, found[1]) else None
    return found.end(), value or Word(found[0], False)


def _braces(written: str, variables: Variables) -> Word:
    found = re.fullmatch(rf"\$\{{({_NAME})(?:(:?[-=])(.*))?\}}", written, re.DOTALL)
    if not found:
        return Word(written, False)
    value = variables.text(found[1])
    if found[2] is None:
        return value or Word(written, False)
    if value is not None and (not value.known or value.text or found[2][0] != ":"):
        return value
    words = expand(found[3], variables, split=False)
    return words[0] if words else Word("")


def _sum(text: str, variables: Variables) -> int | None:
    """A whole number, of + - * / % and brackets; None where something is not known."""
    known = True

    def value(found: re.Match[str]) -> str:
        nonlocal known
        word = _braces(found[0], variables) if found[0].startswith("${") else variables.text(found[0].lstrip("$"))
        if word is None or not word.known or not word.text.isdecimal():
            known = False
            return "0"
        return word.text

    plain = re.sub(rf"\$\{{[^}}]*\}}|\$?{_NAME}", value, text)
    try:
        return _evaluate(ast.parse(plain.strip(), mode="eval").body) if known else None
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None


def _evaluate(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in _SUMS:
        return _SUMS[type(node.op)](_evaluate(node.left), _evaluate(node.right))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_evaluate(node.operand)
    raise ValueError
