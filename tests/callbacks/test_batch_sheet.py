"""The contact sheet in real trainings."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from imagenet_ddp.callbacks import BatchSheet
from imagenet_ddp.data import ImageDataModule
from imagenet_ddp.models.lightning_module import ImageClassifier

pytestmark = pytest.mark.usefixtures("one_thread")


def train(tree: Path, folder: Path, callbacks: list[Any], **options: Any) -> None:
    data = ImageDataModule.from_options("imagefolder", tree, image_size=16, batch_size=4, num_workers=0, **options)
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 3))
    module = ImageClassifier(net, 3, 11, make_optimizer=lambda parameters: torch.optim.SGD(parameters, 0.01))
    L.Trainer(
        accelerator="cpu", devices=1, logger=False, max_epochs=1, enable_progress_bar=False, callbacks=callbacks,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=folder, use_distributed_sampler=False,
    ).fit(module, datamodule=data)  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"cutmix_alpha": 1.0, "policy": "trivialaugment"}])
def test_the_first_batch_is_drawn(tree: Path, tmp_path: Path, options: dict[str, Any]):
    train(tree, tmp_path, [BatchSheet(), sheet := BatchSheet(tmp_path / "run")], **options)
    assert sheet.run_dir == tmp_path / "run"
    found = (tmp_path / "train_batch.png").read_bytes()
    assert found == (tmp_path / "run/train_batch.png").read_bytes()
    with Image.open(tmp_path / "train_batch.png") as picture:
        assert picture.width > 4 * 96
        assert np.asarray(picture).std() > 20


def test_a_sheet_that_cannot_be_written_ends_no_training(tree: Path, tmp_path: Path):
    (tmp_path / "run").touch()
    with pytest.warns(UserWarning, match=r"train_batch.png cannot be drawn: "):
        train(tree, tmp_path, [BatchSheet(tmp_path / "run")])


def test_other_data_is_let_pass(tmp_path: Path):
    trainer: Any = SimpleNamespace(is_global_zero=True, datamodule=None, default_root_dir=str(tmp_path))
    BatchSheet().on_train_batch_start(trainer, L.LightningModule(), {}, 0)
    assert list(tmp_path.iterdir()) == []
