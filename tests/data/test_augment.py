import pickle
import random
import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFilter
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from imagenet_ddp.config.schema.data import DataConfig, TransformConfig
from imagenet_ddp.data.augment import (
    Augmentation,
    AugmentedTransform,
    OwnTransform,
    PadCrop,
    make_own_transform,
    make_train_transform,
)
from imagenet_ddp.data.decoding.decode import Pixels
from imagenet_ddp.data.transforms import EvalTransform, TrainTransform, empty

FILL = (120, 110, 100)
DATA = DataConfig(image_size=32, mean=[level / 255 for level in FILL])
BILINEAR = v2.InterpolationMode.BILINEAR
EACH: list[dict[str, Any]] = [
    *({"policy": policy} for policy in ("randaugment", "trivialaugment", "autoaugment", "augmix", "three_augment")),
    {"policy": "rand-m9-mstd0.5-inc1"},
    {"color_jitter": 0.4}, {"grayscale": 1.0}, {"blur": 1.0}, {"erasing": 1.0}, {"cutout": 12},
    {"vflip": 1.0}, {"rot90": 1.0},
]  # fmt: skip


def photo(height: int = 40, width: int = 40, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(x / 5 + y / (4 + channel)) for channel in range(3)], axis=2)
    return (128 + 90 * waves + generator.normal(0, 12, (height, width, 3))).clip(0, 255).astype(np.uint8)


def augmentation(**options: Any) -> Augmentation:
    return Augmentation(replace(DATA, **options))


def applied(augmentation: Augmentation | OwnTransform, pixels: np.ndarray, seed: int) -> np.ndarray:
    out = empty(*pixels.shape)
    out.copy_(torch.tensor(pixels).permute(2, 0, 1))
    augmentation.apply(out, random.Random(seed))
    return out.permute(1, 2, 0).numpy()


@pytest.mark.parametrize(
    ("options", "theirs"),
    [
        (
            {"policy": "randaugment", "policy_ops": 3, "policy_magnitude": 20},
            v2.RandAugment(3, 20, interpolation=BILINEAR, fill=list(FILL)),
        ),
        ({"policy": "trivialaugment"}, v2.TrivialAugmentWide(interpolation=BILINEAR, fill=list(FILL))),
        *(
            (
                {"policy": "autoaugment", "autoaugment": images},
                v2.AutoAugment(v2.AutoAugmentPolicy(images), interpolation=BILINEAR, fill=list(FILL)),
            )
            for images in ("imagenet", "cifar10", "svhn")
        ),
        ({"policy": "augmix"}, v2.AugMix(interpolation=BILINEAR, fill=list(FILL))),
        ({"color_jitter": 0.3}, v2.ColorJitter(0.3, 0.3, 0.3)),
    ],
)
def test_a_policy_is_torchvisions_for_the_same_draw(options: dict[str, Any], theirs: Any):
    ours, changed = augmentation(**options), 0
    for seed in range(12):
        pixels = photo(seed=seed)
        found = applied(ours, pixels, seed)
        torch.manual_seed(random.Random(seed).getrandbits(32))
        assert np.array_equal(found, np.asarray(theirs(Image.fromarray(pixels))))
        changed += not np.array_equal(found, pixels)
    assert changed > 6


def test_erasing_is_torchvisions_with_the_mean_colour():
    theirs = v2.RandomErasing(0.5, value=list(map(float, FILL)))  # type: ignore[arg-type]
    erased = 0
    for seed in range(20):
        pixels = photo(seed=seed)
        torch.manual_seed(random.Random(seed).getrandbits(32))
        expected = theirs(torch.from_numpy(pixels).permute(2, 0, 1)).permute(1, 2, 0).numpy()
        found = applied(augmentation(erasing=0.5), pixels, seed)
        assert np.array_equal(found, expected)
        erased += int((found == FILL).all(axis=2).any())
    assert 4 < erased < 16


