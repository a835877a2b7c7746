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


@pytest.mark.slow
def test_the_start_is_measured_from_the_command_to_the_first_step(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = measured("start", tmp_path, f"data.root={tree}", monkeypatch=monkeypatch)
    bare, ours = (row["median"] for row in found["rows"])
    assert found["ratios"]["start"] == pytest.approx(ours / bare, rel=0.01)
    assert min(bare, ours) > 1


@pytest.mark.slow
def test_training_is_measured_against_the_loop_of_pytorch_examples(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    found = measured("train", tmp_path, f"data.root={tree}", "steps=4", monkeypatch=monkeypatch)
    theirs, ours = (row["median"] for row in found["rows"])
    assert found["ratios"]["train"] == pytest.approx(ours / theirs, rel=0.01)


@pytest.mark.slow
def test_strategies_are_measured_on_one_device_to_all(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    found = measured("strategies", tmp_path, f"data.root={tree}", "steps=3", monkeypatch=monkeypatch)
    titles = [row["title"].partition(",")[0] for row in found["rows"]]
    assert titles[:3] == ["1 device", "ddp", "bare DistributedDataParallel"] and {"dp", "balanced_dp"} <= {*titles}
    assert all(row.get("MiB", 1000) > 100 for row in found["rows"])
