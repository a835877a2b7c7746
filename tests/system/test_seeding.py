"""Seeds differ for neighbouring inputs, in all of their bits alike."""

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
