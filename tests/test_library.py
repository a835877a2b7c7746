"""The script of docs/library.md, as it stands there."""

import csv
import re
from pathlib import Path

import pytest
from conftest import ROOT, clean_environ
from helpers import forked_commands


@pytest.mark.slow
def test_the_script_trains_and_continues(tree: Path, tmp_path: Path) -> None:
    [_, script, _] = re.findall(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(), re.DOTALL)
    (tmp_path / "images").symlink_to(tree)

    def run(text: str) -> str:
        (tmp_path / "train.py").write_text(text)
        result = forked_commands.run("train", folder=tmp_path, environment=clean_environ())
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    first = run(script)
    assert "epoch 2/2: train loss " in first
    assert re.search(r"best val/top1 [01]\.\d{3} in epoch [12]", first)
    assert "epoch 3/3: train loss " in run(script.replace("max_epochs=2", "max_epochs=3"))
    with (tmp_path / "run/metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["epoch"], row["step"], row["num_val_images_counted"]) for row in rows] == [
        ("1", "8", "11"), ("2", "16", "11"), ("3", "24", "11"),
    ]  # fmt: skip
    assert all(row["train/loss"] and row["val/top1"] and row["images_per_s"] for row in rows)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["checkpoints", "curves.png", "metrics.csv"]
