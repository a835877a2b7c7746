"""A shell script cut into simple commands of words, as they are written: quotes, $ and all. No torch.

No shell: loops, branches and functions are read from top to bottom, once. What that cannot do justice to is told apart
later, where words are expanded.
"""

import re
from dataclasses import dataclass, field

# words that may stand before a command
RESERVED = {"if", "then", "else", "elif", "fi", "while", "until", "do", "done", "{", "}", "!", "time", "exec", "esac"}
_OPERATOR = re.compile(r"\d*(?:>>|<<<|>&|<&|&>>|&>|<|>)&?-?|\|\||&&|;;|\|&|[;|&()]")
_REDIRECTS = re.compile(r"\d*(?:>>|<<<|>&|<&|&>>|&>|<|>)&?-?$")
_HEREDOC = re.compile(r"<<-?\s*(['\"]?)(\w+)\1")
_CLOSING = {"(": ")", "{": "}"}


@dataclass
class Simple:
    """One command, or one assignment of an array."""

    line: int
    words: list[str] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)  # of each word
    array: str | None = None  # its name, with + at the end where words are added
    exec: bool = False  # takes the shell's place


def commands(text: str, first_line: int = 1) -> list[Simple]:
    return _Reader(_without_heredocs(text), first_line).read()


def behind(text: str, at: int) -> int:
    """The place behind the quote, or the expansion, that begins at `at`."""
    return _Reader(text, 1)._skip(at)


def _without_heredocs(text: str) -> str:
    """Their lines emptied, so that numbers stay."""
    kept, waits_for = [], None
    for line in text.split("\n"):
        if waits_for is not None:
            waits_for = None if line.strip() == waits_for else waits_for
            kept.append("")
            continue
        found = None if line.lstrip().startswith("#") else _HEREDOC.search(line.replace("<<<", "   "))
        waits_for = found[2] if found else None
        kept.append(line[: found.start()] + line[found.end() :] if found else line)
    return "\n".join(kept)


class _Reader:
    def __init__(self, text: str, first_line: int):
        self.text, self.at, self.line = text, 0, first_line
        self.found: list[Simple] = []
        self.now = Simple(first_line)

    def read(self) -> list[Simple]:
        while self.at < len(self.text):
            self._step()
        self._end()
        return self.found

    def _step(self) -> None:
        text, at = self.text, self.at
        if text.startswith("\\\n", at):
            self.at, self.line = at + 2, self.line + 1
        elif text[at] == "\n":
            self._end()
            self.at, self.line = at + 1, self.line + 1
        elif text[at].isspace():
            self.at += 1
        elif text[at] == "#":
            end = text.find("\n", at)
            self.at = len(text) if end < 0 else end
        elif array := re.compile(r"([A-Za-z_]\w*)(\+?)=\(").match(text, at):
            self._end()
            self._array(array[1] + array[2], array.end())
        elif (operator := _OPERATOR.match(text, at)) and not text.startswith(("$(", "<(", ">("), at):
            self.at = operator.end()
            if _REDIRECTS.match(operator[0]):
                while self.at < len(text) and text[self.at] in " \t":
                    self.at += 1
                self._word()  # where it leads to
            else:
                self._end()
        else:
            line, word = self.line, self._word()
            if not self.now.words and word in RESERVED:
                self.now.exec = word == "exec"
            elif word:
                self.now.line = self.now.line if self.now.words else line
                self.now.words.append(word)
                self.now.lines.append(line)

    def _end(self) -> None:
        if self.now.words or self.now.array:
            self.found.append(self.now)
        self.now = Simple(self.line)

    def _array(self, name: str, start: int) -> None:
        end = self._closing(start, "(")
        inside = _Reader(self.text[start:end], self.line)
        words: list[str] = []
        while inside.at < len(inside.text):
            letter = inside.text[inside.at]
            if letter.isspace() or inside.text.startswith("\\\n", inside.at):
                inside.at += 2 if letter == "\\" else 1
            elif letter == "#":
                stop = inside.text.find("\n", inside.at)
                inside.at = len(inside.text) if stop < 0 else stop
            else:
                before = inside.at
                words.append(inside._word())
                inside.at += inside.at == before  # what no word begins with
        self.found.append(Simple(self.line, words, [self.line] * len(words), array=name))
        self.line += self.text.count("\n", self.at, end)
        self.at = end + 1
        self.now = Simple(self.line)

    def _word(self) -> str:
        """From here to the end of the word; continuation lines inside of it are joined."""
        text, start, word = self.text, self.at, ""
        while self.at < len(text):
            letter = text[self.at]
            if text.startswith("\\\n", self.at):
                word += text[start : self.at]
                self.at += 2
                self.line += 1
                start = self.at
                continue
            if letter.isspace() or (letter in ";|&()<>" and not text.startswith(("<(", ">("), self.at)):
                break
            before = self.at
            self.at = self._skip(self.at)
            self.line += text.count("\n", before, self.at)
        return word + text[start : self.at]

    def _skip(self, at: int) -> int:
        """Behind the quote, the expansion or the letter that begins here."""
        text = self.text
        if text[at] == "\\":
            return min(at + 2, len(text))
        if text[at] == "'":
            end = text.find("'", at + 1)
            return len(text) if end < 0 else end + 1
        if text[at] == "`":
            end = text.find("`", at + 1)
            return len(text) if end < 0 else end + 1
        if text[at] == '"':
            at += 1
            while at < len(text) and text[at] != '"':
                at = self._skip(at) if text[at] in "\\`" or text.startswith(("$(", "${"), at) else at + 1
            return min(at + 1, len(text))
        if text.startswith(("$(", "${", "<(", ">("), at):
            return min(self._closing(at + 2, text[at + 1]) + 1, len(text))
        return at + 1

    def _closing(self, at: int, bracket: str) -> int:
        """Where the bracket is closed that is open at `at`."""
        text = self.text
        while at < len(text) and text[at] != _CLOSING[bracket]:
            at = self._closing(at + 1, bracket) + 1 if text[at] == bracket else self._skip(at)
        return at
