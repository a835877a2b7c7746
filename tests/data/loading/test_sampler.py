from collections import Counter

import numpy as np
import pytest
from torch.utils.data import BatchSampler as TorchBatches
from torch.utils.data import DistributedSampler

from imagenet_ddp.data.loading.balanced import balanced_order
from imagenet_ddp.data.loading.key import Key
from imagenet_ddp.data.loading.sampler import BatchSampler
from imagenet_ddp.system.seeding import hash_seed

COUNTS = (29, 11, 2, 1)
WORLDS = (1, 2, 3)


def all_ranks(
    num_images: int,
    batch_size: int,
    world_size: int,
    *,
    epoch: int = 0,
    start: tuple[int, int] | None = None,
    shuffle: bool = True,
    seed: int = 0,
    fill_to: int = 2,
) -> list[list[list[Key]]]:
    """[rank][step] of one epoch."""
    ranks = []
    for rank in range(world_size):
        sampler = BatchSampler(num_images, batch_size, world_size, rank, shuffle=shuffle, seed=seed, fill_to=fill_to)
        sampler.set_epoch(epoch)
        if start is not None:
            sampler.start_at(*start)
        ranks.append(list(sampler))
    return ranks


def counted(ranks: list[list[list[Key]]]) -> list[int]:
    """Indices of what counts, in the order of steps, and of ranks within a step."""
    return [key.index for step in zip(*ranks, strict=True) for batch in step for key in batch if key.counts]


@pytest.mark.parametrize("fill_to", [1, 2])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("num_images", COUNTS)
def test_every_image_counts_once_over_all_ranks(num_images: int, world_size: int, batch_size: int, fill_to: int):
    ranks = all_ranks(num_images, batch_size, world_size, fill_to=fill_to)
    steps = -(-num_images // (batch_size * world_size))
    assert [len(batches) for batches in ranks] == [steps] * world_size
    assert Counter(counted(ranks)) == Counter(range(num_images))
    for number, step in enumerate(zip(*ranks, strict=True)):
        keys = [key for batch in step for key in batch]
        in_step = sum(key.counts for key in keys)
        full, left = batch_size * world_size, num_images % (batch_size * world_size)
        if not left or number < steps - 2:
            assert in_step == full
        else:  # the last two steps share what is left, so that none is a handful
            share = full + left if steps > 1 else 2 * left
            assert in_step in (share // 2, share - share // 2)
        assert {key.step_images for key in keys} == {in_step}
        counts = [sum(key.counts for key in batch) for batch in step]
        assert max(counts) - min(counts) <= 1
        for batch, count in zip(step, counts, strict=True):
            assert [key.counts for key in batch] == [True] * count + [False] * (len(batch) - count)
            assert len(batch) == max(count, min(fill_to, batch_size))
            assert all(0 <= key.index < num_images for key in batch)


@pytest.mark.parametrize("batch_size", [4, 7])
@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize("num_images", [56, 57, 29])
def test_an_epoch_has_the_steps_of_torchs_sampler_but_no_image_twice(num_images: int, world_size: int, batch_size: int):
    """DistributedSampler, as pytorch/examples and torchvision train with it, repeats images until the ranks have as
    many each; with drop_last, as pytorch/examples validates, it leaves some out. On one rank it does neither."""

    def theirs(drop_last: bool) -> list[list[list[int]]]:
        samplers = [DistributedSampler(range(num_images), world_size, rank, drop_last=drop_last)  # type: ignore[arg-type]
                    for rank in range(world_size)]  # fmt: skip
        return [list(TorchBatches(sampler, batch_size, drop_last=False)) for sampler in samplers]

    def images(ranks: list[list[list[int]]]) -> int:
        return sum(len(batch) for batches in ranks for batch in batches)

    ours = [
        [[key.index for key in batch if key.counts] for batch in batches]
        for batches in all_ranks(num_images, batch_size, world_size)
    ]
    padded, cut = theirs(drop_last=False), theirs(drop_last=True)
    assert [len(batches) for batches in ours] == [len(batches) for batches in padded]
    full = num_images // (batch_size * world_size) - (num_images % (batch_size * world_size) > 0)
    for mine, other in zip(ours, padded, strict=True):
        assert [len(batch) for batch in mine[:full]] == [len(batch) for batch in other[:full]] == [batch_size] * full
    rest = num_images % world_size
    assert images(ours) == num_images
    assert images(padded) - num_images == (world_size - rest if rest else 0)
    assert num_images - images(cut) == rest


@pytest.mark.parametrize("world_size", WORLDS)
def test_length_is_the_number_of_batches(world_size: int):
    sampler = BatchSampler(29, 4, world_size, 0, shuffle=True, seed=0, fill_to=2)
    assert len(sampler) == len(list(sampler))


def test_a_rank_without_any_image_gets_only_fillers():
    ranks = all_ranks(1, 4, 3)
    assert [[key.counts for key in batches[0]] for batches in ranks] == [[True, False], [False, False], [False, False]]


def test_each_epoch_has_an_order_of_its_own_and_a_seed_repeats_it():
    orders = [counted(all_ranks(29, 4, 1, epoch=epoch)) for epoch in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    assert list(range(29)) not in orders
    assert counted(all_ranks(29, 4, 1, epoch=2)) == orders[2]
    assert counted(all_ranks(29, 4, 1, epoch=2, seed=1)) != orders[2]


def test_the_order_does_not_depend_on_the_number_of_ranks():
    assert counted(all_ranks(29, 2, 3, epoch=1)) == counted(all_ranks(29, 5, 1, epoch=1))


def test_unshuffled_is_the_order_of_the_split_in_every_epoch():
    for epoch in (0, 3):
        assert counted(all_ranks(11, 2, 2, epoch=epoch, shuffle=False)) == list(range(11))


def test_keys_carry_the_epoch():
    assert {key.epoch for batch in all_ranks(11, 2, 2, epoch=5)[1] for key in batch} == {5}


@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 4), (2, 4), (3, 2), (1, 29)])
@pytest.mark.parametrize("image", [0, 8, 13, 28])
def test_a_resumed_epoch_has_exactly_the_images_that_are_left(image: int, world_size: int, batch_size: int):
    whole = counted(all_ranks(29, 4, 2, epoch=3))
    ranks = all_ranks(29, batch_size, world_size, epoch=3, start=(3, image))
    assert counted(ranks) == whole[image:]
    assert len({len(batches) for batches in ranks}) == 1


