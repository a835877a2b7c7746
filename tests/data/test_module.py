import itertools
import json
import multiprocessing
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning.pytorch as L
import numpy as np
import pytest
import torch
from conftest import clean_environ
from helpers import forked_commands
from torch import Tensor

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.loader import Batch
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.sources.registry import open_source
from imagenet_ddp.errors import ConfigError

FEW: dict[str, Any] = {"name": "imagefolder", "image_size": 16, "batch_size": 4, "num_workers": 0}


def make(tree: Path, world_size: int = 1, rank: int = 0, channels_last: bool = False, **more: Any) -> ImageDataModule:
    keys = DataConfig.of(root=str(tree), **FEW | more)
    data = ImageDataModule(open_source(keys, 0), keys, 5, channels_last)
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        world_size=world_size,
        global_rank=rank,
        accumulate_grad_batches=1,
        num_training_batches=99,
        overfit_batches=0,
        num_devices=1,
        strategy=SimpleNamespace(root_device=torch.device("cpu")),
        training=True,
    )
    return data


def counted(batches: list[Batch]) -> list[int]:
    return [index for batch in batches for index in batch["index"][: batch["num_counted"]].tolist()]


def test_validation_is_in_order_and_counts_each_image_once_over_the_ranks(tree: Path):
    ranks = [list(make(tree, world_size=3, rank=rank).val_dataloader()) for rank in range(3)]
    assert [len(batches) for batches in ranks] == [1, 1, 1]
    assert [counted(batches) for batches in ranks] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10]]


# ---- augmented and mixed batches are the same bits for any number of workers and after a resume


ALL = {
    "augment": "pad_crop", "policy": "randaugment", "color_jitter": 0.3, "grayscale": 0.2, "blur": 0.2, "erasing": 0.5,
    "cutout": 6, "repeats": 2, "mixup_alpha": 0.4, "cutmix_alpha": 1.0, "mix_probability": 0.8,
}  # fmt: skip


def augmented(tree: Path, **more: Any) -> ImageDataModule:
    return make(tree, channels_last=True, **{"image_size": 32, **ALL, **more})


def batches(data: ImageDataModule, epoch: int = 1) -> list[Any]:
    """As the net sees them."""
    loader = data.train_dataloader()
    assert data.train_sampler is not None
    data.train_sampler.set_epoch(epoch)
    return [data.on_after_batch_transfer(batch, 0) for batch in loader]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name], name


@pytest.fixture(scope="module")
def whole(tree: Path) -> list[Any]:
    torch.manual_seed(1)
    return batches(augmented(tree))


@pytest.fixture(scope="module")
def with_workers(tree: Path) -> Iterator[ImageDataModule]:
    data = augmented(tree, num_workers=2)
    yield data
    data.close()


@pytest.mark.slow
def test_loader_processes_change_no_bit(whole: list[Any], with_workers: ImageDataModule):
    torch.manual_seed(2)
    assert_same(batches(with_workers), whole)


def test_a_resumed_epoch_has_the_rest_of_the_batches(tree: Path, whole: list[Any]):
    data = augmented(tree)
    data.start_at(1, 12, 3)
    assert_same(batches(data), whole[3:])


def test_an_image_is_the_same_on_any_number_of_ranks(tree: Path):
    def images(world_size: int) -> set[tuple[int, bytes]]:
        """As they leave the loader."""
        ranks = [augmented(tree, world_size=world_size, rank=rank).train_dataloader() for rank in range(world_size)]
        batches = [batch for loader in ranks for batch in loader]
        return {
            (index, image.numpy().tobytes())
            for batch in batches
            for index, image in zip(batch["index"].tolist(), batch["image"], strict=True)
        }

    one, two = images(1), images(2)
    assert one == two
    assert len(one) == 29, "each copy is another picture"
    assert len({index for index, _ in one}) == 15


def test_a_training_batch_has_soft_targets_and_a_validation_batch_has_none(tree: Path, whole: list[Any]):
    assert all(batch["soft_target"].shape == (len(batch["target"]), 3) for batch in whole)
    data = augmented(tree)
    data.trainer.training = False  # type: ignore[union-attr,misc]
    assert "soft_target" not in data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    assert all("soft_target" not in batch for batch in batches(augmented(tree, mixup_alpha=0.0, cutmix_alpha=0.0)))


