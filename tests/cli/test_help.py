"""--help: short, true, and each line in it can be typed."""

import re
import shlex
from pathlib import Path

import pytest

from imagenet_ddp.cli import help, parse
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.mistakes import key_of

DOCS = Path(__file__).parents[2]


@pytest.mark.parametrize("verb", COMMANDS)
def test_it_fits_a_terminal_and_its_examples_and_choices_can_be_typed(verb: str):
    text = help.text(verb)
    assert len(text.split("\n")) <= 60
    assert [line for line in text.split("\n") if len(line) > 80 or line != line.rstrip()] == []
    for group in help.guides()[verb]["groups"]:
        assert help.choices(group) and f"  {group} " in text, group
    lines = [line for line in text.replace("\\\n", "").splitlines() if line.startswith("  python -m ")]
    assert 2 <= len(lines) <= 3
    for line in lines:
        program, option, module, *argv = shlex.split(line, comments=True)
        assert (program, option, module) == ("python", "-m", f"imagenet_ddp.{verb}")
        if verb == "tune":
            argv = [token for token in argv if not token.startswith("search.")]  # which tune writes for Hydra first
        parse.composed(verb, argv)


def test_its_lines_begin_as_the_command_was_typed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("imagenet_ddp.system.text.typed_program", lambda: ("uv run python -m imagenet_ddp", "."))
    for text in (help.text("train"), help.commands()):
        lines = [line for line in text.split("\n") if "python -m imagenet_ddp" in line]
        assert lines and [line for line in lines if "uv run python -m" not in line or len(line) > 80] == []


def test_it_has_each_key_that_people_with_photographs_type():
    """Those of the pages that they read, and of the line with which a check ends."""
    typed = {"train": {"data.groups"}, "predict": {"known", "features"}}
    for page in ("README.md", "docs/photographs.md"):
        text = (DOCS / page).read_text(encoding="utf-8").replace("\\\n", " ")
        for verb, words in re.findall(r"python -m imagenet_ddp\.(\w+) ([^`\n#]*)", text):
            typed.setdefault(verb, set()).update(key_of(word) for word in shlex.split(words) if "=" in word)
    for verb in typed.keys() & {*COMMANDS}:
        assert typed[verb] <= {*re.findall(r"[\w.]+\w", help.text(verb))}, verb


def test_the_default_comes_first():
    assert help.choices("data")[0] == "shapes"
    assert help.choices("search")[0] == "auto"
    base = (conf_dir() / "base.yaml").read_text()
    for group in help.guides()["train"]["groups"]:
        if named := re.search(rf"^  - {group}: (?!null)(\w+)$", base, re.MULTILINE):
            assert help.choices(group)[0] == named[1]
    assert "experiment             (none), " in help.text("train")
