import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import v2

from imagenet_ddp.data.transforms import EvalTransform, normalise, train_transform

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
KEYS = {"image_size": 224, "val_resize": None, "mean": list(MEAN), "std": list(STD)}


def photo(height: int, width: int, seed: int = 0) -> torch.Tensor:
    """Smooth and noisy parts, uint8 (3, H, W), with the strides a decoder gives."""
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(x / 9 + y / (7 + channel)) for channel in range(3)], axis=2)
    pixels = (128 + 90 * waves + generator.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8)
    return torch.from_numpy(pixels).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("image_size", "val_resize", "resize"), [(224, None, 256), (64, None, 73), (96, None, 110), (32, 40, 40)]
)
def test_the_short_side_is_resized_to_256_for_224(image_size: int, val_resize: int | None, resize: int):
    transform = EvalTransform.from_keys({**KEYS, "image_size": image_size, "val_resize": val_resize})
    assert (transform.image_size, transform.resize, transform.mean, transform.std) == (image_size, resize, MEAN, STD)


def test_the_kept_form_makes_the_same_transform():
    transform = EvalTransform.from_keys({**KEYS, "image_size": 64})
    assert EvalTransform.from_keys(transform.as_dict()) == transform
    assert transform.as_dict() == {"image_size": 64, "val_resize": 73, "mean": list(MEAN), "std": list(STD)}


@pytest.mark.parametrize(("height", "width"), [(3000, 1), (1, 3000), (1, 1), (7, 5), (63, 200), (64, 64), (375, 500)])
def test_any_shape_becomes_a_square_of_the_size(height: int, width: int):
    image = EvalTransform(64, 73, MEAN, STD)(photo(height, width))
    assert image.shape == (3, 64, 64)
    assert image.dtype == torch.uint8


@pytest.mark.parametrize(("height", "width"), [(375, 500), (500, 333), (56, 75), (256, 256)])
def test_evaluation_sees_what_pillow_would_show(height: int, width: int):
    image = photo(height, width)
    found = EvalTransform(224, 256, MEAN, STD)(image)
    pillow = v2.Compose([v2.Resize(256), v2.CenterCrop(224)])(Image.fromarray(image.permute(1, 2, 0).numpy()))
    difference = np.abs(found.permute(1, 2, 0).numpy().astype(int) - np.asarray(pillow))
    assert difference.mean() < 0.5
    assert difference.max() <= 3


def test_the_crop_is_the_centre():
    image = torch.zeros(3, 100, 200, dtype=torch.uint8)
    image[:, 40:60, 90:110] = 255
    found = EvalTransform(20, 100, MEAN, STD)(image)
    assert found.min() == 255


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


def test_training_crops_are_a_function_of_torchs_generator():
    transform, image = train_transform(32, (0.08, 1.0), 0.5), photo(60, 80)

    def drawn(seed: int) -> torch.Tensor:
        torch.default_generator.manual_seed(seed)
        return transform(image)

    first = [drawn(seed) for seed in range(20)]
    assert all(crop.shape == (3, 32, 32) and crop.dtype == torch.uint8 for crop in first)
    np.random.seed(1)
    assert all(torch.equal(crop, drawn(seed)) for seed, crop in enumerate(first))
    assert len({crop.numpy().tobytes() for crop in first}) == 20


def test_the_share_of_the_area_and_the_flip_are_as_asked():
    ramp = torch.arange(100, dtype=torch.uint8).expand(3, 100, 100).contiguous()  # brightness grows from left to right
    torch.default_generator.manual_seed(0)
    widths = {scale: [] for scale in ((0.08, 0.1), (0.9, 1.0))}
    for scale, found in widths.items():
        for _ in range(30):
            row = train_transform(50, scale, 0.0)(ramp)[0, 0].int()
            assert row[-1] > row[0]
            found.append(int(row[-1] - row[0]))
    assert max(widths[(0.08, 0.1)]) < 45 < 80 < min(widths[(0.9, 1.0)])
    always = train_transform(50, (0.9, 1.0), 1.0)(ramp)[0, 0].int()
    assert always[-1] < always[0]
    signs = [bool((row := train_transform(50, (0.9, 1.0), 0.5)(ramp)[0, 0].int())[-1] > row[0]) for _ in range(60)]
    assert 15 < sum(signs) < 45


@pytest.mark.parametrize(("height", "width"), [(3000, 1), (1, 3000), (1, 1)])
def test_training_takes_odd_shapes_too(height: int, width: int):
    assert train_transform(32, (0.08, 1.0), 0.5)(photo(height, width)).shape == (3, 32, 32)
