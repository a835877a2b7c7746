"""The #SBATCH lines by themselves."""

from collections.abc import Iterator
from difflib import get_close_matches

from imagenet_ddp.submitting.case import Finding, Script
from imagenet_ddp.submitting.directives import LONG
from imagenet_ddp.submitting.job import seconds

# options that say the same in other words: one of each is enough
_TWINS = (("requeue", "no-requeue"), ("mem", "mem-per-cpu", "mem-per-gpu"))


def head(script: Script) -> Iterator[Finding]:
    if not script.text.startswith("#!"):
        yield Finding(1, "sbatch wants an interpreter in the first line.", "#!/usr/bin/env bash")
    if "\r\n" in script.text:
        yield Finding(1, "sbatch refuses DOS line ends (\\r\\n).", f"`sed -i 's/\\r$//' {'FILE'}`")
    if not script.launches:
        last = len(script.text.splitlines())
        yield Finding(last, "no line starts python -m imagenet_ddp.train.", 'srun python -m imagenet_ddp.train "$@"')


def late(script: Script) -> Iterator[Finding]:
    for number in script.directives.late:
        line = script.text.splitlines()[number - 1].strip()
        what = f"{line} stands behind the first command, where SLURM ignores it without a word."
        yield Finding(number, what, "move it up, before the first command.")


def near(script: Script) -> Iterator[Finding]:
    for number in script.directives.near:
        line = script.text.splitlines()[number - 1]
        options = line.partition("-")[1] + line.partition("-")[2]
        what = "this is a comment: SLURM reads lines that begin with #SBATCH, in capitals and without a space."
        yield Finding(number, what, f"#SBATCH {options}, or ##SBATCH {options} to put it aside.", is_mistake=False)


def words(script: Script) -> Iterator[Finding]:
    for number, word in script.directives.stray:
        yield Finding(number, f"{word} is no option: sbatch refuses the script.", f"#SBATCH --{_close(word)}")
    for option in script.directives.options:
        if option.value.startswith("=") and option.known:
            what = f"a short option takes its value without =: sbatch reads {option.value}."
            yield Finding(option.line, what, f"#SBATCH --{option.name}{option.value}")
        elif not option.known:
            close = _close(option.name)
            hint = f"#SBATCH --{close}" + (f"={option.value}" if option.value else "")
            what = f"--{option.name} is not an option of sbatch, unless your cluster has added it."
            if close == option.name:
                hint = "`sbatch --help` lists them."
            yield Finding(option.line, what, hint, is_mistake=close != option.name)
        elif "$" in option.value:
            what = f"SLURM takes {option.text} as it is written: variables are not put in here."
            yield Finding(option.line, what, "write the value; %j stands for the job's number in names of files.")


def duplicates(script: Script) -> Iterator[Finding]:
    seen: dict[str, tuple[str, int]] = {}
    for option in script.directives.options:
        before = seen.get(option.name)
        if before and before[0] != option.text:
            what = f"{option.text} and, in line {before[1]}, {before[0]}: the later one holds."
            yield Finding(option.line, what, f"remove line {before[1]}.")
        seen[option.name] = (option.text, option.line)
    for twins in _TWINS:
        both = [seen[name] for name in twins if name in seen]
        if len(both) > 1:
            first, second = sorted(both, key=lambda each: each[1])[:2]
            yield Finding(second[1], f"{second[0]} and, in line {first[1]}, {first[0]} exclude each other.",
                          f"remove line {first[1]}.")  # fmt: skip
    gpus = [each for each in script.directives.options if each.name in ("gpus-per-node", "gpus")]
    gres = [each for each in script.directives.options if each.name == "gres" and "gpu" in each.value]
    if gpus and gres:
        first, second = sorted((gpus[-1], gres[-1]), key=lambda each: each.line)
        what = f"{second.text} and, in line {first.line}, {first.text} both ask for GPUs."
        yield Finding(second.line, what, f"remove line {gres[-1].line}; #SBATCH {gpus[-1].text}")


def times(script: Script) -> Iterator[Finding]:
    limit, signal = script.option("time"), script.option("signal")
    if limit and limit.known and seconds(limit.value) is None:
        yield Finding(limit.line, f"--time={limit.value} is no time.", "#SBATCH --time=24:00:00")
    total = seconds(limit.value) if limit else None
    before = signal.value.partition("@")[2] if signal else ""
    if limit and signal and total is not None and before.isdecimal() and total <= int(before):
        what = f"the time limit ({total:.0f} s) is not longer than the signal comes before it ({before} s)."
        yield Finding(limit.line, what, "#SBATCH --time=24:00:00")


def name(script: Script) -> Iterator[Finding]:
    option = script.option("job-name")
    if option and option.value in ("bash", "interactive"):
        what = f"Lightning by itself takes a job called {option.value} for an interactive one; this project does not."
        yield Finding(option.line, what, "#SBATCH --job-name=imagenet_ddp", is_mistake=False)


def _close(word: str) -> str:
    name, equals, value = word.lstrip("-").partition("=")
    found = get_close_matches(name, LONG, 1, 0.75)
    return (found[0] if found else name) + equals + value


RULES = (head, late, near, words, duplicates, times, name)
