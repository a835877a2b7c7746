"""The scripts behind docs/performance.md still run, and their ratios are those of their rows."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from conftest import PROBES, ROOT, SMALL, clean_environ
from helpers import forked_commands

SLEEP_S = 0.05


def measured(name: str, folder: Path, *options: str) -> dict[str, Any]:
    environment = clean_environ(PYTHONPATH=os.pathsep.join([str(ROOT / "scripts/benchmarks"), PROBES]))
    words = [str(folder), "repeats=1", *SMALL, *options]
    done = forked_commands.Command(name, *words, folder=folder, environment=environment)
    assert done.wait() == 0, done.err
    found = json.loads((folder / "benchmark.json").read_text())
    assert found["conclusion"] in " ".join(done.out.split())
    return found


@pytest.mark.slow
def test_a_callback_that_sleeps_is_seen_in_the_step(tree: Path, tmp_path: Path):
    slow = f"+callbacks.slow={{_target_:probe.Probe,folder:seen,slow_s:{SLEEP_S}}}"
    options = (f"data.root={tree}", "steps=4", "allow_targets=[probe]", slow)
    found = measured("step", tmp_path, *options)
    rows = {row["title"]: row["median"] for row in found["rows"][-2:]}
    assert rows["this project"] > rows["bare loop"] + 1e3 * SLEEP_S / 2
    assert found["ratios"]["step"] > 1
    assert found["extra_collectives_per_step"] <= 0
