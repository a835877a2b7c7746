import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.strategies import batch_split


@given(num_images=st.integers(1, 500), num_devices=st.integers(1, 16))
def test_dp_cuts_as_torch_chunk(num_images: int, num_devices: int):
    chunks = [len(chunk) for chunk in torch.arange(num_images).chunk(num_devices)]
    expected = chunks + [0] * (num_devices - len(chunks))
    assert batch_split.split_batch(num_images, num_devices, None, num_devices * 8) == expected


@given(
    name=st.sampled_from(["auto", "ddp", "dp", "balanced_dp"]), batch_size=st.integers(1, 300),
    num_devices=st.integers(1, 16), first=st.none() | st.integers(1, 400), part=st.floats(0, 1),
)  # fmt: skip
def test_every_batch_is_split_as_a_full_one(
    name: str, batch_size: int, num_devices: int, first: int | None, part: float
):
    keys = StrategyConfig(name, first_device_batch=first if name == "balanced_dp" else None)
    full = batch_split.images_per_forward(keys, batch_size, num_devices)
    if name in ("auto", "ddp"):
        assert (full, batch_split.num_processes(keys, num_devices)) == (batch_size, num_devices)
        return
    assert batch_split.num_processes(keys, num_devices) == 1
    own = batch_split.first_device_images(keys, batch_size, num_devices)
    sizes = batch_split.split_batch(full, num_devices, own, full)
    assert sizes == [batch_size if own is None else own] + (num_devices - 1) * [batch_size]
    (line, *_) = batch_split.describe(keys, batch_size, num_devices, 3)
    assert num_devices == 1 or f"= {full} images per forward pass and, with 3 passes per update, " in line
    assert num_devices == 1 or f"= {3 * full} images per update." in line
    num_images = int(part * full)
    less = batch_split.split_batch(num_images, num_devices, own, full)
    assert sum(less) == num_images
    assert all(0 <= each <= most for each, most in zip(less, sizes, strict=True)), "no device has more than it holds"
    if name == "balanced_dp" and num_devices > 1:
        assert abs(less[0] - sizes[0] * num_images / full) <= 0.5
        assert max(less[1:]) - min(less[1:]) <= 1


def test_the_arithmetic_of_the_two_examples():
    def split(keys: StrategyConfig, batch_size: int, num_devices: int, accumulate: int) -> str:
        return batch_split.describe(keys, batch_size, num_devices, accumulate)[0]

    two_three_three = StrategyConfig("balanced_dp", first_device_batch=2)
    assert split(two_three_three, 3, 3, 2) == (
        "Split: 2 + 3 + 3 = 8 images per forward pass and, with 2 passes per update, 4 + 6 + 6 = 16 images per update."
    )
    assert split(StrategyConfig("balanced_dp"), 4, 3, 1) == "Split: 2 + 4 + 4 = 10 images per forward pass.", (
        "half of 4"
    )
    assert "ddp is usually faster" in " ".join(batch_split.describe(StrategyConfig("dp"), 32, 2, 1))
    with pytest.raises(ConfigError, match="needs two devices or more, but there is 1"):
        batch_split.images_per_forward(StrategyConfig("balanced_dp", first_device_batch=0), 3, 1)
