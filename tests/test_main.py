"""python -m imagenet_ddp lists the commands, and runs one of them."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from imagenet_ddp import __main__ as entry
from imagenet_ddp import __version__
from imagenet_ddp.cli import help
from imagenet_ddp.cli.flags import without_other_programs
from imagenet_ddp.config.schema.commands import COMMANDS
from imagenet_ddp.system import text


@pytest.fixture(autouse=True)
def ask_how_this_process_was_started() -> Iterator[None]:
    """Other tests of this process have asked, or will: here it is another program."""
    text.typed_program.cache_clear()
    yield
    text.typed_program.cache_clear()


def _run(monkeypatch: pytest.MonkeyPatch, *argv: str) -> None:
    monkeypatch.setattr(sys, "argv", ["/bin/imagenet-ddp", *argv])
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
    said = capsys.readouterr().out
    assert f"imagenet-ddp {command} " in said and f"python -m imagenet_ddp.{command}" not in said


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as caught:
        _run(monkeypatch, "repport", "runs/my run")
    assert caught.value.code == 2
    assert "train, " in (said := capsys.readouterr().err) and "got repport. Hint: did you mean report?" in said
    assert re.search(r"\nCorrected command:\n.*[ .]report 'runs/my run'\n$", said)
    with pytest.raises(SystemExit):
        _run(monkeypatch, "xyz")
    assert "got xyz. Hint: `--help` alone says what they do." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        _run(monkeypatch, "-a", "resnet50", "--help")
    assert "got -a. Hint: type the command first: train -a." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("checks pets", "prepare prepare=check pets"),
        ("fit pets", "train pets"),
        ("val checkpoint=x", "evaluate checkpoint=x"),
        ("infer images=x", "predict images=x"),
        ("pets", "train pets"),
    ],
)
def test_the_command_of_another_program_is_translated(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pets").mkdir()
    with pytest.raises(SystemExit):
        _run(monkeypatch, *typed.split())
    assert capsys.readouterr().err.rstrip().endswith(meant)


def test_the_versions_are_printed_without_torch(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    _run(monkeypatch, "--version")
    line = capsys.readouterr().out
    assert line.startswith(f"imagenet_ddp {__version__} (torch {version('torch')}, ") and "lightning " in line
    with contextlib.suppress(SystemExit):
        _run(monkeypatch, "train", "--version")
    assert capsys.readouterr().out == line


@pytest.mark.parametrize(
    ("typed", "code"), [(["-m", "imagenet_ddp.train"], 2), (["-c", "import imagenet_ddp.data"], 1)]
)
def test_windows_gets_a_sentence(typed: list[str], code: int, tmp_path: Path):
    """In place of an error about modules and signals that Python does not have there."""
    lacks = "import signal, sys; sys.platform = 'win32'; sys.modules |= {'fcntl': None, 'resource': None}"
    (tmp_path / "sitecustomize.py").write_text(f"{lacks}; del signal.SIGUSR2, signal.SIGHUP")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, *typed], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == code and "Linux or macOS, got Windows. Hint: run `wsl --install`" in done.stderr
    assert ("Traceback" in done.stderr) == (code == 1)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("trian", "did you mean imagenet_ddp.train?"), ("training", "imagenet_ddp.train?"), ("xyz", "lists the commands")],
)
def test_a_misspelt_module_has_a_correction(typed: str, meant: str):
    done = subprocess.run([sys.executable, "-m", f"imagenet_ddp.{typed}", "seed=1"], capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"there is no command imagenet_ddp.{typed}. Hint: " in done.stderr and meant in done.stderr


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("check", "prepare prepare=check"), ("Import", "prepare prepare=import"), ("probe", "train experiment=probe"),
     ("own-photos", "train experiment=own_photos"), ("loader", "benchmark benchmark=loader")],
)  # fmt: skip
def test_a_choice_of_a_command_is_no_command(
    typed: str, meant: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit):
        _run(monkeypatch, typed, "data.root=my photos")
    said = capsys.readouterr().err
    assert f"did you mean {meant}?" in said and re.search(rf"[ .]{meant} 'data.root=my photos'\n$", said)
    module = [sys.executable, "-m", f"imagenet_ddp.{typed}", "data.root=my photos"]
    done = subprocess.run(module, capture_output=True, text=True)
    assert done.returncode == 2 and f"did you mean imagenet_ddp.{meant}?" in done.stderr
    assert done.stderr.endswith(f"imagenet_ddp.{meant} 'data.root=my photos'\n")
    verb, option = meant.split()
    mistakes = without_other_programs(verb, [f"--{typed}"])[1]
    assert [each.fixes[0].options for each in mistakes] == [(option,)]


def test_a_pasted_comment_is_no_option(tmp_path: Path):
    """zsh passes it on as words, unlike bash."""
    line = [sys.executable, "-m", "imagenet_ddp.report", "gone", "#", "then", "open", "report.html"]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "imagenet_ddp.report: 1 mistake, " in done.stderr
