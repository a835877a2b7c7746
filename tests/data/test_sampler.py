import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_ddp.data.sampler import BatchSampler, SampleKey, balanced_order
from imagenet_ddp.system.seeding import hash_seed


def all_ranks(
    num_images: int,
    batch_size: int,
    world_size: int,
    *,
    epoch: int = 0,
    start: tuple[int, ...] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    fill_to: int = 2,
    **options: Any,
) -> list[list[list[SampleKey]]]:
    """[rank][step] of one epoch."""
    ranks = []
    for rank in range(world_size):
        sampler = BatchSampler(
            num_images, batch_size, world_size, rank, shuffle=shuffle, seed=seed, fill_to=fill_to, **options
        )
        sampler.set_epoch(epoch)
        if start is not None:
            sampler.start_at(*start)
        ranks.append(list(sampler))
    return ranks


def counted(ranks: list[list[list[SampleKey]]]) -> list[int]:
    """Indices of what counts, in the order of steps, and of ranks within a step."""
    return [key.index for step in zip(*ranks, strict=True) for batch in step for key in batch if key.counts]


@given(
    num_images=st.integers(1, 60), batch_size=st.integers(1, 9), world_size=st.integers(1, 5),
    fill_to=st.integers(1, 3), seed=st.integers(0, 2**32), epoch=st.integers(0, 100),
    at=st.floats(0, 1, exclude_max=True), mode=st.sampled_from(("shuffled", "in order", "repeats", "balanced")),
    data=st.data(),
)  # fmt: skip
def test_what_an_epoch_has_left_counts_once_over_all_ranks(
    num_images: int,
    batch_size: int,
    world_size: int,
    fill_to: int,
    seed: int,
    epoch: int,
    at: float,
    mode: str,
    data: Any,
):
    """From any image on, whatever the ranks and the batch were before it. Validation is in order, from 0 on."""
    options: dict[str, Any] = {"shuffle": mode != "in order", "seed": seed, "epoch": epoch, "fill_to": fill_to}
    if mode == "repeats":
        options["repeats"] = data.draw(st.integers(2, 4))
    if mode == "balanced":
        classes = data.draw(st.lists(st.integers(0, 4), min_size=num_images, max_size=num_images))
        options["balance"] = np.array(classes)
    first = int(at * num_images)
    (whole,) = all_ranks(num_images, num_images, 1, **options)
    ranks = all_ranks(num_images, batch_size, world_size, start=(epoch, first), **options)

    seen = [key for step in zip(*ranks, strict=True) for batch in step for key in batch if key.counts]
    told_apart = lambda keys: [(key.epoch, key.index, key.repeat) for key in keys if key.counts]  # noqa: E731
    assert told_apart(seen) == told_apart(whole[0])[first:], "one order, whoever trains on it"
    assert len({key.image_seed(seed) for key in seen}) == len(seen)
    times = Counter(key.index for key in whole[0] if key.counts)
    if mode in ("shuffled", "in order"):
        assert times == Counter(range(num_images))
        assert mode == "shuffled" or [key.index for key in seen] == list(range(first, num_images))
    elif mode == "repeats":
        assert sorted(times.values())[1:] == [options["repeats"]] * (len(times) - 1), "the last one may be cut off"
    else:
        of_class = Counter(options["balance"][key.index] for key in whole[0] if key.counts)
        assert of_class.keys() == set(options["balance"])
        assert max(of_class.values()) - min(of_class.values()) <= 1

    left, full = num_images - first, batch_size * world_size
    steps = -(-left // full)
    assert {len(batches) for batches in ranks} == {steps}
    for number, step in enumerate(zip(*ranks, strict=True)):
        keys = [key for batch in step for key in batch]
        in_step = sum(key.counts for key in keys)
        if not left % full or number < steps - 2:
            assert in_step == full
        else:  # the last two steps share what is left, so that none is a handful
            share = full + left % full if steps > 1 else 2 * left
            assert in_step in (share // 2, share - share // 2)
        assert {(key.step_images, key.update_images) for key in keys} == {(in_step, in_step)}
        counts = [sum(key.counts for key in batch) for batch in step]
        assert max(counts) - min(counts) <= 1
        for batch, count in zip(step, counts, strict=True):
            assert [key.counts for key in batch] == [True] * count + [False] * (len(batch) - count)
            assert len(batch) == max(count, min(fill_to, batch_size))
            assert all(0 <= key.index < num_images for key in batch)
    batches = [batch for batches in ranks for batch in batches if batch[0].counts]
    assert len({batch[0].batch_seed(seed) for batch in batches}) == len(batches)


@given(
    num_images=st.integers(1, 60), batch_size=st.integers(1, 9), world_size=st.integers(1, 5),
    accumulate=st.integers(1, 5), limit=st.just(math.inf) | st.integers(1, 70), updates=st.integers(0, 60),
)  # fmt: skip
def test_the_images_of_an_update_are_those_of_its_steps_and_the_same_after_a_resume(
    num_images: int, batch_size: int, world_size: int, accumulate: int, limit: float, updates: int
):
    options: dict[str, Any] = {"accumulate": lambda: accumulate, "num_steps": lambda: limit}
    whole = all_ranks(num_images, batch_size, world_size, **options)
    sampler = BatchSampler(num_images, batch_size, world_size, 0, shuffle=True, seed=0, fill_to=2)
    assert len(sampler) == len(whole[0])
    trained = [batches[: int(min(limit, 10**9))] for batches in whole]
    for begin in range(0, len(trained[0]), accumulate):
        update = [batches[begin : begin + accumulate] for batches in trained]
        assert {key.update_images for rank in update for batch in rank for key in batch} == {len(counted(update))}
    step = min(updates * accumulate, len(whole[0]) - 1)
    start = (0, sampler.images_after(0, step), step)
    assert start[1] == len(counted([batches[:step] for batches in whole]))
    again = all_ranks(num_images, batch_size, world_size, start=start, **options)
    same = lambda key: key if step % accumulate == 0 else key._replace(update_images=0)  # noqa: E731
    assert [[[*map(same, batch)] for batch in batches] for batches in again] == [
        [[*map(same, batch)] for batch in batches[step:]] for batches in whole
    ]


def test_each_epoch_has_an_order_of_its_own_and_a_seed_repeats_it():
    orders = [counted(all_ranks(29, 4, 1, epoch=epoch)) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    assert list(range(29)) not in orders
    assert counted(all_ranks(29, 4, 1, epoch=2)) == orders[2]
    assert counted(all_ranks(29, 4, 1, epoch=2, seed=1)) != orders[2]


# ---- balanced


def test_without_repeats_an_image_has_the_seed_it_always_had():
    key = SampleKey(3, 7, True, 4, 4)
    assert key.image_seed(5) == hash_seed(5, 3, 7)
    assert len({key.image_seed(5), key.batch_seed(5), key._replace(repeat=1).image_seed(5)}) == 3


SIZES = [(1,), (5,), (3, 3), (1, 40), (1, 3, 20, 40, 7), (2, 0, 9), (300, 1, 1, 280), tuple(range(1, 30))]


def targets_of(sizes: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes)).astype(np.int64)


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("seed", [0, 7])
def test_each_class_is_as_frequent_as_any_other(sizes: tuple[int, ...], seed: int):
    targets, present = targets_of(sizes), sum(size > 0 for size in sizes)
    total: Counter[int] = Counter()
    for epoch in range(2 * present + 1):
        order = balanced_order(targets, seed, epoch)
        assert order.dtype == np.int64 and len(order) == len(targets)
        counts = Counter(targets[order].tolist())
        assert counts.keys() == set(targets.tolist())
        assert {count - len(targets) // present for count in counts.values()} <= {0, 1}
        total += counts
        assert max(total.values()) - min(total.values()) <= 1  # over the epochs too


@pytest.mark.parametrize("sizes", SIZES)
def test_no_image_comes_again_before_each_other_of_its_class(sizes: tuple[int, ...]):
    """Over the ends of epochs too: all images of a class are drawn equally often, or once more, at any time."""
    targets = targets_of(sizes)
    drawn = np.zeros(len(targets), int)
    for epoch in range(7):
        for image in balanced_order(targets, 1, epoch).tolist():
            of_class = drawn[targets == targets[image]]
            assert drawn[image] == of_class.min()
            drawn[image] += 1
