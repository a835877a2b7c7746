"""The code of docs/library.md, as it stands there."""

import csv
import re
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL, Run, clean_environ
from helpers import forked_commands
from torchmetrics.classification import MulticlassF1Score

CODE = re.findall(r"```python\n(.*?)```", (ROOT / "docs/library.md").read_text(), re.DOTALL)


@pytest.mark.slow
def test_the_script_trains_and_continues(tree: Path, tmp_path: Path) -> None:
    [_, _, script, _] = CODE
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


@pytest.mark.slow
def test_a_metric_of_ones_own_and_the_logits_agree(tree: Path, tmp_path: Path, run: Run) -> None:
    [_, logits, _, own] = CODE
    (tmp_path / "images").symlink_to(tree)
    (tmp_path / "mine.py").write_text(own)
    options = ["data.root=images", "hydra.run.dir=r", "trainer.max_epochs=1", "trainer.precision=32-true"]
    done = run("train", *SMALL, *options, "module._target_=mine.Mine", "+module.args.weight=0.01", code=0)
    assert "Warning" not in done.stdout + done.stderr
    script = logits.replace("runs/pets/2026-01-31_12-00-00", "r").replace("image_size=224", "image_size=32")
    script += (
        " " * 12 + "print(*(f'{best} {target}' for best, target in zip(logits.argmax(1), batch['target'])), sep='\\n')"
    )
    (tmp_path / "logits.py").write_text(script)
    result = forked_commands.run("logits", folder=tmp_path, environment=clean_environ())
    assert result.returncode == 0, result.stdout + result.stderr
    pairs = torch.tensor([[int(word) for word in line.split()] for line in result.stdout.splitlines()])
    with (tmp_path / "r/metrics.csv").open(newline="") as file:
        [row] = csv.DictReader(file)
    assert len(pairs) == 11 and float(row["val/top1"]) == pytest.approx((pairs[:, 0] == pairs[:, 1]).double().mean())
    assert float(row["val/f1"]) == pytest.approx(float(MulticlassF1Score(3)(*pairs.T)))
