"""Derive independent random seeds."""


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
