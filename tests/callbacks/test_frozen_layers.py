from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from imagenet_ddp.callbacks.frozen_layers import FrozenLayers

pytestmark = pytest.mark.usefixtures("one_thread")


class Module(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
        self.states: list[dict[str, torch.Tensor]] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        pass

    def on_train_epoch_end(self) -> None:
        self.states.append({name: value.clone() for name, value in self.net.state_dict().items()})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9, weight_decay=0.1)


@pytest.mark.filterwarnings("ignore:.*")
def test_a_run_resumed_within_an_epoch_is_frozen_too(tmp_path: Any):
    images, module = TensorDataset(torch.randn(40, 4), torch.arange(40) % 2), Module()
    arguments: dict[str, Any] = {"accelerator": "cpu", "logger": False, "default_root_dir": tmp_path,
                                 "enable_progress_bar": False, "enable_model_summary": False}  # fmt: skip
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=4, save_top_k=-1)
    L.Trainer(max_epochs=1, callbacks=[FrozenLayers(("2",)), saving], **arguments).fit(module, DataLoader(images, 4))
    resumed = Module()
    trainer = L.Trainer(max_epochs=1, callbacks=[FrozenLayers(("2",))], enable_checkpointing=False, **arguments)
    trainer.fit(resumed, DataLoader(images, 4), ckpt_path=tmp_path / "step=4.ckpt", weights_only=True)
    assert trainer.global_step == 10
    first, end = Module().net.state_dict(), resumed.net.state_dict()
    assert all(torch.equal(end[name], first[name]) for name in end if not name.startswith("2."))
    assert not torch.equal(end["2.weight"], first["2.weight"])


@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize(("heads", "unfreeze_epoch"), [(None, None), (("2",), None), (("2",), 1), (("2",), 2)])
def test_what_learns_in_each_epoch(
    tmp_path: Any, heads: tuple[str, ...] | None, unfreeze_epoch: int | None, batch_norm: bool
):
    """With validations in mid-epoch. Frozen layers also stay by weight decay and momentum, frozen statistics in all
    epochs."""
    images, module = TensorDataset(torch.randn(40, 4), torch.arange(40) % 2), Module()
    before = {name: value.clone() for name, value in module.net.state_dict().items()}
    callback = FrozenLayers(heads, unfreeze_epoch, batch_norm=batch_norm)
    trainer = L.Trainer(
        max_epochs=3, accelerator="cpu", callbacks=[callback], logger=False, default_root_dir=tmp_path,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False, val_check_interval=4,
    )  # fmt: skip
    trainer.fit(module, DataLoader(images, 4), DataLoader(images, 40))
    statistics = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    for epoch, state in enumerate(module.states):
        frozen = heads is not None and (unfreeze_epoch is None or epoch < unfreeze_epoch)
        kept = {name for name in before if frozen and not name.startswith("2.")} | (statistics if batch_norm else set())
        assert {name for name, value in state.items() if torch.equal(value, before[name])} == kept, epoch
