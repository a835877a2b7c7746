"""--help: short, true, and each line in it can be typed."""

import re
import shlex

import pytest
from helpers.composed_once import compose_once

from imagenet_ddp.cli import help, parse
from imagenet_ddp.config import conf_dir
from imagenet_ddp.config.schema.commands import COMMANDS


@pytest.mark.parametrize("verb", COMMANDS)
def test_it_fits_a_terminal(verb: str):
    lines = help.text(verb).split("\n")
    assert len(lines) <= 60
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize("verb", COMMANDS)
def test_its_examples_compose(verb: str, monkeypatch: pytest.MonkeyPatch):
    compose_once(monkeypatch)
    text = help.text(verb).replace("\\\n", "")
    lines = [line.strip() for line in text.splitlines() if line.startswith("  python -m ")]
    assert 2 <= len(lines) <= 3
    for line in lines:
        program, option, module, *argv = shlex.split(line, comments=True)
        assert (program, option, module) == ("python", "-m", f"imagenet_ddp.{verb}")
        if verb == "tune":
            argv = [token for token in argv if not token.startswith("search.")]  # which tune writes for Hydra first
        parse.command_line(verb, argv, {}, compose_only=True)


@pytest.mark.parametrize("verb", COMMANDS)
def test_its_choices_are_there(verb: str):
    for group in help.guides()[verb]["groups"]:
        assert help.choices(group), group
        assert f"  {group} " in help.text(verb)


def test_the_default_comes_first():
    assert help.choices("data")[0] == "shapes"
    assert help.choices("search")[0] == "auto"
    base = (conf_dir() / "base.yaml").read_text()
    for group in help.guides()["train"]["groups"]:
        if named := re.search(rf"^  - {group}: (?!null)(\w+)$", base, re.MULTILINE):
            assert help.choices(group)[0] == named[1]
    assert "experiment             (none), " in help.text("train")
