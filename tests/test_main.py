"""python -m imagenet_ddp lists the commands, and runs one of them."""

import contextlib
import sys

import pytest

from imagenet_ddp import __main__ as entry
from imagenet_ddp.cli import help
from imagenet_ddp.config.schema.commands import COMMANDS


def _run(monkeypatch: pytest.MonkeyPatch, *argv: str, program: str = "/bin/imagenet-ddp") -> None:
    monkeypatch.setattr(sys, "argv", [program, *argv])
    entry.main()


@pytest.mark.parametrize("argv", [[], ["--help"]])
def test_the_list_of_commands(argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    _run(monkeypatch, *argv)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("  ")] == [*help.guides(), "report"]
    assert set(help.guides()) == set(COMMANDS)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("command", ["train", "report"])
def test_a_command_is_run(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    with contextlib.suppress(SystemExit):
        _run(monkeypatch, command, "--help")
    assert f"python -m imagenet_ddp.{command}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("program", "typed", "hint"),
    [
        ("imagenet-ddp", "repport", "did you mean report?"),
        ("imagenet-ddp", "xyz", "`imagenet-ddp --help` lists the commands."),
        ("imagenet_ddp/__main__.py", "xyz", "`python -m imagenet_ddp --help` lists the commands."),
        ("imagenet-ddp", "seed=1", "type `imagenet-ddp train seed=1 ...`."),
    ],
)
def test_another_word_is_refused(
    program: str, typed: str, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as caught:
        _run(monkeypatch, typed, program=program)
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith(f", got {typed}. Hint: {hint}\n")
