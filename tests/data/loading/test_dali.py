import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import SMALL, Run, write_images

from imagenet_ddp.data.bad_images import Bad
from imagenet_ddp.data.loading.dali import DaliLoader, unsupported_reason
from imagenet_ddp.data.loading.dali_pipeline import choose_device, load
from imagenet_ddp.data.loading.dataloader import Batch, EpochLoader, make_loader
from imagenet_ddp.data.loading.sampler import BatchSampler
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.folder.images import FileImages
from imagenet_ddp.data.sources.folder.scan import is_image
from imagenet_ddp.data.sources.folder.walk import list_images
from imagenet_ddp.data.transforms import Sizes, TrainTransform
from imagenet_ddp.errors import ConfigError

MEAN_DIFFERENCE = 0.3  # of 255: both round the resized pixels, each in its own way; measured 0.11 to 0.18

SIZES = Sizes(64)


@pytest.fixture(scope="module", autouse=True)
def _dali(one_thread: None) -> None:
    pytest.importorskip("nvidia.dali", reason="the extra dali is not installed; scripts/check.sh installs it")


def sampler_for(images: FileImages) -> BatchSampler:
    return BatchSampler(len(images), 8, 1, 0, shuffle=True, seed=7, fill_to=2)


def make(
    images: FileImages, told: list[Bad] | None = None, said: list[str] | None = None, sizes: Sizes = SIZES
) -> tuple[DaliLoader, EpochLoader]:
    """DALI's loader and the ordinary one."""
    transform = TrainTransform(sizes, (0.08, 1.0), 0.5)
    dali = DaliLoader(
        images, transform, sampler_for(images), seed=3, num_threads=1, device=torch.device("cpu"), pin_memory=False,
        on_bad_images=(told if told is not None else []).extend, say=(said if said is not None else []).append,
    )  # fmt: skip
    ordinary = make_loader(
        images, transform, sampler_for(images), seed=3, num_workers=0, pin_memory=False,
        on_bad_images=lambda bad: None,
    )  # fmt: skip
    return dali, ordinary


def epoch(loader: DaliLoader | EpochLoader, number: int) -> list[Batch]:
    assert isinstance(loader.batch_sampler, BatchSampler)
    loader.batch_sampler.set_epoch(number)
    return list(loader)


