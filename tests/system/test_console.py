"""Sentences at 80 columns on a terminal, in one piece elsewhere."""

import ast
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT
from helpers.terminal import screen

from imagenet_ddp.runs.log import Log
from imagenet_ddp.system import console


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


DEVICE = (
    "Device: CPU, 2 threads per process (cluster.num_threads). Precision: bf16-mixed, this CPU computes in bf16 "
    "(AVX512-BF16 or AMX)."
)


def test_a_terminal_breaks_between_words_and_a_file_nowhere(capsys: pytest.CaptureFixture[str]):
    assert console.fit_to_terminal(DEVICE, Terminal()).split("\n") == [
        "Device: CPU, 2 threads per process (cluster.num_threads). Precision: bf16-mixed,",
        "  this CPU computes in bf16 (AVX512-BF16 or AMX).",
    ]
    assert console.fit_to_terminal(DEVICE, io.StringIO()) == DEVICE
    console.print_message(DEVICE)
    assert capsys.readouterr().err == f"{DEVICE}\n"


def test_what_is_typed_or_laid_out_already_stays():
    command = "python -m imagenet_ddp.prepare " + "prepare=check " * 6
    path = "/a/long/path-with-hyphens" * 5
    lines = console.wrap_text(f"it is broken. Hint: type `{command}`, and look at {path}.", 80, " 1. ", "    ")
    assert lines == [" 1. it is broken.", "    Hint: type", f"    `{command}`,", "    and look at", f"    {path}."]
    assert console.wrap_text(f"{'x' * 76} 96 %", 80) == ["x" * 76, "  96 %"]
    traceback = f"Traceback:\n  File {path} in a line of a program\nValueError: {DEVICE}"
    assert console.fit_to_terminal(traceback, Terminal()) == traceback


def test_the_log_shows_it_wrapped_and_keeps_it_whole(tmp_path):
    stream = Terminal()
    log = Log(tmp_path, 0, stream)
    log.say(DEVICE)
    log.say(f"Continue with: {DEVICE}", whole=True)
    log.close()
    assert [len(line) for line in stream.getvalue().splitlines()] == [80, 49, len("Continue with: ") + len(DEVICE)]
    written = (tmp_path / "rank0.log").read_text().splitlines()
    assert [line.endswith(DEVICE) for line in written] == [True, True]


PRINTED = {  # how often a file prints by itself, and what
    "__init__.py": 1,  # on Windows, where nothing else can be imported
    "__main__.py": 2,  # help
    "cli/command.py": 4,  # help and YAML
    "report/__main__.py": 1,  # help
    "runs/log.py": 2,  # the log of a run, by the same rules
    "submit.py": 1,  # a command that the next program reads
    "system/console.py": 4,
    "tune/trials.py": 1,  # a file
}


def test_a_message_is_printed_by_one_function() -> None:
    """Which breaks it between words, and never prints it into a line of progress."""
    package, found = ROOT / "src" / "imagenet_ddp", dict[str, int]()
    for path in package.rglob("*.py"):
        calls = [node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
        if number := sum(isinstance(each, ast.Name) and each.id == "print" for each in calls):
            found[str(path.relative_to(package))] = number
    assert found == PRINTED, "use print_message"


SHOWS = """
import sys
from pathlib import Path
from imagenet_ddp.runs.log import Log
from imagenet_ddp.system import console

log, progress = Log(Path("logs"), 0), console.Progress("features", 300, "images")
console.REDRAW_S = 0
for say in (console.print_message, log.say):
    for show in (lambda: progress.add(1), lambda: log.draw("1/5 [####----]")):
        show()
        say("Skipped " + "a.jpg " * 20)
show()
progress.add(1)
progress.close()
console.print_message("The end.")
"""


def test_a_message_replaces_a_line_of_progress(tmp_path: Path) -> None:
    skipped = [f"Skipped {'a.jpg ' * 12}".rstrip(), f"  {'a.jpg ' * 8}".rstrip()]
    assert screen("-c", SHOWS, folder=tmp_path) == [*4 * skipped, "The end."]


LOGS = """
import sys
from pathlib import Path
from imagenet_ddp.runs.log import Log

log = Log(Path(sys.argv[1]), 0)
for number in range(3):
    log.say(f"line {number}")
"""


def test_who_read_it_has_left_and_all_goes_on(tmp_path: Path) -> None:
    """A log that nobody reads goes on in its file; what only prints ends."""
    cases = [
        (["-c", LOGS, "logs"], 0),
        (["-m", "imagenet_ddp.train", "--cfg", "job"], 141),
        (["-m", "imagenet_ddp.report", "--help"], 141),
    ]
    for command, code in cases:
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [sys.executable, *command], cwd=tmp_path, stdout=write, stderr=subprocess.PIPE, text=True, timeout=120
        )
        os.close(write)
        assert (done.returncode, done.stderr) == (code, ""), command
    assert len((tmp_path / "logs/rank0.log").read_text().splitlines()) == 3


def test_the_time_left_does_not_count_the_start(monkeypatch: pytest.MonkeyPatch):
    now_s = 100.0
    monkeypatch.setattr("imagenet_ddp.system.console.time.monotonic", lambda: now_s)
    progress = console.Progress("check", 300, "images")
    now_s += 9.0  # processes start
    progress.add(1)
    assert progress.line() == "check: 1 of 300 images (0.3 %)"
    now_s += 1.0
    progress.add(99)
    assert progress.line() == "check: 100 of 300 images (33.3 %), 99 images/s, 0:02 left"
