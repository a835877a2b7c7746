"""A loss that is not finite ends the run before it is saved."""

from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from imagenet_ddp.callbacks.nonfinite_loss import NonFiniteLoss
from imagenet_ddp.errors import RunError
from imagenet_ddp.models.sums import Sums

NUM_BATCHES, BAD = 12, 5


class Module(L.LightningModule):
    """What is not finite: the loss of the batch BAD, the gradient of another rank in the last step, batch norm's
    statistics after it, or the loss of the validation."""

    def __init__(self, spoiled: str) -> None:
        super().__init__()
        self.net, self.spoiled = nn.Linear(3, 1), spoiled
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("mask", torch.full((2,), -torch.inf))  # is no mistake

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        is_bad = batch_idx == BAD and self.spoiled == "loss"
        if batch_idx == NUM_BATCHES - 1 and self.spoiled == "statistics":
            self.norm(torch.full((2, 3), torch.nan))  # whose output the loss does not use
        loss = self.net(batch["image"] * (float("nan") if is_bad else 1.0)).pow(2).mean()
        return {"loss": loss, "sums": Sums({"loss": loss.detach() * 2, "top1": 0, "top5": 0})}

    def on_after_backward(self) -> None:
        if self.spoiled == "gradient" and self.trainer.fit_loop.batch_idx == NUM_BATCHES - 1:
            self.net.weight.grad[0] = float("inf")  # type: ignore[index]

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        self.log("val/loss", torch.tensor(torch.nan if self.spoiled == "validation" else 1.0))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


class Data(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        batches: Any = [{"image": torch.randn(2, 3)} for _ in range(NUM_BATCHES)]
        return DataLoader(batches, batch_size=None)

    val_dataloader = train_dataloader


def fit(folder: Path, every: int, spoiled: str, *, saves: bool = True) -> None:
    class Saving(NonFiniteLoss):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            if saves:
                trainer.save_checkpoint(folder / "last.ckpt")

    L.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Saving()], default_root_dir=folder,
        log_every_n_steps=every, num_sanity_val_steps=0,
    ).fit(Module(spoiled), datamodule=Data())  # fmt: skip


@pytest.mark.parametrize("every", [4, 1000])
def test_the_step_is_named(tmp_path: Path, every: int) -> None:
    """With few log lines, the next checkpoint finds it."""
    with pytest.raises(RunError, match=rf"is nan in step {BAD + 1} \(epoch 1, rank 0\), at a learning rate of 0\.1\."):
        fit(tmp_path, every, "loss")
    assert not (tmp_path / "last.ckpt").exists()


WORDS = {
    "gradient": f"weights must be finite, but are not after step {NUM_BATCHES}, ",
    "statistics": f"buffers .* must not be NaN, but are after step {NUM_BATCHES}, ",
    "validation": f"val/loss must be finite, but is nan after step {NUM_BATCHES}",
}


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize("spoiled", WORDS)
def test_what_the_losses_do_not_show(tmp_path: Path, spoiled: str, saves: bool) -> None:
    """The gradients of all ranks are one sum: this rank's own losses stay finite until the next step. A run without
    checkpoints fails, too."""
    with pytest.raises(RunError, match=WORDS[spoiled]):
        fit(tmp_path, 4, spoiled, saves=saves)
    assert not (tmp_path / "last.ckpt").exists()


def test_finite_numbers(tmp_path: Path) -> None:
    fit(tmp_path, 4, "nothing")
    assert (tmp_path / "last.ckpt").exists()
