"""The code of docs/library.md, as it stands there."""

import csv
import re
import shutil
from pathlib import Path

import pytest
import torch
from conftest import ROOT, SMALL, Run, clean_environ
from helpers import forked_commands
from torch.nn.functional import cross_entropy
from torchmetrics.classification import MulticlassF1Score

from imagenet_ddp.data import ImageDataModule
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models import ImageClassifier

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
    script = logits.replace("runs/pets/2026-01-31_12-00-00", "r")
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


def test_the_data_of_a_checkpoint_are_those_of_its_run(tree: Path, tmp_path: Path, run: Run) -> None:
    """The loss tells a split, a size, an interpolation or a normalisation other than the run's."""
    options = ["data.val_resize=40", "data.mean=[0.5,0.4,0.3]", "data.std=[0.2,0.2,0.2]", "data.interpolation=bicubic"]
    split = ["data.root=images", "seed=7", "hydra.run.dir=r", "trainer.precision=32-true", "trainer.max_epochs=1"]
    (tmp_path / "images").symlink_to(tree / "train")  # without a validation folder, so the seed chooses
    run("train", *SMALL, *options, *split, code=0)
    file = tmp_path / "r/checkpoints/last.ckpt"
    module = ImageClassifier.load_from_checkpoint(file).eval()
    data = ImageDataModule.load_from_checkpoint(file, num_workers=0)
    losses = list[torch.Tensor]()
    with torch.inference_mode():
        for batch in data.val_dataloader():
            outputs = module(data.finish(batch, training=False)["image"])[: batch["num_counted"]]
            losses.append(cross_entropy(outputs, batch["target"][: batch["num_counted"]], reduction="none"))
    with (tmp_path / "r/metrics.csv").open(newline="") as table:
        [row] = csv.DictReader(table)
    assert float(torch.cat(losses).mean()) == pytest.approx(float(row["val/loss"]), rel=1e-5)

    for name in ("cat", "bird", "owl"):
        shutil.copytree(tree / "train/cat", tmp_path / "other" / name)
    with pytest.raises(ConfigError, match=r"other must have the classes of .*last\.ckpt.*, got \[bird,cat,owl\]"):
        ImageDataModule.load_from_checkpoint(file, root=str(tmp_path / "other"))
    with pytest.raises(TypeError, match="has no val_fracton"):  # misspelt
        ImageDataModule.load_from_checkpoint(file, val_fracton=0.5)
    stored = torch.load(file, weights_only=True)
    stored["imagenet_ddp"]["config"]["data"]["_target_"] = "os.getcwd"
    torch.save(stored, tmp_path / "strange.ckpt")
    with pytest.raises(ConfigError, match=r"must name no code but that of this program.*os\.getcwd"):
        ImageDataModule.load_from_checkpoint(tmp_path / "strange.ckpt")
