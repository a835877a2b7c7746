"""Derive independent random seeds, and seed the global generators for a while."""

import random
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def seeded(seed: int) -> Generator[None]:
    """Draw the random numbers of Python, NumPy and torch's CPU generator in the block from a seed, a non-negative
    integer, and restore the generators afterwards."""
    import numpy as np
    import torch

    states = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])


def hash_seed(*numbers: int) -> int:
    """Mix integers into a 63-bit seed by splitmix64. Seeds of neighbouring inputs differ in about half of their
    bits."""
    state = 0
    for number in numbers:
        state = (state ^ number) + 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF
        state = (state ^ state >> 27) * 0x94D049BB133111EB & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
