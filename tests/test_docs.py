"""Every command of README.md and docs/ composes: its keys, groups and values are known."""

import ast
import re
import shlex
from pathlib import Path

import pytest

from imagenet_ddp.cli.parse import composed
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report import __main__ as report
from imagenet_ddp.tune import search_space

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
COMMAND = re.compile(r"(?:-m imagenet_ddp[. ]|imagenet-ddp )(?P<verb>[a-z]+)\b(?P<rest>.*)")
SBATCH = re.compile(r"scripts/(?:train|sweep|train_torchrun|doctor)\.sbatch(?P<rest>.*)")
# A page shows these because they are refused, or they are options of another program.
REFUSED = ("data.batch_sise", "-a resnet50 --lr")
PLACEHOLDERS = {
    "<name>": "NAME", "<time>": "TIME", "seed=N": "seed=1", "=LOCAL_RANK": "=0", "=WORLD_SIZE": "=8",
}  # fmt: skip
ANY_OPTIONS = re.compile(r"<[a-z ]*options>|(?<=\s)(?:\.\.\.|…)(?=\s|$)")


def documented() -> list[tuple[str, str, str]]:
    """Return (page:line, command, its options) of each line that shows one, the same ones once."""
    found: dict[tuple[str, str], str] = {}
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        is_fenced = False
        for number, line in enumerate(lines, 1):
            is_fenced ^= line.startswith("```")
            spans = [line] if is_fenced or line.startswith("    ") else re.findall(r"`([^`]+)`", line)
            for span in spans:
                while span.endswith("\\") and span is spans[0]:
                    span = span[:-1] + lines[number].strip()
                match = COMMAND.search(span)
                verb = match["verb"] if match else "train"
                match = match or (SBATCH.search(span) if "sbatch" in span else None)
                sweep = " -m" if "sweep.sbatch" in span else ""
                if match and verb in (*COMMANDS, "report") and not any(word in span for word in REFUSED):
                    found.setdefault((verb, match["rest"].strip() + sweep), f"{page.relative_to(ROOT)}:{number}")
    return [(place, verb, rest) for (verb, rest), place in found.items()]


def _argv(rest: str) -> list[str]:
    rest = ANY_OPTIONS.sub("", re.split(r"\s(?:#|\||>|&|2>)|;", f" {rest}")[0])
    for word, value in PLACEHOLDERS.items():
        rest = rest.replace(word, value)
    return shlex.split(rest)


COMMANDS_SHOWN = documented()


def test_the_documentation_shows_every_command():
    assert {verb for _, verb, _ in COMMANDS_SHOWN} == {*COMMANDS, "report"}


@pytest.mark.slow
@pytest.mark.parametrize("where", sorted({where.partition(":")[0] for where, _, _ in COMMANDS_SHOWN}))
def test_documented_commands_compose(where: str):
    refused = []
    for place, verb, rest in COMMANDS_SHOWN:
        if place.partition(":")[0] == where:
            try:
                if verb == "report":
                    files = "out=FOLDER", "near_copies=checked/near_copies.csv"
                    report.read([".", *(word for word in _argv(rest) if "=" in word and word not in files)])
                else:
                    argv = _argv(rest)
                    composed(verb, search_space.as_overrides(argv) if verb == "tune" else argv)
            except (ConfigError, ValueError) as error:
                refused.append(f"{place}: {verb} {rest}\n    {error}")
    assert not refused, "\n".join(refused)


def test_each_fault_is_on_the_page_of_reliability():
    rows = re.findall(r"^\| (.+) \| (.+) \| `(.+)` \|$", (ROOT / "docs/reliability.md").read_text(), re.MULTILINE)
    promises = {}  # test -> what its docstring says
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                test = f"{path.relative_to(ROOT / 'tests')}::{node.name}"
                promises[test] = " ".join((ast.get_docstring(node) or "").split()).rstrip(".")
    assert [test for _, _, test in rows if test not in promises] == []
    of_faults = {test: said for test, said in promises.items() if test.startswith("faults/")}
    assert of_faults == {test: f"{fault}: {end}" for fault, end, test in rows if test.startswith("faults/")}


def test_each_rule_of_cuda_names_tests_that_exist():
    rows = [line for line in (ROOT / "docs" / "gpu.md").read_text().splitlines() if line.startswith("| ")]
    named = [re.findall(r"`(tests/[\w/]+\.py)`", row.removesuffix(" |").rpartition(" | ")[2]) for row in rows[1:]]
    assert len(named) >= 12 and all(named), named
    assert [name for names in named for name in names if not (ROOT / name).is_file()] == []
