"""Callbacks that decide which weights learn, and which are validated and stored."""

import copy
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn
from torch.utils.data import DataLoader, TensorDataset

from imagenet_ddp.callbacks.fine_tuning import FrozenLayers
from imagenet_ddp.callbacks.weight_average import WeightAverage
from imagenet_ddp.errors import ConfigError

STEPS = 10  # of an epoch


class Versioned(nn.Linear):
    """Refuses weights without the version of its format, as torchvision's MNASNet does."""

    _version = 2

    def _load_from_state_dict(self, *args: Any, **keys: Any) -> None:
        assert args[2]["version"] == 2  # local_metadata
        super()._load_from_state_dict(*args, **keys)


class Module(L.LightningModule):
    """Remembers its weights after each step, and those it was validated with."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), Versioned(3, 2))
        self.trained: list[nn.Module] = []
        self.validated: list[dict[str, torch.Tensor]] = []

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.trained.append(copy.deepcopy(self.net))

    def validation_step(self, batch: list[torch.Tensor], batch_idx: int) -> None:
        self.validated.append({name: value.clone() for name, value in self.net.state_dict().items()})

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.3, momentum=0.9, weight_decay=0.1)


def fit(
    tmp_path: Path, callbacks: list[L.Callback], epochs: int, ckpt_path: Path | None = None, **keys: Any
) -> tuple[Module, L.Trainer]:
    torch.manual_seed(1)
    images, module = TensorDataset(torch.randn(STEPS * 4, 4), torch.arange(STEPS * 4) % 2), Module()
    trainer = L.Trainer(
        max_epochs=epochs, accelerator="cpu", callbacks=callbacks, logger=False, default_root_dir=tmp_path,
        enable_progress_bar=False, enable_model_summary=False, **{"enable_checkpointing": False, **keys},
    )  # fmt: skip
    trainer.fit(module, DataLoader(images, 4), DataLoader(images, 40), ckpt_path=ckpt_path, weights_only=True)
    return module, trainer


def expected(
    module: Module, decay: float | None, every: int = 1, start: int = 0, accumulate: int = 1
) -> dict[str, torch.Tensor]:
    """Written as torchvision's references do it, from the weights after each step."""
    average = AveragedModel(module.trained[0], avg_fn=get_ema_avg_fn(decay) if decay else None, use_buffers=True)
    ends = [batch for batch in range(1, STEPS + 1) if batch % accumulate == 0 or batch == STEPS]
    nets = [net for number, net in enumerate(module.trained) if number % STEPS + 1 in ends]
    for step, net in enumerate(nets, 1):
        due = step % every == 0 if decay else step % len(ends) == 0
        if due and step > start * len(ends):
            average.update_parameters(net)
    return average.module.state_dict()


@pytest.mark.parametrize(
    ("decay", "every", "start", "epochs", "accumulate"),
    [
        (0.9, 1, 0, 5, 1), (0.8, 3, 2, 5, 1), (None, 1, 2, 4, 1),
        (0.9, 1, 0, 3, 3), (0.9, 1, 1, 3, 3), (0.9, 1, 2, 3, 4), (0.8, 3, 1, 4, 3), (None, 1, 2, 4, 3),
    ],
)  # fmt: skip
def test_the_average_is_torchvisions(
    tmp_path: Path, decay: float | None, every: int, start: int, epochs: int, accumulate: int
):
    module, _ = fit(
        tmp_path, [WeightAverage(decay, every, start, warmup=False)], epochs, accumulate_grad_batches=accumulate
    )
    wanted = expected(module, decay, every, start, accumulate)
    for name, value in module.net.state_dict().items():  # after the training it has the average
        if decay or value.is_floating_point():  # an equal average of the number of steps would mean nothing
            torch.testing.assert_close(value, wanted[name], rtol=1e-5, atol=1e-6)


