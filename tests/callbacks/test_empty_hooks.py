from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from imagenet_ddp.callbacks.empty_hooks import STEP_HOOKS, skip_empty_hooks


class _Linear(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = torch.nn.Linear(3, 1)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return self.net(batch).sum()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class _Base(L.Callback):
    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_before_zero_grad(
        self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        self.calls.append("on_before_zero_grad")


class _Callback(_Base):
    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        self.calls.append("on_train_batch_end")


@pytest.mark.filterwarnings("ignore:.*does not have many workers", "ignore:.*LeafSpec.* is deprecated")
@pytest.mark.filterwarnings("ignore:The number of training batches")
def test_what_a_class_or_its_base_defines_is_called() -> None:
    callback, seen = _Callback(), list[int]()
    own = LambdaCallback(on_train_batch_end=lambda *arguments: seen.append(arguments[-1]))
    trainer = L.Trainer(
        accelerator="cpu", max_steps=2, limit_val_batches=0, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback, own],
    )  # fmt: skip
    skip_empty_hooks([callback, own])
    assert [name for name in STEP_HOOKS if getattr(callback, name) is not None] == [
        "on_before_zero_grad",
        "on_train_batch_end",
    ]
    trainer.fit(_Linear(), torch.utils.data.DataLoader(torch.ones(4, 3), 2))  # type: ignore[arg-type]
    assert callback.calls == 2 * ["on_before_zero_grad", "on_train_batch_end"]
    assert seen == [0, 1]
