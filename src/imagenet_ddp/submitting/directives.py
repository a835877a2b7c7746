"""The #SBATCH lines of a script, read as SLURM reads them. No torch.

Tried with sbatch 22.05: they are looked at up to the first line that is neither empty nor a comment; a # that is not
quoted ends the line, in the middle of a word too; a space may stand for =; the later of two wins.
"""

import re
from dataclasses import dataclass, field

# sbatch's own and those of srun that are looked at here -> whether they take a value: "=": only behind an equals sign
LONG = {
    **dict.fromkeys(
        (
            *("account", "acctg-freq", "array", "batch", "bb", "bbf", "begin", "chdir", "cluster-constraint"),
            *("clusters", "comment", "constraint", "container", "core-spec", "cores-per-socket", "cpu-freq"),
            *("cpus-per-gpu", "cpus-per-task", "deadline", "delay-boot", "dependency", "distribution", "error"),
            *("exclude", "export", "export-file", "extra-node-info", "gid", "gpu-bind", "gpu-freq", "gpus"),
            *("gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "gres-flags", "hint", "input", "job-name"),
            *("licenses", "mail-type", "mail-user", "mcs-label", "mem", "mem-bind", "mem-per-cpu", "mem-per-gpu"),
            *("mincpus", "network", "nodefile", "nodelist", "nodes", "ntasks", "ntasks-per-core", "ntasks-per-gpu"),
            *("ntasks-per-node", "ntasks-per-socket", "open-mode", "output", "partition", "power", "prefer"),
            *("priority", "profile", "qos", "reservation", "signal", "sockets-per-node", "switches"),
            *("thread-spec", "threads-per-core", "time", "time-min", "tmp", "tres-bind", "tres-per-task", "uid"),
            *("wait-all-nodes", "wckey", "wrap", "kill-on-invalid-dep", "cpu-bind", "accel-bind", "mpi", "het-group"),
            *("epilog", "prolog", "relative", "task-epilog", "task-prolog", "threads", "msg-timeout", "multi-prog"),
        ),
        True,
    ),
    **dict.fromkeys(("exclusive", "get-user-env", "nice", "propagate", "kill-on-bad-exit", "immediate"), "="),
    **dict.fromkeys(
        (
            *("contiguous", "exact", "hold", "ignore-pbs", "no-kill", "no-requeue", "overcommit", "oversubscribe"),
            *("parsable", "quiet", "reboot", "requeue", "spread-job", "test-only", "use-min-nodes", "verbose", "wait"),
            *("label", "overlap", "unbuffered", "pty", "whole", "share", "disable-status", "preserve-env"),
        ),
        False,
    ),
}
LONG |= {"multi-prog": False, "workdir": True, "slurmd-debug": True, "interactive": False, "external-launcher": False}
SHORT = {
    **{"A": "account", "a": "array", "b": "begin", "D": "chdir", "M": "clusters", "C": "constraint", "S": "core-spec"},
    **{"c": "cpus-per-task", "d": "dependency", "m": "distribution", "e": "error", "x": "exclude"},
    **{"B": "extra-node-info"},
    **{"G": "gpus", "H": "hold", "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "F": "nodefile"},
    **{"w": "nodelist", "N": "nodes", "n": "ntasks", "o": "output", "O": "overcommit", "s": "oversubscribe"},
    **{"p": "partition", "q": "qos", "Q": "quiet", "t": "time", "v": "verbose", "W": "wait"},
    **{"K": "kill-on-bad-exit", "l": "label", "u": "unbuffered", "r": "relative", "I": "immediate", "T": "threads"},
}  # fmt: skip


@dataclass(frozen=True)
class Option:
    """One option, of a #SBATCH line or of srun. value: "" where it takes none."""

    name: str  # the long one, without --
    value: str
    line: int
    known: bool = True  # it is one of SLURM's

    @property
    def text(self) -> str:
        return f"--{self.name}={self.value}" if self.value else f"--{self.name}"


@dataclass
class Directives:
    options: list[Option] = field(default_factory=list)
    late: list[int] = field(default_factory=list)  # lines behind the first command, which SLURM does not read
    near: list[int] = field(default_factory=list)  # lines that look like #SBATCH, and are comments
    stray: list[tuple[int, str]] = field(default_factory=list)  # words that are no option

    def last(self, *names: str) -> Option | None:
        """The one that wins."""
        return next((option for option in reversed(self.options) if option.name in names), None)


def read(text: str) -> Directives:
    found, behind = Directives(), False
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith("#SBATCH"):
            if behind:
                found.late.append(number)
                continue
            options, stray, _ = take(words(line[len("#SBATCH") :]), number)
            found.options += options
            found.stray += [(number, word) for word in stray]
        elif not line.strip() or line.lstrip().startswith("#"):
            # a double ## is how a line is put aside
            if not behind and re.match(r"\s*#\s*SBATCH\s+-|#[Ss][Bb][Aa][Tt][Cc][Hh]\s+-", line):
                found.near.append(number)
        else:
            behind = True
    return found


def words(text: str) -> list[str]:
    """Split as sbatch splits, which is not quite as a shell does."""
    found: list[str] = []
    word, quote, escaped = "", "", False
    begun = False
    for letter in text:
        if escaped:
            word, escaped, begun = word + letter, False, True
        elif letter == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if letter == quote else (word + letter, quote)
        elif letter in "'\"":
            quote, begun = letter, True
        elif letter == "#":
            break
        elif letter.isspace():
            found += [word] if begun else []
            word, begun = "", False
        else:
            word, begun = word + letter, True
    return [*found, word] if begun else found


def take(tokens: list[str], line: int, *, to_command: bool = False) -> tuple[list[Option], list[str], list[str]]:
    """(options, words that are none, the command behind them). to_command: stop at the first word that is none, as
    srun does."""
    options: list[Option] = []
    stray: list[str] = []
    rest = list(tokens)
    while rest:
        if to_command and (not rest[0].startswith("-") or rest[0] == "--"):
            return options, stray, rest[1:] if rest[0] == "--" else rest
        token = rest.pop(0)
        if token.startswith("--"):
            typed, equals, value = token[2:].partition("=")
            name = _whole(typed)
            if not equals and LONG.get(name) is True and rest:
                value = rest.pop(0)
            options.append(Option(name, value, line, name in LONG))
        elif token.startswith("-") and len(token) > 1:
            name, value = SHORT.get(token[1], token[1]), token[2:]
            if not value and LONG.get(name) is True and rest:
                value = rest.pop(0)
            options.append(Option(name, value, line, token[1] in SHORT))
        else:
            stray.append(token)
    return options, stray, []


def _whole(name: str) -> str:
    """SLURM takes the beginning of a name where only one fits."""
    fits = [known for known in LONG if known.startswith(name)]
    return fits[0] if len(fits) == 1 and name not in LONG else name
