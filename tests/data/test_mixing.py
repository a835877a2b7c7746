import random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.transforms import v2

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.mixing import Mixing, blended, mix_images, one_hot

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


def torchvisions(kind: type, params: dict[str, Any], images: torch.Tensor, target: torch.Tensor) -> Any:
    """What torchvision makes of images and targets with these parameters in place of its own draw."""
    transform = kind(num_classes=CLASSES)
    transform.make_params = lambda flat: params
    return transform(images, target)


def test_cutmix_is_torchvisions():
    mixing = Mixing(DataConfig(cutmix_alpha=1.0), CLASSES)
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
    mixing = Mixing(DataConfig(cutmix_alpha=1.0), CLASSES)
    draws = [mixing.draw(random.Random(seed), 2, 32, 48) for seed in range(3000)]
    ours = [draw.share for draw in draws if draw is not None]
    assert len(ours) == 3000
    at = np.linspace(0.1, 0.9, 9)
    np.testing.assert_allclose(np.quantile(ours, at), np.quantile(theirs, at), atol=0.05)


ALPHA = st.floats(0.01, 50)


@given(
    alphas=st.tuples(ALPHA, st.just(0.0)) | st.tuples(st.just(0.0), ALPHA) | st.tuples(ALPHA, ALPHA),
    probability=st.floats(0, 1), seed=st.integers(0, 2**63), count=st.integers(1, 8), filled=st.integers(0, 4),
    height=st.integers(1, 12), width=st.integers(1, 12), weighted=st.booleans(),
)  # fmt: skip
def test_any_batch(
    alphas: tuple[float, float], probability: float, seed: int, count: int, filled: int, height: int, width: int,
    weighted: bool,
):  # fmt: skip
    """Two images make one, target and weight by their shares in it; images that only fill up stay as they are."""
    mixing = Mixing(DataConfig(mixup_alpha=alphas[0], cutmix_alpha=alphas[1], mix_probability=probability), CLASSES)
    counted, total = max(count - filled, 0), count
    before = torch.rand(total, 3, height, width, generator=torch.Generator().manual_seed(total))
    before = before.contiguous(memory_format=torch.channels_last)
    target = torch.arange(total) % CLASSES
    batch: Any = {"image": before.clone(), "target": target.clone(), "num_counted": counted, "seed": seed}
    if weighted:
        batch["weight"] = torch.arange(1.0, total + 1)
    mixing.apply(batch)
    assert ("weight" in batch) == weighted
    image, soft, weight = batch["image"], batch["soft_target"], batch.get("weight", torch.arange(1.0, total + 1))
    assert image.is_contiguous(memory_format=torch.channels_last)
    assert (soft >= 0).all() and (soft <= 1).all()
    torch.testing.assert_close(soft.sum(1), torch.ones(total))
    assert torch.equal(soft.gather(1, batch["target"][:, None])[:, 0], soft.max(1).values), "the greater share's label"

    draw = mixing.draw(random.Random(seed), counted, height, width)
    shift, share = (draw.shift, draw.share) if draw else (0, 1.0)
    assert 0 <= share <= 1
    assert counted > 1 or draw is None
    for number in range(total):
        other = (number - shift) % counted if number < counted else number
        assert other != number or draw is None or number >= counted
        of_own = share if number < counted else 1.0
        parts = of_own * one_hot(target, CLASSES)[number] + (1 - of_own) * one_hot(target, CLASSES)[other]
        torch.testing.assert_close(soft[number], parts)
        if weighted:
            torch.testing.assert_close(weight[number], torch.tensor(of_own * (number + 1) + (1 - of_own) * (other + 1)))
        if draw is None or draw.box is None:
            torch.testing.assert_close(image[number], of_own * before[number] + (1 - of_own) * before[other])
        else:
            own, others = ((image[number] == before[each]).all(0) for each in (number, other))
            assert (own | others).all()
            assert int(own.sum()) == pytest.approx(of_own * height * width, abs=1e-6), "the share is that of the pixels"
