import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.augment import PadCrop
from imagenet_ddp.data.decoding.decode import Pixels
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.transforms import EvalTransform, TrainTransform, empty, normalise, resize_into, train_size
from imagenet_ddp.errors import ConfigError

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def photo(height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Smooth and noisy parts, uint8 (3, H, W), with the strides a decoder gives."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(x / 9 + y / (7 + channel)) for channel in range(3)], axis=2)
    pixels = (128 + 90 * waves + generator.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


def test_the_kept_form_makes_the_same_transform():
    transform = EvalTransform.of(DataConfig(image_size=64))
    for each in (transform, EvalTransform(64, 73, MEAN, STD, "bicubic", "pad", 0.5, 1.0, True)):
        assert EvalTransform.of_stored(each.as_dict()) == each
    assert transform.as_dict() == {"image_size": 64, "val_resize": 73, "mean": list(MEAN), "std": list(STD),
                                   "interpolation": "bilinear", "fit": "crop", "vflip": 0.0,
                                   "rot90": 0.0, "val_mirror": False}  # fmt: skip


@pytest.mark.parametrize(("height", "width"), [(120, 300), (300, 120), (64, 64), (40, 50), (7, 100)])
def test_the_whole_image_is_seen_with_pad_and_squash(height: int, width: int):
    image, size = photo(height, width), 64
    squashed = EvalTransform.of(DataConfig(image_size=size, fit="squash"))(image)
    wanted = v2.functional.resize(image, [size, size], antialias=True)
    assert (squashed.int() - wanted.int()).abs().max() <= 2
    padded = EvalTransform.of(DataConfig(image_size=size, fit="pad"))(image)
    tall, wide = size * height // max(height, width), size * width // max(height, width)
    top, left = (size - tall) // 2, (size - wide) // 2
    inside = torch.zeros(size, size, dtype=torch.bool)
    inside[top : top + tall, left : left + wide] = True
    wanted = v2.functional.resize(image, [tall, wide], antialias=True)
    assert (padded[:, inside].reshape(3, tall, wide).int() - wanted.int()).abs().max() <= 2
    border = normalise(padded[None], MEAN, STD, False)[0][:, ~inside]
    assert border.numel() == 0 or border.abs().max() < 0.5 / 255 / min(STD) + 1e-6


LEVEL = 1 / 255 / min(STD)  # one of the 256 grey levels, at most, after normalising


@pytest.mark.parametrize("decoder", ["pillow", "simplejpeg"])
def test_validation_shows_the_net_what_torchvisions_references_would(tmp_path: Path, decoder: str):
    """Resize 256, centre crop 224, normalise. On tensors they resize with the same kernel: equal to 1e-5, as both
    decoders give Pillow's pixels. Pillow's own kernel weighs pixels in 22 bits and torch's in 16: about one value in
    a hundred is one level apart."""
    sizes = [(375, 500), (500, 333), (56, 75), (256, 256), (257, 300)]
    for number, size in enumerate(sizes):
        path = tmp_path / "val" / "ab"[number % 2] / f"{number}.jpg"
        for folder in (path.parent, tmp_path / "train" / path.parent.name):
            folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(photo(*size, number).permute(1, 2, 0).numpy()).save(path, quality=92)
        shutil.copy(path, tmp_path / "train" / path.parent.name)
    options: dict[str, Any] = {"decoder": decoder, "batch_size": len(sizes), "num_workers": 0}
    data = ImageDataModule.from_options("imagefolder", tmp_path, image_size=224, val_resize=256, **options)
    batch = data.finish(next(iter(data.val_dataloader())), training=False)
    resize, normal = (
        [v2.Resize(256), v2.CenterCrop(224)],
        [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)],
    )
    by_pillow = v2.Compose([*resize, v2.PILToTensor(), *normal])
    by_tensor = v2.Compose([v2.PILToTensor(), *resize, *normal])
    # without AVX2 torchvision resizes tensors in floats
    exactly = 1e-5 if "AVX" in torch.backends.cpu.get_cpu_capability() else 1.01 * LEVEL
    assert sorted(batch["index"].tolist()) == list(range(len(sizes)))
    for index, found in zip(batch["index"].tolist(), batch["image"], strict=True):
        image = Image.open(data.val_images.path(index)).convert("RGB")
        assert (found - by_tensor(image)).abs().max() < exactly
        difference = (found - by_pillow(image)).abs()
        assert difference.max() < 1.01 * LEVEL
        assert (difference > 0.1 * LEVEL).float().mean() < 0.03


@pytest.mark.parametrize("channels_last", [False, True])
def test_normalise_is_the_formula(channels_last: bool):
    images = torch.stack([photo(16, 12, seed) for seed in range(2)])
    images[0, :, 0, 0], images[0, :, 0, 1] = 0, 255
    found = normalise(images, MEAN, STD, channels_last)
    mean, std = (np.array(values).reshape(1, 3, 1, 1) for values in (MEAN, STD))
    expected = (images.numpy().astype(np.float64) / 255 - mean) / std
    assert found.dtype == torch.float32
    assert np.abs(found.numpy() - expected).max() < 1e-6
    assert found.is_contiguous(memory_format=torch.channels_last if channels_last else torch.contiguous_format)


def test_crops_are_spread_as_torchvisions_are():
    """Means of place, area and shape of 4,000 draws, within four times their standard error."""
    transform, theirs = TrainTransform(DataConfig()), v2.RandomResizedCrop(224)
    torch.manual_seed(0)
    canvas = [torch.empty(3, 375, 500)]
    boxes = [transform.box(375, 500, random.Random(seed)) for seed in range(4000)]
    ours = np.array([[*box, box.height * box.width, box.width / box.height] for box in boxes], dtype=float)
    drawn = [theirs.make_params(canvas) for _ in range(4000)]
    other = np.array(
        [[p["top"], p["left"], p["height"], p["width"], p["height"] * p["width"], p["width"] / p["height"]]
         for p in drawn], dtype=float)  # fmt: skip
    error = np.sqrt((ours.var(0) + other.var(0)) / 4000)
    assert (np.abs(ours.mean(0) - other.mean(0)) < 4 * error).all()


@pytest.mark.parametrize("size", [(224, 224), (64, 300), (500, 700), (375, 500)])
def test_resizing_is_pillows(size: tuple[int, int]):
    image = photo(375, 500)
    pixels = image.permute(1, 2, 0).numpy()
    out = empty(*size, 3)
    resize_into(out, pixels)
    expected = np.asarray(Image.fromarray(pixels).resize((size[1], size[0]), Image.Resampling.BILINEAR))
    assert np.abs(out.permute(1, 2, 0).numpy().astype(int) - expected).max() <= 2
    part = empty(*size, 3)
    frozen = pixels.copy()
    frozen.flags.writeable = False  # as a memory map's
    resize_into(part, frozen[20:300, 30:400])
    whole = empty(*size, 3)
    resize_into(whole, pixels[20:300, 30:400].copy())
    assert torch.equal(part, whole)


def test_sizes_grow_by_32_pixels_between_two_epochs():
    late = DataConfig(train_size=192, progressive_start=160, progressive_epochs=[2, 4])
    assert [train_size(late, epoch) for epoch in range(6)] == [160, 160, 160, 192, 192, 192]
    early = DataConfig(image_size=192, progressive_start=128, progressive_epochs=[0, 4])
    assert [train_size(early, epoch) for epoch in range(6)] == [128, 128, 160, 192, 192, 192]
    assert [train_size(DataConfig(), epoch) for epoch in (0, 99)] == [224, 224]


@pytest.mark.parametrize("shape", [(1, 20_000_000), (20_000_000, 1), (3, 300_000), (1, 17)])
def test_an_extreme_aspect_ratio_is_cropped_before_it_is_resized(shape: tuple[int, int]):
    """Resized as it is, a row of 20,000,000 pixels would take 78 GB."""
    pixels = np.broadcast_to(np.array([10, 20, 30], dtype=np.uint8), (*shape, 3))
    data = DataConfig(image_size=32, mean=[10 / 255, 20 / 255, 30 / 255])
    for transform in (EvalTransform.of(data), PadCrop(data), TrainTransform(data)):
        out = empty(32, 32, 3)
        transform.into(out, Pixels(pixels), random.Random(0))
        assert (out == torch.tensor([10, 20, 30]).view(3, 1, 1)).all()


def test_stored_statistics_of_0_to_255_are_refused():
    """Whoever makes the transform: a checkpoint, the library or a command."""
    with pytest.raises(ConfigError, match=r"(?s)data\.mean must be .*data\.std must be"):
        EvalTransform.of_stored({"mean": [123.675, 116.28, 103.53], "std": [58.395, 57.12, 57.375]})
