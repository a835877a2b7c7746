"""The scripts behind docs/performance.md still run, and their ratios are those of their rows."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import PROBES, ROOT, SMALL

SLEEP_S = 0.05


def measured(name: str, folder: Path, *options: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setenv("PYTHONPATH", PROBES)
    command = [sys.executable, str(ROOT / f"scripts/benchmarks/{name}.py"), str(folder), "repeats=1", *SMALL, *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((folder / "benchmark.json").read_text())
    assert found["conclusion"] in " ".join(done.stdout.split())
    return found


@pytest.mark.slow
def test_a_callback_that_sleeps_is_seen_in_the_step(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    slow = ("+callbacks.slow._target_=sleep_in_step.Sleep", f"+callbacks.slow.seconds={SLEEP_S}")
    options = (f"data.root={tree}", "steps=4", "allow_targets=[sleep_in_step]", *slow)
    found = measured("step", tmp_path, *options, monkeypatch=monkeypatch)
    rows = {row["title"]: row["median"] for row in found["rows"][-2:]}
    assert rows["this project"] > rows["bare loop"] + 1e3 * SLEEP_S / 2
    assert found["ratios"]["step"] > 1
    assert found["extra_collectives_per_step"] <= 0