def test_a_policy_of_timm_changes_as_many_images_as_much_as_timm_does():
    """The draws differ, so the shares and means over 1,000 images are compared."""
    auto_augment, policy = pytest.importorskip("timm.data.auto_augment"), "rand-m9-mstd0.5-inc1"
    theirs = auto_augment.rand_augment_transform(policy, {"img_mean": FILL, "interpolation": Image.Resampling.BICUBIC})
    ours = augmentation(policy=policy, interpolation="bicubic")
    pixels, changes = photo(), []
    state = random.getstate(), np.random.get_state()
    random.seed(0)
    np.random.seed(0)
    for number in range(1000):
        found = applied(ours, pixels, number), np.asarray(theirs(Image.fromarray(pixels)))
        changes.append([np.abs(each.astype(int) - pixels).mean() for each in found])
    random.setstate(state[0])
    np.random.set_state(state[1])
    mine, timms = np.array(changes).T
    bound = 4 * (mine.std() ** 2 / 1000 + timms.std() ** 2 / 1000) ** 0.5  # four standard errors
    assert abs(mine.mean() - timms.mean()) < bound
    assert abs((mine == 0).mean() - (timms == 0).mean()) < 0.07


def test_erasing_with_noise_is_normal_in_each_pixel():
    """Clipped to the levels of a pixel, which a thousandth to a hundredth of the noise exceeds on each side."""
    mean, std = [0.5, 0.4, 0.6], [0.1, 0.2, 0.15]
    pixels = np.full((64, 64, 3), 7, np.uint8)
    ours = augmentation(erasing=0.5, erasing_fill="noise", mean=mean, std=std)
    found = np.stack([applied(ours, pixels, seed) for seed in range(60)])
    erased = (found != 7).any(axis=3)
    assert 15 < erased.any(axis=(1, 2)).sum() < 45
    noise = found[erased] / 255
    assert np.allclose(noise.mean(axis=0), mean, atol=0.01) and np.allclose(noise.std(axis=0), std, atol=0.01)
    assert np.abs(np.corrcoef(noise.T) - np.eye(3)).max() < 0.05, "each channel has its own"


def test_three_augment_is_grey_solarised_or_blurred():
    image: Any = Image.fromarray(photo())
    kinds = []
    for seed in range(60):
        found = applied(augmentation(policy="three_augment"), np.asarray(image), seed)
        generator = random.Random(seed)
        generator.getrandbits(32)
        number = generator.randrange(3)
        expected = [
            F.rgb_to_grayscale(image, 3),
            F.solarize(image, 128),
            image.filter(ImageFilter.GaussianBlur(generator.uniform(0.1, 2.0))),
        ][number]
        assert np.array_equal(found, np.asarray(expected))
        kinds.append(number)
    assert set(kinds) == {0, 1, 2}


def test_orientations_are_equally_frequent():
    """With both flips and turns, each of the eight orientations occurs; with rot90 alone, the four turns."""
    pixels = photo()
    turns = [np.rot90(pixels, number).tobytes() for number in range(4)]
    mirrored = [np.rot90(pixels[::-1], number).tobytes() for number in range(4)]
    cases: list[tuple[dict[str, Any], list[bytes]]] = [
        ({"vflip": 0.5}, [turns[0], mirrored[0]]),
        ({"rot90": 1.0}, turns),
        ({"vflip": 0.5, "rot90": 1.0}, turns + mirrored),
    ]
    for options, wanted in cases:
        found = [applied(augmentation(**options), pixels, seed).tobytes() for seed in range(400)]
        assert set(found) == set(wanted)
        rarest = min(found.count(each) for each in wanted)
        assert rarest > 0.6 * len(found) / len(wanted), options


@pytest.mark.parametrize("options", EACH, ids=lambda each: "-".join(map(str, each.values())))
def test_other_generators_are_not_disturbed(options: dict[str, Any]):
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(3)
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    first = applied(augmentation(**options), photo(), 0)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    assert torch.equal(before[0], after[0]) and before[1:] == after[1:]
    torch.rand(5)
    assert np.array_equal(first, applied(augmentation(**options), photo(), 0)), "nor is it disturbed by them"


# ---- pad and crop


