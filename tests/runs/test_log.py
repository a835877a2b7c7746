import errno
import io
import os
from pathlib import Path

import pytest

from imagenet_ddp.runs.log import Log


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class ClosedTerminal(Terminal):
    """It is closed between a look at it and the next write."""

    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("first", ["say", "draw"])
def test_a_closed_terminal_does_not_end_a_run(tmp_path: Path, first: str) -> None:
    """A worker process writes to the terminal before it learns that it was closed."""
    log = Log(tmp_path, 0, ClosedTerminal())
    getattr(log, first)("10 %")
    log.draw("20 %")
    log.say("last")
    log.close()
    assert "last" in (tmp_path / "rank0.log").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_does_not_end_a_run_whose_log_closes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = os.fdopen(os.open("/dev/full", os.O_WRONLY), "a", encoding="utf-8")
    monkeypatch.setattr("imagenet_ddp.runs.log.open_to_append", lambda path: full)  # a link would be refused
    log = Log(tmp_path, 1)
    log.say("what the disk refuses")
    log.close()
