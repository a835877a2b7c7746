"""Augmented and mixed batches are the same bits for any number of workers and after a resume; images for any number of
ranks."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.sources.registry import open_source

pytestmark = pytest.mark.usefixtures("one_thread")

ALL = {
    "augment": "pad_crop", "policy": "randaugment", "color_jitter": 0.3, "grayscale": 0.2, "blur": 0.2, "erasing": 0.5,
    "cutout": 6, "repeats": 2, "mixup_alpha": 0.4, "cutmix_alpha": 1.0, "mix_probability": 0.8,
}  # fmt: skip


def make(tree: Path, world_size: int = 1, rank: int = 0, **more: Any) -> ImageDataModule:
    usual: dict[str, Any] = {
        "name": "imagefolder",
        "image_size": 32,
        "batch_size": 4,
        "num_workers": 0,
        "root": str(tree),
    }
    keys = DataConfig(**usual | ALL | more)
    data = ImageDataModule(open_source(keys, 0), keys, 5, True)
    data.trainer = SimpleNamespace(  # type: ignore[assignment]
        world_size=world_size, global_rank=rank, accumulate_grad_batches=1, num_training_batches=99, overfit_batches=0,
        num_devices=1, strategy=SimpleNamespace(root_device=torch.device("cpu")), training=True,
    )  # fmt: skip
    return data


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
    return batches(make(tree))


@pytest.fixture(scope="module")
def with_workers(tree: Path) -> Iterator[ImageDataModule]:
    data = make(tree, num_workers=2)
    yield data
    data.close()


def test_loader_processes_change_no_bit(whole: list[Any], with_workers: ImageDataModule):
    torch.manual_seed(2)
    assert_same(batches(with_workers), whole)


def test_a_resumed_epoch_has_the_rest_of_the_batches(tree: Path, whole: list[Any]):
    data = make(tree)
    data.start_at(1, 12, 3)
    assert_same(batches(data), whole[3:])


def test_an_image_is_the_same_on_any_number_of_ranks(tree: Path):
    def images(world_size: int) -> set[tuple[int, bytes]]:
        """As they leave the loader."""
        ranks = [make(tree, world_size, rank).train_dataloader() for rank in range(world_size)]
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
    data = make(tree)
    data.trainer.training = False  # type: ignore[union-attr,misc]
    assert "soft_target" not in data.on_after_batch_transfer(next(iter(data.val_dataloader())), 0)
    assert all("soft_target" not in batch for batch in batches(make(tree, mixup_alpha=0.0, cutmix_alpha=0.0)))
