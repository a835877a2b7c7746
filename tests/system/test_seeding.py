"""Seeds differ for neighbouring inputs, in all of their bits alike."""

from itertools import pairwise, product

from imagenet_ddp.system.seeding import hash_seed


def test_hash_seed_spreads_neighbouring_inputs():
    seeds = [hash_seed(seed, epoch, index) for seed in range(3) for epoch in range(30) for index in range(300)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    # torch's CPU generator takes only the lower half of a seed, so that this half must differ too
    assert len({seed & 0xFFFFFFFF for seed in seeds}) > len(seeds) - 5
    assert hash_seed(0, 1) != hash_seed(1, 0)
    flipped = [bin(hash_seed(0, 0, index) ^ hash_seed(0, 0, index + 1)).count("1") for index in range(1000)]
    assert 30 < sum(flipped) / len(flipped) < 33  # of 63 bits


def test_the_seed_of_each_step_is_its_own() -> None:
    """Of (run, rank, step), in the 32 bits that torch's CPU generator takes."""
    seeds = [hash_seed(*parts) & 0xFFFFFFFF for parts in product(range(4), range(8), range(2000))]
    assert len(seeds) - len(set(seeds)) <= 4, "64,000 of 2^32 numbers: half a pair is equal by chance"
    ones = [sum(seed >> bit & 1 for seed in seeds) / len(seeds) for bit in range(32)]
    assert all(0.49 < share < 0.51 for share in ones)
    flipped = [(one ^ other).bit_count() for one, other in pairwise(seeds)]
    assert 15.9 < sum(flipped) / len(flipped) < 16.1
