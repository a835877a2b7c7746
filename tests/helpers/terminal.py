"""Run a Python program on a terminal of 80 columns."""

import contextlib
import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

from conftest import clean_environ


def screen(*words: str, folder: Path) -> list[str]:
    """Return the lines that stand on the terminal once `python *words` has ended with exit code 0. A line is longer
    than 80 characters if the terminal breaks it."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 80))
    environment = clean_environ(COLUMNS=None, TERM="xterm")
    process = subprocess.Popen(
        [sys.executable, *words], cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    output = b""
    with contextlib.suppress(OSError):  # how Linux says that no process has the terminal open any more
        while part := os.read(ours, 65536):
            output += part
    os.close(ours)
    assert process.wait(60) == 0, output.decode()
    return _lines(output.decode())


def _lines(output: str) -> list[str]:
    """Return what is left after carriage returns, moves to the line above (CSI A) and erasures (CSI K)."""
    lines, row, column = [""], 0, 0
    for token in re.findall(r"[\r\n]|\x1b\[[\d;?]*[A-Za-z]|[^\r\n\x1b]+", output):
        if token == "\r":
            column = 0
        elif token == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif token == "\x1b[1A":
            row -= 1
        elif token in ("\x1b[K", "\x1b[2K"):
            lines[row] = lines[row][: 0 if "2" in token else column]
        elif token[0] != "\x1b":
            lines[row] = lines[row][:column] + token + lines[row][column + len(token) :]
            column += len(token)
    return lines[:-1]