def test_the_average_is_validated_and_stored_once_there_is_one(tmp_path: Path):
    """Lightning's own callback validates the untrained copy before the first update (its issue 21724)."""
    module, trainer = fit(tmp_path, [WeightAverage(0.5, every_n_steps=1, start_epoch=1)], 2)
    untrained, first, second = module.validated  # Lightning tries a validation before the training
    assert torch.equal(untrained["0.weight"], Module().net.state_dict()["0.weight"])
    current = module.trained[STEPS - 1].state_dict()  # at the end of the first epoch
    assert all(torch.equal(first[name], current[name]) for name in first), "no average yet: the weights themselves"
    end = module.state_dict()
    assert all(torch.equal(second[name.removeprefix("net.")], end[name]) for name in end)
    trainer.save_checkpoint(tmp_path / "x.ckpt")
    stored = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert all(torch.equal(stored["state_dict"][name], end[name]) for name in end)


@pytest.mark.parametrize(("decay", "least"), [(0.9, STEPS + 1), (None, 2 * STEPS)])
def test_steps_that_end_before_the_average_begins_are_refused(tmp_path: Path, decay: float | None, least: int):
    with pytest.raises(
        ConfigError, match=rf"max_steps must be at least {least} .* Hint: set trainer\.max_steps={least}"
    ):
        fit(tmp_path, [WeightAverage(decay, start_epoch=1)], 9, max_steps=least - 1)
    fit(tmp_path, [average := WeightAverage(decay, start_epoch=1)], 9, max_steps=least)
    assert average.has_average


def test_a_short_run_forgets_its_first_weights(tmp_path: Path):
    """At the default decay, the average of 20 updates would be the first weights."""
    module, _ = fit(tmp_path, [WeightAverage()], 2)
    first, last = (module.trained[step].get_parameter("0.weight") for step in (0, -1))
    average = module.net.get_parameter("0.weight")
    assert (average - last).norm() < 0.5 * (average - first).norm()
    # against the definition
    wanted = first.clone()
    for number, net in enumerate(module.trained[1:], 1):
        wanted.lerp_(net.get_parameter("0.weight"), 1 - min(0.9998, (1 + number) / (10 + number)))
    torch.testing.assert_close(average, wanted)


@pytest.mark.parametrize(
    ("heads", "unfreeze_epoch", "batch_norm"),
    [(None, None, True), (("2",), None, False), (("2",), 2, False), (("2",), 1, True)],
)
def test_what_learns_in_each_epoch(
    tmp_path: Path, heads: tuple[str, ...] | None, unfreeze_epoch: int | None, batch_norm: bool
):
    """With validations in mid-epoch. Frozen layers also stay by weight decay and momentum, frozen statistics in all
    epochs."""
    callback, before = FrozenLayers(heads, unfreeze_epoch, batch_norm=batch_norm), Module().net.state_dict()
    module, _ = fit(tmp_path, [callback], 3, val_check_interval=4)
    statistics = {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    for epoch in range(3):
        state = module.trained[(epoch + 1) * STEPS - 1].state_dict()
        frozen = heads is not None and (unfreeze_epoch is None or epoch < unfreeze_epoch)
        kept = {name for name in before if frozen and not name.startswith("2.")} | (statistics if batch_norm else set())
        assert {name for name, value in state.items() if torch.equal(value, before[name])} == kept, epoch


@pytest.mark.filterwarnings("ignore:.*")
def test_a_run_resumed_within_an_epoch_is_frozen_too(tmp_path: Path):
    saving = ModelCheckpoint(tmp_path, "{step}", every_n_train_steps=4, save_top_k=-1)
    fit(tmp_path, [FrozenLayers(("2",)), saving], 1, enable_checkpointing=True)
    module, trainer = fit(tmp_path, [FrozenLayers(("2",))], 1, tmp_path / "step=4.ckpt")
    assert trainer.global_step == STEPS
    first, end = Module().net.state_dict(), module.net.state_dict()
    assert all(torch.equal(end[name], first[name]) for name in end if not name.startswith("2."))
    assert not torch.equal(end["2.weight"], first["2.weight"])
