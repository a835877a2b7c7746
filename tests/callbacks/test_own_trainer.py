"""ResumeCheckpoint, History and Progress in a Trainer of the user's own, with any module and data."""

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from imagenet_ddp.callbacks import History, Progress, ResumeCheckpoint, TrainLog
from imagenet_ddp.runs.checkpoint_file import KEY
from imagenet_ddp.runs.checkpoint_io import BackgroundCheckpointIO


class Plain(L.LightningModule):
    """Scores as given, one per validation."""

    def __init__(self, name: str, scores: list[float]):
        super().__init__()
        self.net = nn.Linear(3, 2)
        self.name, self.scores = name, iter(scores)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        loss = self.net(batch[0]).square().mean()
        self.log("train/loss", loss, on_epoch=True)
        return loss

    def validation_step(self, batch: list[Tensor], batch_idx: int) -> None: ...

    def on_validation_epoch_end(self) -> None:
        self.log(self.name, next(self.scores))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def train(
    folder: Path,
    own: list[Any],
    name: str,
    scores: list[float],
    ckpt_path: Path | None = None,
    log: TrainLog | None = None,
    **options: Any,
) -> Plain:
    loader = DataLoader(TensorDataset(torch.ones(12, 3)), batch_size=2)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_progress_bar=False, enable_model_summary=False,
        default_root_dir=folder, num_sanity_val_steps=1, callbacks=[log or TrainLog(), *own],
        **{"max_epochs": 3, **options},
    )  # fmt: skip
    module = Plain(name, [0.0, *scores])  # the first one is the sanity check's
    trainer.fit(module, loader, loader, ckpt_path=ckpt_path, weights_only=True)
    return module


@pytest.mark.parametrize(
    ("arguments", "name", "scores", "best"),
    [
        ({}, "val/top1", [0.2, 0.9, 0.5], (0.9, 2)),
        ({"monitor": "val/error", "mode": "min"}, "val/error", [0.5, float("nan"), 0.7], (0.5, 1)),
        ({}, "val/f1", [0.2, 0.9, 0.5], (None, 0)),  # nothing that is monitored: no best.ckpt
    ],
)
def test_with_a_module_of_ones_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: dict, name: str, scores: list[float], best: tuple
) -> None:
    checkpoint = ResumeCheckpoint(**arguments)
    train(tmp_path, [checkpoint, History(), Progress()], name, scores, log=TrainLog(**arguments))
    assert (checkpoint.best.value, checkpoint.best.epoch) == (pytest.approx(best[0]), best[1])
    assert (tmp_path / "checkpoints/last.ckpt").is_file()
    assert (tmp_path / "checkpoints/best.ckpt").is_file() == (best[0] is not None)
    with (tmp_path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row[name]) for row in rows] == pytest.approx(scores, nan_ok=True)
    assert all(float(row["train/loss"]) > 0 and float(row["lr"]) == 0.1 for row in rows)
    assert (tmp_path / "curves.png").is_file()
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch 3/3: train loss ")]
    assert len(lines) == 1
    assert ("best" in lines[0]) == (best[0] is not None)


def test_a_training_continues_with_its_rows_and_its_best(tmp_path: Path) -> None:
    first = ResumeCheckpoint()
    train(tmp_path, [first, History()], "val/top1", [0.9], max_epochs=1)
    second, history = ResumeCheckpoint(every_n_epochs=10), History()
    train(tmp_path, [second, history], "val/top1", [0.1, 0.2], first.last_path)
    assert (second.best.value, second.best.epoch) == (pytest.approx(0.9), 1)
    assert [(row["epoch"], row["step"], row["best/val/top1"]) for row in history.rows] == [
        (epoch, 6 * epoch, pytest.approx(0.9)) for epoch in (1, 2, 3)
    ]
    stored = torch.load(second.last_path, weights_only=True)[KEY]
    assert (stored["kind"], stored["epoch"]) == ("epoch_end", 2)
    assert torch.load(second.best_path, weights_only=True)[KEY]["epoch"] == 0


@pytest.mark.parametrize("scores", [[0.9, 0.5, 0.3, 0.2], [0.2, 0.3, 0.5, 0.9]])
def test_while_a_file_is_written_the_last_two_are_two(
    tmp_path: Path, scores: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Were they two names of one file, a damage to it would leave a killed run with nothing."""
    folder, steps, save = tmp_path / "checkpoints", list[list[int]](), torch.save

    def watched_save(*arguments: Any) -> None:
        paths = [folder / "previous.ckpt", folder / "last.ckpt"]
        steps.append([torch.load(path, weights_only=True)["global_step"] for path in paths if path.exists()])
        if steps[-1][1:]:
            assert not paths[0].samefile(paths[1])
        save(*arguments)

    monkeypatch.setattr(torch, "save", watched_save)
    train(tmp_path, [ResumeCheckpoint()], "val/top1", scores, max_epochs=4, plugins=[BackgroundCheckpointIO()])
    assert steps == [[], [6], [6, 12], [12, 18]]
    assert sorted(path.name for path in folder.iterdir()) == ["best.ckpt", "last.ckpt", "previous.ckpt"]
