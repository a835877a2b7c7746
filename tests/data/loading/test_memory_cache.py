from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from imagenet_ddp.data.decoding.image import Picture
from imagenet_ddp.data.loading import memory_cache
from imagenet_ddp.data.loading.dataloader import EpochLoader, make_loader
from imagenet_ddp.data.loading.memory_cache import MemoryImages, cache_in_memory
from imagenet_ddp.data.loading.sampler import BatchSampler
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.folder.images import FileImages, walk
from imagenet_ddp.data.transforms import Sizes, TrainTransform

CLASSES = ["cat", "dog", "owl"]


def source(tree: Path) -> Source:
    return Source(CLASSES, walk(tree / "train", CLASSES), walk(tree / "val", CLASSES))


def loader(images: Images, num_workers: int) -> EpochLoader:
    sampler = BatchSampler(len(images), 4, 1, 0, shuffle=True, seed=7, fill_to=2)
    transform = TrainTransform(Sizes(24), (0.08, 1.0), 0.5)
    return make_loader(images, transform, sampler, seed=7, num_workers=num_workers, pin_memory=False, replace=True)


def all_pixels(loader: EpochLoader) -> list[bytes]:
    return [batch["image"].contiguous().numpy().tobytes() for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_from_memory_come_the_same_crops_without_a_file(tree: Path, tmp_path: Path, num_workers: int):
    root = tmp_path / "tree"
    root.symlink_to(tree)
    held = cache_in_memory(source(root), 64, shared=num_workers > 0)
    assert isinstance(held.train, MemoryImages) and isinstance(held.val, MemoryImages)
    plain, kept = loader(walk(tree / "train", CLASSES), 0), loader(held.train, num_workers)
    assert all_pixels(kept) == all_pixels(plain)
    root.unlink()  # all are decoded now, by whichever worker
    plain.batch_sampler.set_epoch(1)  # type: ignore[union-attr]
    kept.batch_sampler.set_epoch(1)  # type: ignore[union-attr]
    assert all_pixels(kept) == all_pixels(plain)
    kept.close()
    assert held.notes[0].startswith("Memory: the 29 training images are decoded once and kept, 0 MiB")


def test_each_image_is_decoded_once(tree: Path, monkeypatch: pytest.MonkeyPatch):
    opened: list[int] = []
    original: Callable[[FileImages, int], Picture] = FileImages.open
    held = cache_in_memory(source(tree), 64, shared=False)
    monkeypatch.setattr(FileImages, "open", lambda self, index: opened.append(index) or original(self, index))
    assert held.train is not None
    for _ in range(3):
        all_pixels(loader(held.train, 0))
    assert sorted(opened) == list(range(29))


def test_what_does_not_fit_is_read_from_its_files(tree: Path, monkeypatch: pytest.MonkeyPatch):
    num_bytes = 29 * 40 * 47 * 3
    assert isinstance(cache_in_memory(source(tree), 0, shared=False).train, FileImages)
    monkeypatch.setattr(memory_cache, "MIB", num_bytes)  # room for training's, then not for validation's
    held = cache_in_memory(source(tree), 1, shared=False)
    assert isinstance(held.train, MemoryImages) and isinstance(held.val, FileImages)
    assert len(held.notes) == 1
    monkeypatch.setattr(memory_cache, "_free", lambda folder: num_bytes // 2)  # a container's /dev/shm
    assert isinstance(cache_in_memory(source(tree), 1, shared=True).train, FileImages)


def test_an_unreadable_image_is_said_when_it_is_needed(tmp_path: Path, tree: Path):
    (tmp_path / "cat").mkdir()
    (tmp_path / "cat" / "a.jpg").write_bytes(b"no image")
    (tmp_path / "cat" / "b.jpg").write_bytes((tree / "train" / "cat" / "000.jpg").read_bytes())
    held = cache_in_memory(Source(["cat"], walk(tmp_path, ["cat"]), None), 64, shared=False).train
    assert isinstance(held, MemoryImages)
    told: list[tuple[str, str]] = []
    samples = loader(held, 0)
    samples.on_bad_images = told.extend
    all_pixels(samples)
    assert told == [(str(tmp_path / "cat" / "a.jpg"), "it is no image of a known format")]


def test_a_file_that_has_changed_is_read_anew(tmp_path: Path, tree: Path):
    (tmp_path / "cat").mkdir()
    file = tmp_path / "cat" / "a.jpg"
    file.write_bytes((tree / "train" / "cat" / "000.jpg").read_bytes())
    held = cache_in_memory(Source(["cat"], walk(tmp_path, ["cat"]), None), 64, shared=False).train
    assert isinstance(held, MemoryImages)
    file.write_bytes((tree / "train" / "cat" / "003.jpg").read_bytes())
    picture = held.open(0)
    expected = held.read(0).permute(1, 2, 0).numpy()
    assert np.array_equal(picture.region(0, 0, picture.height, picture.width), expected)
    assert torch.equal(held.read(0), walk(tmp_path, ["cat"]).read(0))
