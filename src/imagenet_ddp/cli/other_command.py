"""Run another command of this package in a process of its own, and learn why it failed."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from imagenet_ddp.system.files import read_small
from imagenet_ddp.system.text import without_secrets

REASON = "IMAGENET_DDP_REASON"  # environment variable: the file to which the other command writes why it failed


def run_other(verb: str, argv: Sequence[str], **options: Any) -> str:
    """Run a command, which prints what it always does, except why it failed. Return that, or "". options: of
    subprocess.run."""
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "reason.txt"
        command = [sys.executable, "-m", f"imagenet_ddp.{verb}", *argv]
        code = subprocess.run(command, env={**os.environ, REASON: str(file)}, **options).returncode
        if not code:
            return ""
        return read_small(file) if file.exists() else f"{verb} ended with exit code {code}; its message is above."


def is_of_other() -> bool:
    """Return whether another command has started this one by run_other."""
    return REASON in os.environ


def leave_reason(text: str) -> bool:
    """Write why this command fails for the command that has started it by run_other, which prints it. Return whether
    one has."""
    if not (text and (file := os.environ.get(REASON))):
        return False
    Path(file).write_text(without_secrets(" ".join(text.split())), encoding="utf-8", errors="backslashreplace")
    return True