def test_a_resumed_epoch_with_the_same_world_has_the_same_batches():
    assert all_ranks(29, 4, 2, epoch=3, start=(3, 16)) == [batches[2:] for batches in all_ranks(29, 4, 2, epoch=3)]


def test_the_epoch_after_a_resumed_one_is_whole():
    sampler = BatchSampler(29, 4, 1, 0, shuffle=True, seed=0, fill_to=2)
    sampler.start_at(3, 16)
    sampler.set_epoch(3)
    assert len(list(sampler)) == 4
    sampler.set_epoch(4)
    assert list(sampler) == all_ranks(29, 4, 1, epoch=4)[0]


# ---- repeats


def repeated(world_size: int, start: tuple[int, int] | None = None, epoch: int = 0) -> list[list[list[Key]]]:
    ranks = []
    for rank in range(world_size):
        sampler = BatchSampler(29, 4, world_size, rank, shuffle=True, seed=0, fill_to=2, repeats=3)
        sampler.set_epoch(epoch)
        if start is not None:
            sampler.start_at(*start)
        ranks.append(list(sampler))
    return ranks


@pytest.mark.parametrize("world_size", WORLDS)
def test_repeats_keep_the_number_of_images_and_take_the_first_of_the_order(world_size: int):
    plain = BatchSampler(29, 4, 1, 0, shuffle=True, seed=0, fill_to=2).order().tolist()
    keys = [key for step in zip(*repeated(world_size), strict=True) for batch in step for key in batch if key.counts]
    assert len(keys) == 29
    assert [key.index for key in keys] == [index for index in plain[:10] for _ in range(3)][:29]
    assert [key.repeat for key in keys] == [number % 3 for number in range(29)]
    assert len({key.image_seed(5) for key in keys}) == 29
    batches = [batch for step in zip(*repeated(world_size), strict=True) for batch in step]
    assert len({batch[0].batch_seed(5) for batch in batches}) == len(batches)


def test_repeats_go_on_where_an_epoch_was_left():
    whole = [key for batch in repeated(1)[0] for key in batch]
    (left,) = repeated(1, start=(0, 16))
    assert [key for batch in left for key in batch] == whole[16:]


# ---- balanced

RARE = np.array([0] * 25 + [1] * 3 + [2])


def balanced(world_size: int, start: tuple[int, int] | None = None, epoch: int = 0) -> list[Key]:
    """The keys that count, in the order of steps, and of ranks within a step."""
    ranks = []
    for rank in range(world_size):
        sampler = BatchSampler(29, 4, world_size, rank, shuffle=True, seed=0, fill_to=2, balance=RARE)
        sampler.set_epoch(epoch)
        if start is not None:
            sampler.start_at(*start)
        ranks.append(list(sampler))
    return [key for step in zip(*ranks, strict=True) for batch in step for key in batch if key.counts]


@pytest.mark.parametrize("world_size", WORLDS)
def test_all_ranks_together_have_one_balanced_order(world_size: int):
    for epoch in range(3):
        indices = [key.index for key in balanced(world_size, epoch=epoch)]
        assert indices == balanced_order(RARE, 0, epoch).tolist()
        assert sorted(Counter(RARE[indices].tolist()).values()) == [9, 10, 10]


@pytest.mark.parametrize("world_size", WORLDS)
@pytest.mark.parametrize("image", [1, 16, 28])
def test_a_balanced_epoch_goes_on_exactly_where_it_was_left(world_size: int, image: int):
    whole = balanced(2, epoch=3)
    told_apart = lambda keys: [(key.epoch, key.index, key.repeat) for key in keys]  # noqa: E731
    assert told_apart(balanced(world_size, (3, image), 3)) == told_apart(whole)[image:]


def test_an_image_that_comes_again_is_augmented_anew():
    keys = balanced(1)
    assert max(Counter(key.index for key in keys).values()) >= 9  # the only image of class 2
    assert len({key.image_seed(5) for key in keys}) == 29
    assert all(key.repeat == [other.index for other in keys[:place]].count(key.index) for place, key in enumerate(keys))


def test_a_source_is_asked_for_its_order_though_the_balanced_one_is_taken():
    asked = []
    sampler = BatchSampler(29, 4, 1, 0, shuffle=True, seed=3, fill_to=2, balance=RARE,
                           order_of=lambda *of: asked.append(of))  # fmt: skip
    assert sampler.order().tolist() == balanced_order(RARE, 3, 0).tolist()
    assert asked == [(3, 0)]  # one that fetches its files ahead begins


def test_in_order_is_not_balanced():
    sampler = BatchSampler(29, 4, 1, 0, shuffle=False, seed=3, fill_to=2, balance=RARE)
    assert sampler.order().tolist() == list(range(29))


def test_without_repeats_an_image_has_the_seed_it_always_had():
    key = Key(3, 7, True, 4, 4)
    assert key.image_seed(5) == hash_seed(5, 3, 7)
    assert len({key.image_seed(5), key.batch_seed(5), key._replace(repeat=1).image_seed(5)}) == 3
