import random
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import v2

from imagenet_ddp.data.mixing import Draw, Mixing, blended, mix_images, one_hot

CLASSES = 5


def batch_of(count: int, num_counted: int | None = None, seed: int = 1) -> Any:
    generator = torch.Generator().manual_seed(count)
    images = torch.randn(count, 3, 12, 10, generator=generator).contiguous(memory_format=torch.channels_last)
    target = torch.arange(count) % CLASSES
    return {
        "image": images,
        "target": target,
        "num_counted": count if num_counted is None else num_counted,
        "seed": seed,
    }


def seed_of(mixing: Mixing, count: int, wanted: Any) -> tuple[int, Draw]:
    """The first seed whose draw is wanted."""
    for seed in range(1000):
        draw = mixing.draw(random.Random(seed), count, 12, 10)
        if draw is not None and wanted(draw):
            return seed, draw
    raise AssertionError("no such draw")


def torchvisions(kind: type, params: dict[str, Any], images: torch.Tensor, target: torch.Tensor) -> Any:
    """What torchvision makes of images and targets with these parameters in place of its own draw."""
    transform = kind(num_classes=CLASSES)
    transform.make_params = lambda flat: params
    return transform(images, target)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_mixup_is_torchvisions(share: float):
    batch = batch_of(7)
    images, soft = torchvisions(v2.MixUp, {"lam": share}, batch["image"], batch["target"])
    torch.testing.assert_close(mix_images(batch["image"].clone(), Draw(share, 1)), images, rtol=0, atol=1e-6)
    found = blended(one_hot(batch["target"], CLASSES), 1, share)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, soft, rtol=0, atol=1e-6)


def test_cutmix_is_torchvisions():
    mixing = Mixing(CLASSES, 0.0, 1.0)
    for seed in range(20):
        draw = mixing.draw(random.Random(seed), 7, 12, 10)
        assert draw is not None and draw.box is not None
        top, bottom, left, right = draw.box
        params = {"box": (left, top, right, bottom), "lam_adjusted": 1 - (bottom - top) * (right - left) / 120}
        batch = batch_of(7)
        images, soft = torchvisions(v2.CutMix, params, batch["image"], batch["target"])
        assert torch.equal(mix_images(batch["image"].clone(), draw._replace(shift=1)), images)
        torch.testing.assert_close(blended(one_hot(batch["target"], CLASSES), 1, draw.share), soft, rtol=0, atol=1e-6)


def test_cutmix_draws_its_box_as_torchvision_does():
    """The same distribution of the share that is left, for alpha = 1."""
    transform, images = v2.CutMix(num_classes=CLASSES), [torch.zeros(2, 3, 32, 48)]
    torch.manual_seed(0)
    theirs = [transform.make_params(images)["lam_adjusted"] for _ in range(3000)]
    mixing = Mixing(CLASSES, 0.0, 1.0)
    draws = [mixing.draw(random.Random(seed), 2, 32, 48) for seed in range(3000)]
    ours = [draw.share for draw in draws if draw is not None]
    assert len(ours) == 3000
    at = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(np.quantile(ours, at), np.quantile(theirs, at), atol=0.05)


@pytest.mark.parametrize("alphas", [(0.4, 0.0), (0.0, 1.0)])
@pytest.mark.parametrize("own", [True, False])
def test_the_target_is_the_label_with_the_greater_share(alphas: tuple[float, float], own: bool):
    mixing = Mixing(CLASSES, *alphas)
    seed, draw = seed_of(mixing, 6, lambda draw: (draw.share > 0.6) if own else (draw.share < 0.4))
    batch = batch_of(6, seed=seed)
    plain = batch["target"].clone()
    mixing.apply(batch)
    assert torch.equal(batch["target"], plain if own else plain.roll(draw.shift))
    assert torch.equal(batch["target"], batch["soft_target"].argmax(1))
    torch.testing.assert_close(batch["soft_target"].sum(1), torch.ones(6))
    assert batch["image"].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("alphas", [(0.4, 0.0), (0.0, 1.0), (0.4, 1.0)])
def test_images_that_only_fill_up_stay_as_they_are_and_are_in_no_other(alphas: tuple[float, float]):
    mixing = Mixing(CLASSES, *alphas)
    seed, _ = seed_of(mixing, 4, lambda draw: 0.2 < draw.share < 0.8)
    filled, whole = batch_of(6, num_counted=4, seed=seed), batch_of(6, num_counted=4, seed=seed)
    alone: Any = {"image": whole["image"][:4].clone(), "target": whole["target"][:4], "num_counted": 4, "seed": seed}
    mixing.apply(filled)
    mixing.apply(alone)
    assert torch.equal(filled["image"][4:], whole["image"][4:])
    assert torch.equal(filled["soft_target"][4:], one_hot(whole["target"][4:], CLASSES))
    for name in ("image", "target", "soft_target"):
        assert torch.equal(filled[name][:4], alone[name]), name
    assert not torch.equal(filled["image"][:4], whole["image"][:4])


@pytest.mark.parametrize("count", [6, 4])
def test_a_weight_is_mixed_as_the_target_is(count: int):
    mixing = Mixing(CLASSES, 1.0, 0.0)
    seed, draw = seed_of(mixing, count, lambda draw: draw.share < 0.4)
    batch = batch_of(6, count, seed)
    batch["weight"] = weight = torch.tensor([1.0, 2, 3, 4, 50, 60])
    mixing.apply(batch)
    expected = [draw.share * weight[i] + (1 - draw.share) * weight[(i - draw.shift) % count] for i in range(count)]
    torch.testing.assert_close(batch["weight"], torch.tensor([*expected, *weight[count:]]))
    plain = batch_of(6, count, seed)
    mixing.apply(plain)
    assert "weight" not in plain and torch.equal(plain["image"], batch["image"])


def test_a_batch_of_one_is_not_mixed_but_has_a_soft_target():
    batch = batch_of(1)
    plain = batch["image"].clone()
    Mixing(CLASSES, 0.4, 1.0).apply(batch)
    assert torch.equal(batch["image"], plain)
    assert batch["soft_target"].tolist() == [[1, 0, 0, 0, 0]]


def test_what_is_drawn():
    def kinds(mixing: Mixing) -> list[str]:
        draws = [mixing.draw(random.Random(seed), 8, 12, 10) for seed in range(400)]
        return ["none" if draw is None else "cutmix" if draw.box else "mixup" for draw in draws]

    assert set(kinds(Mixing(CLASSES, 0.4, 0.0))) == {"mixup"}
    assert set(kinds(Mixing(CLASSES, 0.0, 1.0))) == {"cutmix"}
    both = kinds(Mixing(CLASSES, 0.4, 1.0, 0.5))
    assert 150 < both.count("none") < 250
    assert 60 < both.count("mixup") < 140
    draws = [Mixing(CLASSES, 1.0, 0.0).draw(random.Random(seed), 4, 9, 9) for seed in range(200)]
    assert {draw.shift for draw in draws if draw} == {1, 2, 3}


def test_from_options():
    options = {"mixup_alpha": 0.0, "cutmix_alpha": 0.0, "mix_probability": 1.0}
    assert Mixing.from_options(options, 3) is None
    assert Mixing.from_options({**options, "cutmix_alpha": 1.0}, 3) == Mixing(3, 0.0, 1.0, 1.0)
