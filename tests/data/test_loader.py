import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import write_images
from torch.utils.data import DataLoader

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.decoding.errors import LoadError
from imagenet_ddp.data.loader import Batch, EpochLoader, ImageDataset, make_loader
from imagenet_ddp.data.loader_processes import loader_workers
from imagenet_ddp.data.sampler import BatchSampler, SampleKey
from imagenet_ddp.data.sources.datasets import DatasetImages
from imagenet_ddp.data.sources.image_files import FileImages, list_images
from imagenet_ddp.data.transforms import EvalTransform, TrainTransform
from imagenet_ddp.data.unreadable_images import Bad


@pytest.fixture(scope="module")
def images(tree: Path) -> FileImages:
    return list_images(tree / "train", ["cat", "dog", "owl"])


def make(
    images: FileImages,
    num_workers: int,
    batch_size: int = 4,
    world_size: int = 1,
    rank: int = 0,
    on_bad_images: Any = None,
) -> EpochLoader:
    sampler = BatchSampler(len(images), batch_size, world_size, rank, shuffle=True, seed=7, fill_to=2)
    return make_loader(
        images,
        TrainTransform(DataConfig(image_size=16)),
        sampler,
        seed=7,
        num_workers=num_workers,
        pin_memory=False,
        replace=True,
        on_bad_images=on_bad_images,
    )


def sampler_of(loader: DataLoader) -> BatchSampler:
    assert isinstance(loader.batch_sampler, BatchSampler)
    return loader.batch_sampler


def epoch(loader: EpochLoader, number: int) -> list[Batch]:
    sampler_of(loader).set_epoch(number)
    return list(loader)


def test_a_batch_says_what_it_holds(images: FileImages):
    batches = epoch(make(images, num_workers=0), 0)
    # 29 images: the last two steps share five
    assert [batch["num_counted"] for batch in batches] == [4] * 6 + [3, 2]
    assert [len(batch["index"]) for batch in batches] == [4] * 6 + [3, 2]
    assert [batch["step_images"] for batch in batches] == [4] * 6 + [3, 2]
    order = torch.cat([batch["index"][: batch["num_counted"]] for batch in batches])
    assert sorted(order.tolist()) == list(range(29))
    for batch in batches:
        assert batch["image"].shape == (len(batch["index"]), 3, 16, 16)
        assert batch["image"].dtype == torch.uint8
        assert batch["image"].is_contiguous(memory_format=torch.channels_last)
        assert batch["flip"].shape == (len(batch["index"]),)
        assert batch["target"].dtype == batch["index"].dtype == torch.int64
        assert batch["target"].tolist() == images.targets[batch["index"].numpy()].tolist()


def test_the_iterator_waits_for_the_epoch(images: FileImages):
    """As Lightning does it: iter(), then set_epoch()."""
    for loader in (make(images, num_workers=1), make(images, num_workers=0)):
        sampler = sampler_of(loader)
        sampler.set_epoch(0)
        batches = iter(loader)
        sampler.set_epoch(5)
        found = [index for batch in batches for index in batch["index"][: batch["num_counted"]].tolist()]
        assert found == sampler.order().tolist()
        sampler.set_epoch(0)
        assert found != sampler.order().tolist()
        loader.close()