@pytest.mark.parametrize(("height", "width"), [(32, 32), (48, 64), (90, 32), (20, 31)])
def test_pad_crop_is_torchvisions_for_the_same_place(height: int, width: int):
    transform, places = PadCrop(DATA), set()
    for seed in range(40):
        image = torch.from_numpy(photo(height, width, seed)).permute(2, 0, 1)
        out = empty(32, 32, 3)
        flipped = transform.into(out, Pixels(image.permute(1, 2, 0).numpy()), random.Random(seed))
        generator = random.Random(seed)
        assert flipped == (generator.random() < 0.5)
        resized = F.resize(image, [32], antialias=True) if min(height, width) != 32 else image
        padded = F.pad(resized, [4, 4, 4, 4], fill=list(FILL))  # type: ignore[arg-type]
        top, left = (generator.randrange(side - 32 + 1) for side in padded.shape[1:])
        expected = F.crop(padded, top, left, 32, 32)
        assert int((out.int() - expected.int()).abs().max()) <= 1
        places.add((top, left))
    assert len(places) > 20


# ---- a transform of the user's own


class Darker:
    def __init__(self, by: int, lock: bool = False) -> None:
        self.by, self.lock = by, threading.Lock() if lock else None

    def __call__(self, image: Image.Image) -> Image.Image:
        return image.point(lambda level: level - self.by)


def darker(by: int) -> Any:
    return lambda image: image.point(lambda level: level - by)


@pytest.mark.parametrize(("name", "more"), [("Darker", {}), ("Darker", {"lock": True}), ("darker", {})])
def test_a_loader_process_gets_every_transform_of_one_s_own(name: str, more: dict[str, Any]):
    """Also one that cannot be sent there, which is made again."""
    own = make_own_transform(TransformConfig(f"{__name__}.{name}", {"by": 40, **more}), 8)
    assert own is not None
    there: OwnTransform = pickle.loads(pickle.dumps(own))
    assert there.name == own.name and (applied(there, photo(8, 8), 0) == photo(8, 8) - np.uint8(40)).all()


def drawn_with(draw: Any) -> OwnTransform:
    """Return a transform that adds what draw() returns, 0 to 99, to the pixels."""
    return OwnTransform(lambda image: Image.fromarray(np.asarray(image) // 2 + np.uint8(draw())), "own")


@pytest.mark.parametrize(
    "draw",
    [lambda: random.randrange(100), lambda: np.random.randint(100), lambda: int(torch.randint(100, ()))],
    ids=["random", "numpy", "torch"],
)
def test_the_random_numbers_of_an_own_transform_follow_from_the_image(draw: Any) -> None:
    own, pixels = drawn_with(draw), photo()
    made = [applied(own, pixels, seed) for seed in (0, 0, 1)]
    assert (made[0] == made[1]).all() and (made[0] != made[2]).any()


@pytest.mark.parametrize("form", [F.pil_to_tensor, np.asarray, lambda image: image], ids=["torch", "numpy", "Pillow"])
def test_an_own_transform_comes_after_the_crop_and_before_the_policy(form: Any) -> None:
    own = OwnTransform(lambda image: form(image.rotate(90)), "own")
    transform = make_train_transform(replace(DATA, augment="none", grayscale=1.0), own)
    out, pixels = empty(32, 32, 3), photo(60, 60)
    transform.into(out, Pixels(pixels), random.Random(0))
    plain = empty(32, 32, 3)
    EvalTransform.of(DATA).into(plain, Pixels(pixels))
    expected = Image.fromarray(plain.permute(1, 2, 0).numpy()).rotate(90).convert("L").convert("RGB")
    assert (out.permute(1, 2, 0).numpy() == np.asarray(expected)).all()


# ---- what the keys make


def test_the_keys_make_the_transform():
    assert isinstance(make_train_transform(DATA), TrainTransform)
    assert isinstance(make_train_transform(replace(DATA, augment="none")), EvalTransform)
    assert isinstance(make_train_transform(replace(DATA, augment="pad_crop")), PadCrop)
    for options in EACH:
        transform = make_train_transform(replace(DATA, augment="none", **options))
        assert isinstance(transform, AugmentedTransform) and isinstance(transform.base, EvalTransform)
