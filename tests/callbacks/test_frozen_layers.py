from types import SimpleNamespace
from typing import Any, cast

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from imagenet_ddp.callbacks.frozen_layers import FrozenLayers
from imagenet_ddp.distributed.strategies.ddp import SyncBatchNorm

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated"),
]


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


def test_synchronised_statistics_are_frozen_too() -> None:
    module = Module()
    SyncBatchNorm().apply(module.net)
    FrozenLayers(("2",)).on_train_epoch_start(cast(Any, SimpleNamespace(current_epoch=0)), module)
    assert [each.training for each in module.net] == [True, False, True]


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


@pytest.mark.parametrize("unfreeze_epoch", [None, 1, 2])
def test_all_but_the_head_stays_as_it_was_until_the_epoch(tmp_path: Any, unfreeze_epoch: int | None):
    """Also by weight decay and momentum, and batch norm's statistics; with a validation in mid-epoch."""
    images, module = TensorDataset(torch.randn(40, 4), torch.arange(40) % 2), Module()
    before = {name: value.clone() for name, value in module.net.state_dict().items()}
    trainer = L.Trainer(
        max_epochs=3, accelerator="cpu", callbacks=[FrozenLayers(("2",), unfreeze_epoch)], logger=False,
        default_root_dir=tmp_path, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, val_check_interval=4,
    )  # fmt: skip
    trainer.fit(module, DataLoader(images, 4), DataLoader(images, 40))
    for epoch, state in enumerate(module.states):
        frozen = unfreeze_epoch is None or epoch < unfreeze_epoch
        for name, value in state.items():
            same = torch.equal(value, before[name])
            assert same == (frozen and not name.startswith("2.")), (epoch, name)


@pytest.mark.parametrize(("heads", "unfreeze_epoch"), [(None, None), (("2",), 1), (("2",), None)])
def test_frozen_statistics_stay_and_their_weights_learn_unless_the_layer_is_frozen(
    tmp_path: Any, heads: tuple[str, ...] | None, unfreeze_epoch: int | None
):
    """Over several epochs, with validations in mid-epoch, and no matter from which epoch on all layers are trained."""
    images, module = TensorDataset(torch.randn(40, 4), torch.arange(40) % 2), Module()
    before = {name: value.clone() for name, value in module.net.state_dict().items()}
    trainer = L.Trainer(
        max_epochs=2, accelerator="cpu", callbacks=[FrozenLayers(heads, unfreeze_epoch, batch_norm=True)], logger=False,
        default_root_dir=tmp_path, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, val_check_interval=4,
    )  # fmt: skip
    trainer.fit(module, DataLoader(images, 4), DataLoader(images, 40))
    learned = {name for name, value in module.states[-1].items() if not torch.equal(value, before[name])}
    head = {"2.weight", "2.bias"}
    others = {"0.weight", "0.bias", "1.weight", "1.bias"}
    assert learned == (head if heads and unfreeze_epoch is None else head | others)