def test_stopped_processes_are_ended_together(images: FileImages):
    """torch waits 10 s for each in turn."""
    loader = make(images, num_workers=2)
    assert epoch(loader, 0)
    workers = loader_workers(loader)
    for worker in workers:
        os.kill(worker.pid, signal.SIGSTOP)
    begin_s = time.monotonic()
    loader.close()
    assert time.monotonic() - begin_s < 10 * len(workers)
    assert [worker.exitcode for worker in workers] == [-signal.SIGKILL] * 2


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of which three cannot be read: number 2 is none, 5 is gone, 9 is cut off."""
    root = tmp_path_factory.mktemp("broken")
    write_images(root, {"cat": 6, "dog": 6})
    (root / "cat" / "002.jpg").write_bytes(b"no image")
    (root / "cat" / "005.jpg").unlink()
    (root / "cat" / "005.jpg").symlink_to("gone.jpg")
    (root / "dog" / "003.jpg").write_bytes((root / "dog" / "003.jpg").read_bytes()[:400])
    return root


BAD = {2, 5, 9}


def test_an_unreadable_image_gives_its_place_to_another_of_its_rank(broken: Path):
    images = list_images(broken, ["cat", "dog"])
    told: list[Bad] = []
    ranks = []
    for rank in range(2):
        loader = make(images, 1, batch_size=3, world_size=2, rank=rank, on_bad_images=told.extend)
        ranks.append(epoch(loader, 0))
        loader.close()
    for batches in ranks:
        assert [(batch["num_counted"], batch["step_images"]) for batch in batches] == [(3, 6), (3, 6)]
        for batch in batches:
            assert not BAD & set(batch["index"].tolist())
            assert batch["target"].tolist() == images.targets[batch["index"].numpy()].tolist()
            assert all(image.float().std() > 1 for image in batch["image"])
    assert [path for path, _ in sorted(told)] == [images.path(index) for index in sorted(BAD)]
    assert dict(told)[images.path(2)] == "it is not an image in a known format"
    assert dict(told)[images.path(5)] == "no such file or directory"
    # what took the place is a crop of its own, and the same one in every such run
    again = epoch(make(images, 0, batch_size=3, world_size=2, rank=0, on_bad_images=told.extend), 0)
    for one, other in zip(again, ranks[0], strict=True):
        assert all(torch.equal(one[name], other[name]) for name in ("image", "flip", "target", "index"))


def test_where_a_whole_batch_is_unreadable_the_split_has_others(broken: Path):
    images = list_images(broken, ["cat", "dog"])
    samples = ImageDataset(images, TrainTransform(DataConfig(image_size=16)), 0, replace=True)
    batch = samples.__getitems__(
        [SampleKey(0, 2, True, 3, 3), SampleKey(0, 5, True, 3, 3), SampleKey(0, 9, False, 3, 3)]
    )
    assert not BAD & set(batch["index"].tolist())
    assert (len(batch["index"]), batch["num_counted"], len(batch["unreadable"])) == (3, 2, 3)
    none = ImageDataset(list_images(broken, ["cat"]).subset(np.array([2])), samples.transform, 0, replace=True)
    with pytest.raises(LoadError, match=r"nor can 100 others .* the last because: it is not an image in a known"):
        none.__getitems__([SampleKey(0, 0, True, 1, 1)])


def test_a_replaced_image_has_the_index_of_the_other(tmp_path: Path):
    """Which its weight is looked up by."""
    write_images(tmp_path, {"cat": 3})
    (tmp_path / "cat" / "001.jpg").write_bytes(b"")
    samples = ImageDataset(list_images(tmp_path, ["cat"]), TrainTransform(DataConfig(image_size=16)), 0, replace=True)
    batch = samples.__getitems__([SampleKey(0, index, True, 3, 3) for index in (0, 1, 2)])
    assert batch["index"].tolist() == [0, 2, 0]


class Drawing:
    """A Dataset of one's own whose pixels are random numbers of each generator that an augmentation may draw from."""

    targets = (0, 0, 0, 0)

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[Any, int]:
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
        return np.tile(np.array([255 * number for number in drawn], np.uint8), (8, 8, 1)), 0


def test_an_augmentation_in_a_dataset_of_ones_own_draws_from_the_seed():
    def batch(seed: int, epoch: int = 0) -> torch.Tensor:
        transform = EvalTransform.of(DataConfig(image_size=8, val_resize=8))
        samples = ImageDataset(DatasetImages(Drawing(), "mine"), transform, seed, replace=True)
        return samples.__getitems__([SampleKey(epoch, index, True, 4, 4) for index in range(4)])["image"]

    state = torch.get_rng_state()
    first = batch(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(batch(1), first) and len(first.flatten(1).unique(dim=0)) == 4
    assert not torch.equal(batch(2), first) and not torch.equal(batch(1, epoch=1), first)
