"""Load a page in a headless Chromium."""

import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium")


def dom_of(address: str, profile: Path) -> str:
    """Return the HTML of the page after its scripts have run. profile: an empty folder for the browser's profile."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}",
        "--virtual-time-budget=30000", "--dump-dom", address,
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