def assert_alike(found: list[Batch], expected: list[Batch]) -> None:
    """All but the last bits of the pixels."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for name in ("flip", "target", "index"):
            assert torch.equal(one[name], other[name])
        assert (one["num_counted"], one["step_images"]) == (other["num_counted"], other["step_images"])
        assert one["image"].shape == other["image"].shape
        assert one["image"].is_contiguous(memory_format=torch.channels_last)


def differences(found: list[Batch], expected: list[Batch]) -> list[float]:
    """Of each image, the mean over its pixels."""
    pairs = zip(found, expected, strict=True)
    return [
        value
        for one, other in pairs
        for value in (one["image"].float() - other["image"].float()).abs().mean(dim=(1, 2, 3)).tolist()
    ]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> FileImages:
    """29 images: no batch size divides them. Small enough that no crop may be decoded at less than its size."""
    root = tmp_path_factory.mktemp("drawn")
    write_images(root, {"cat": 10, "dog": 10, "owl": 9}, size=60)
    return list_images(root, ["cat", "dog", "owl"])


@pytest.fixture
def pair(drawn: FileImages) -> Iterator[tuple[DaliLoader, EpochLoader]]:
    dali, ordinary = make(drawn)
    yield dali, ordinary
    dali.close()


def test_order_crops_and_flips_are_those_of_the_ordinary_loader(pair: tuple[DaliLoader, EpochLoader]):
    dali, ordinary = pair
    assert len(dali) == len(ordinary) == 4
    for number in (0, 3):
        found, expected = epoch(dali, number), epoch(ordinary, number)
        assert_alike(found, expected)
        assert max(differences(found, expected)) < 0.8  # enlarged noise: a crop one pixel aside differs by 10


def test_photographs_have_the_same_pixels(shared_data: Path):
    folder = shared_data / "imagenet-real" / "train"
    images = list_images(folder, sorted(path.name for path in folder.iterdir()))
    images = images.subset(np.arange(0, len(images), len(images) // 40)[:40])
    dali, ordinary = make(images, sizes=Sizes(224))
    found, expected = epoch(dali, 0), epoch(ordinary, 0)
    dali.close()
    assert_alike(found, expected)
    alike = differences(found, expected)
    # the ordinary loader decodes a crop of twice the size at half of it
    assert float(np.median(alike)) < MEAN_DIFFERENCE
    assert sum(value < MEAN_DIFFERENCE for value in alike) >= 36


def test_a_resumed_epoch_begins_at_its_image(pair: tuple[DaliLoader, EpochLoader]):
    for loader in pair:
        assert isinstance(loader.batch_sampler, BatchSampler)
        loader.batch_sampler.start_at(2, 11)
    found, expected = (epoch(loader, 2) for loader in pair)
    assert sum(batch["num_counted"] for batch in found) == 18
    assert_alike(found, expected)


def test_the_iterator_waits_for_the_epoch_and_may_be_left(pair: tuple[DaliLoader, EpochLoader]):
    dali, ordinary = pair
    left = iter(dali)
    next(left)
    dali.batch_sampler.set_epoch(0)
    batches = iter(dali)  # as Lightning does it: iter(), then set_epoch()
    dali.batch_sampler.set_epoch(5)
    found, expected = list(batches), epoch(ordinary, 5)
    assert_alike(found, expected)
    assert max(differences(found, expected)) < 0.8
    dali.close()
    assert_alike(epoch(dali, 1), epoch(ordinary, 1))


def test_sizes_follow_the_epoch(drawn: FileImages):
    dali, ordinary = make(drawn, sizes=Sizes(96, start=32, begin=0, end=2))
    for number, size in ((0, 32), (1, 64), (2, 96)):
        found = epoch(dali, number)
        assert {tuple(batch["image"].shape[2:]) for batch in found} == {(size, size)}
        assert_alike(found, epoch(ordinary, number))
    dali.close()


@pytest.mark.slow
def test_each_odd_file_is_read_or_refused_as_by_the_ordinary_loader(shared_data: Path, tmp_path: Path):
    folder = tmp_path / "cat"
    folder.mkdir()
    for path in (shared_data / "odd").iterdir():
        if path.name != "MANIFEST.md":
            name = path.name if is_image(path.name) else f"not-hidden-{path.name.strip('.')}.jpg"
            shutil.copy(path, folder / name)
    told: list[Bad] = []
    said: list[str] = []
    images = list_images(tmp_path, ["cat"])
    dali, ordinary = make(images, told, said)
    found, expected = epoch(dali, 0), epoch(ordinary, 0)
    dali.close()
    assert sum(batch["num_counted"] for batch in found) == 101
    assert len(told) == 101 - 78
    assert_alike(found, expected)
    # one of them is none for DALI, which then is of no use to its whole batch, and is made anew
    assert len(said) == 1 and said[0].startswith("Warning: DALI cannot decode one of the images of a batch")


def test_an_error_of_dali_costs_no_image(drawn: FileImages, monkeypatch: pytest.MonkeyPatch):
    from imagenet_ddp.data.loading import dali as module

    made = []

    class Failing(module.Pipeline):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

        def take(self) -> torch.Tensor:
            if len(made) == 1:
                raise RuntimeError("Critical error in pipeline")
            return super().take()

    monkeypatch.setattr(module, "Pipeline", Failing)
    said: list[str] = []
    dali, ordinary = make(drawn, said=said)
    found, expected = epoch(dali, 0), epoch(ordinary, 0)
    dali.close()
    assert_alike(found, expected)
    # the two batches that were in there came from the ordinary decoder, the others from a new pipeline
    assert [torch.equal(one["image"], other["image"]) for one, other in zip(found, expected, strict=True)] == [
        True, True, False, False,
    ]  # fmt: skip
    assert (len(made), len(said)) == (2, 1)


def test_unreadable_images_are_replaced_as_ever(tmp_path: Path):
    write_images(tmp_path, {"cat": 6, "dog": 6}, size=60)
    (tmp_path / "cat" / "002.jpg").write_bytes(b"no image")
    (tmp_path / "cat" / "005.jpg").unlink()
    (tmp_path / "cat" / "005.jpg").symlink_to("gone.jpg")
    (tmp_path / "dog" / "003.jpg").write_bytes((tmp_path / "dog" / "003.jpg").read_bytes()[:400])
    told: list[Bad] = []
    images = list_images(tmp_path, ["cat", "dog"])
    dali, ordinary = make(images, told)
    found, expected = epoch(dali, 0), epoch(ordinary, 0)
    dali.close()
    assert_alike(found, expected)
    assert sorted(path for path, _ in told) == [images.path(index) for index in (2, 5, 9)]


def test_what_is_not_for_dali(drawn: FileImages):
    assert unsupported_reason(drawn, "crop") == ""
    assert "data.augment=none" in unsupported_reason(drawn, "none")
    assert "these images are stored as pixels" in unsupported_reason(Images(), "crop")
    assert choose_device("auto", torch.device("cpu")).type == "cpu"
    assert choose_device("auto", torch.device("cuda", 1)) == torch.device("cuda", 1)
    assert choose_device("cpu", torch.device("cuda", 1)).type == "cpu"
    with pytest.raises(ConfigError, match=r"loader\.device=gpu needs training on a CUDA device"):
        choose_device("gpu", torch.device("cpu"))


@pytest.mark.slow
def test_a_training_run(tree: Path, run: Run, tmp_path: Path):
    options = (*SMALL, "loader=dali", f"data.root={tree}", "hydra.run.dir=found")
    done = run("train", *options)
    assert done.returncode == 0, done.stderr
    assert f"Loader: DALI {load().__version__}, decoding on the CPU, 1 thread (loader.num_threads)." in done.stdout
    assert "11 validation images, each once" in done.stdout
    assert (tmp_path / "found" / "checkpoints" / "last.ckpt").is_file()
