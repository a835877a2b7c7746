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

NUM_BATCHES, BAD = 12, 5


class Module(L.LightningModule):
    """The batch BAD has a loss that is not a number, or (of_other) the gradient of another rank in the last step is
    infinite."""

    def __init__(self, *, of_other: bool) -> None:
        super().__init__()
        self.net, self.of_other = nn.Linear(3, 1), of_other

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        is_bad = batch_idx == BAD and not self.of_other
        loss = self.net(batch["image"] * (float("nan") if is_bad else 1.0)).pow(2).mean()
        return {"loss": loss, "loss_sum": loss.detach() * 2}

    def on_after_backward(self) -> None:
        if self.of_other and self.trainer.fit_loop.batch_idx == NUM_BATCHES - 1:
            self.net.weight.grad[0] = float("inf")  # type: ignore[index]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


class Data(L.LightningDataModule):
    def train_dataloader(self) -> Any:
        batches: Any = [{"image": torch.randn(2, 3)} for _ in range(NUM_BATCHES)]
        return DataLoader(batches, batch_size=None)


def fit(folder: Path, every: int, *, of_other: bool = False) -> None:
    class Saving(NonFiniteLoss):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            trainer.save_checkpoint(folder / "last.ckpt")

    L.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[Saving()], default_root_dir=folder,
        log_every_n_steps=every,
    ).fit(Module(of_other=of_other), datamodule=Data())  # fmt: skip


@pytest.mark.parametrize("every", [4, 1000])
def test_the_step_is_named(tmp_path: Path, every: int) -> None:
    """With few log lines, the next checkpoint finds it."""
    with pytest.raises(RunError, match=rf"is nan in step {BAD + 1} \(epoch 1, rank 0\), at a learning rate of 0\.1\."):
        fit(tmp_path, every)
    assert not (tmp_path / "last.ckpt").exists()


def test_weights_that_only_another_ranks_loss_has_spoiled(tmp_path: Path) -> None:
    """The gradients of all ranks are one sum: this rank's own losses stay finite until the next step."""
    with pytest.raises(RunError, match=f"weights must be finite, but are not after step {NUM_BATCHES}, "):
        fit(tmp_path, 4, of_other=True)
    assert not (tmp_path / "last.ckpt").exists()
