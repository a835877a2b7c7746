"""A loss that is not finite ends the run before it is saved, or its updates are left out."""

import csv
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import nn
from torch.utils.data import DataLoader

from imagenet_ddp.callbacks.nonfinite_loss import FILE, MAX_SKIPPED, NonFiniteLoss
from imagenet_ddp.errors import RunError

NUM_BATCHES, BAD = 12, 5


class Module(L.LightningModule):
    """The batch `bad` of an epoch has a loss that is not a number; so have the statistics of its batch norm."""

    def __init__(self, bad: tuple[int, ...]):
        super().__init__()
        self.net = nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 1))
        self.bad = bad

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> dict[str, Any]:
        loss = self.net(batch["image"] * (float("nan") if batch_idx in self.bad else 1.0)).pow(2).mean()
        return {"loss": loss, "loss_sum": loss.detach() * 2}

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=0.1)


class Files:
    targets = torch.arange(100).numpy() % 3

    def path(self, index: int) -> str:
        return f"{index}.jpg"


class Data(L.LightningDataModule):
    train_images = Files()

    def __init__(self, left_out: tuple[int, ...] = ()):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        batches = [
            {"image": torch.randn(2, 3, generator=generator), "index": torch.tensor([2 * number, 2 * number + 1])}
            for number in range(NUM_BATCHES)
        ]
        self.batches: Any = [batch for number, batch in enumerate(batches) if number not in left_out]

    def train_dataloader(self) -> Any:
        return DataLoader(self.batches, batch_size=None)


def fitted(
    folder: Path,
    callback: NonFiniteLoss | None,
    *,
    bad: tuple[int, ...] = (),
    left_out: tuple[int, ...] = (),
    module: L.LightningModule | None = None,
    **keys: Any,
) -> L.Trainer:
    torch.manual_seed(0)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_epochs=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, callbacks=[callback] if callback else [],
        default_root_dir=folder, **{"log_every_n_steps": 4, **keys},
    )  # fmt: skip
    trainer.fit(module or Module(bad), datamodule=Data(left_out))
    return trainer


@pytest.mark.parametrize("every", [1, 4, 1000])
def test_the_step_and_its_images_are_named(tmp_path: Path, every: int) -> None:
    """With few log lines, the next checkpoint finds it."""

    class Saving(NonFiniteLoss):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            trainer.save_checkpoint(tmp_path / "last.ckpt")

    said = rf"is nan in step {BAD + 1} \(epoch 1, rank 0\), at a learning rate of 0.1. {tmp_path / FILE} lists"
    with pytest.raises(RunError, match=said):
        fitted(tmp_path, Saving(run_dir=tmp_path), bad=(BAD,), log_every_n_steps=every)
    assert not (tmp_path / "last.ckpt").exists()
    with (tmp_path / FILE).open(newline="") as file:
        assert [(row["path"], row["class"]) for row in csv.DictReader(file)] == [("10.jpg", "1"), ("11.jpg", "2")]


def test_weights_that_only_another_ranks_loss_has_spoiled(tmp_path: Path) -> None:
    """The gradients of all ranks are one sum: this rank's own losses stay finite until the next step."""

    class Spoiled(Module):
        def on_after_backward(self) -> None:
            if self.trainer.fit_loop.batch_idx == NUM_BATCHES - 1:
                next(self.net.parameters()).grad[0] = float("inf")  # type: ignore[index]

    class Saving(NonFiniteLoss):
        def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
            trainer.save_checkpoint(tmp_path / "last.ckpt")

    with pytest.raises(RunError, match=f"weights must be finite, but are not after step {NUM_BATCHES}, "):
        fitted(tmp_path, Saving(), module=Spoiled(()))
    assert not (tmp_path / "last.ckpt").exists()


def test_a_finite_loss_is_read_only_for_log_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    callback = NonFiniteLoss()
    monkeypatch.setattr(callback, "_look", lambda trainer: looked.append(trainer.global_step))
    fitted(tmp_path, callback)
    assert looked == [4, 8, 12]


@pytest.mark.parametrize("bad", [(0,), (3, 4, 7), (NUM_BATCHES - 1,)])
def test_skipped_updates_leave_no_trace(tmp_path: Path, bad: tuple[int, ...]) -> None:
    """As if their batches had never been: the weights, the statistics of batch norm, the state of the optimizer."""
    with pytest.warns(UserWarning, match="is skipped") as said:
        one = fitted(tmp_path, NonFiniteLoss("skip"), bad=bad)
    steps = [f"Step {number + 1} is skipped" for number in bad]
    assert [str(each.message).partition(" because")[0] for each in said if "is skipped" in str(each.message)] == steps
    other = fitted(tmp_path, None, left_out=bad)
    first, second = one.lightning_module.state_dict(), other.lightning_module.state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    states = [trainer.optimizers[0].state_dict()["state"] for trainer in (one, other)]
    assert all(torch.equal(states[0][key][name], states[1][key][name]) for key in states[0] for name in states[0][key])


def test_nothing_but_skipped_updates(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("imagenet_ddp.callbacks.nonfinite_loss.MAX_SKIPPED", 3)
    said = "those of 4 updates in a row were not, up to step 4"
    with pytest.raises(RunError, match=said), pytest.warns(UserWarning, match="is skipped"):
        fitted(tmp_path, NonFiniteLoss("skip"), bad=tuple(range(NUM_BATCHES)))
    assert MAX_SKIPPED > 3


def test_what_a_scaler_skips_leaves_no_trace_either(tmp_path: Path) -> None:
    """torch's own leaves the statistics of batch norm, here not numbers from then on."""
    states = []
    ways: list[tuple[NonFiniteLoss | None, dict[str, Any]]] = [
        (NonFiniteLoss("skip"), {"bad": (BAD,)}),
        (None, {"left_out": (BAD,)}),
    ]
    for callback, keys in ways:
        scaled = MixedPrecision("16-mixed", "cpu", scaler=torch.amp.GradScaler("cpu", init_scale=1024.0))
        states.append(fitted(tmp_path, callback, plugins=[scaled], **keys).lightning_module.state_dict())
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