# ---- as a library --------------------------------------------------------------------------------------------------


class TinyModule(L.LightningModule):
    """A classifier as any user of Lightning writes it."""

    def __init__(self, num_classes: int):
        super().__init__()
        self.net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(num_classes))
        self.seen: list[int] = []

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(batch["image"]), batch["target"])

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        self.seen += batch["index"][: batch["num_counted"]].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


@pytest.mark.filterwarnings("ignore")
def test_any_trainer_takes_the_data_module(tree: Path):
    before = len(multiprocessing.active_children())
    data = ImageDataModule.from_options("imagefolder", tree, image_size=16, batch_size=4, num_workers=1)
    module = TinyModule(len(data.source.classes))
    module.net(torch.zeros(1, 3, 16, 16))
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(module, datamodule=data)
    assert trainer.global_step == 8  # 29 images by 4
    assert sorted(module.seen[-11:]) == list(range(11))
    assert len(multiprocessing.active_children()) == before  # teardown has ended the loader processes


class Weighing(TinyModule):
    """Keeps the weights and the indices of the training images."""

    def training_step(self, batch: Batch, batch_idx: int) -> torch.Tensor:
        assert "weight" in batch
        self.weights = getattr(self, "weights", {}) | dict(
            zip(batch["index"].tolist(), batch["weight"].tolist(), strict=True)
        )
        return self.net(batch["image"].to(self.dtype)).mean()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("precision", ["32-true", "bf16-true"])
def test_weights_of_images_are_exact_in_every_precision(tree: Path, precision: Any):
    data = ImageDataModule.from_options("imagefolder", tree, image_size=16, batch_size=4, num_workers=0)
    weights = data.train_images.weights = np.linspace(0.1, 9, data.num_train_images, dtype=np.float32)
    module = Weighing(len(data.source.classes))
    module.net(torch.zeros(1, 3, 16, 16))
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        limit_val_batches=0, precision=precision,
    )  # fmt: skip
    trainer.fit(module, datamodule=data)
    assert module.weights == dict(enumerate(weights.tolist()))


def test_all_mistaken_options_are_named_at_once(tmp_path: Path):
    with pytest.raises(ConfigError) as caught:
        ImageDataModule.from_options("imagefolder", tmp_path, image_size=1, decoder="fast")
    assert [str(text).split()[0] for text in caught.value.mistakes[:2]] == ["data.image_size", "data.decoder"]


@pytest.mark.slow
def test_any_trainer_divides_the_images_among_its_ranks(tree: Path):
    """Lightning must not put a sampler of its own in the place of this one."""
    script = f"""
import json
from pathlib import Path
import torch, lightning.pytorch as L
from test_module import TinyModule
from imagenet_ddp.data import ImageDataModule

class Counting(TinyModule):
    def on_validation_end(self):  # a file per rank: lines that two processes print can run together
        Path(f"rank_{{self.global_rank}}.json").write_text(json.dumps(self.seen))

if __name__ == "__main__":
    data = ImageDataModule.from_options("imagefolder", {str(tree)!r}, image_size=16, batch_size=4, num_workers=0)
    module = Counting(3)
    module.net(torch.zeros(1, 3, 16, 16))
    L.Trainer(max_epochs=1, accelerator="cpu", devices=2, strategy="ddp_fork", num_sanity_val_steps=0, logger=False,
              enable_checkpointing=False, enable_progress_bar=False).fit(module, datamodule=data)
"""
    folder = tree.parent / "two_ranks"
    folder.mkdir()
    (folder / "main.py").write_text(script)
    here = Path(__file__).parent
    environment = clean_environ(PYTHONPATH=f"{here}{os.pathsep}{here.parent}")
    done = forked_commands.Command("main", folder=folder, environment=environment)
    assert done.wait(120) == 0, done.err
    seen = [json.loads((folder / f"rank_{rank}.json").read_text()) for rank in range(2)]
    assert all(seen) and sorted(itertools.chain(*seen)) == list(range(11))
