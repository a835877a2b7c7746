"""Validate the mean and standard deviation with which images are normalised, before torch is imported."""

from collections.abc import Sequence

from imagenet_ddp.config.schema.data import IMAGENET_MEAN, IMAGENET_STD
from imagenet_ddp.config.validators import list_of, number, shown

_THREE = list_of(number(), "", 3)


def validate_statistics(mean: Sequence[float] | None, std: Sequence[float] | None) -> list[str]:
    """Return a message for each of the two that cannot be a statistic of pixels in 0..1. Values that are not three
    numbers are left to the schema."""
    found = []
    for key, values, usual, lowest in (("mean", mean, IMAGENET_MEAN, "from 0"), ("std", std, IMAGENET_STD, "above 0")):
        if values is None or not _THREE.accepts(values):
            continue
        if max(values) > 1 or min(values) < 0 or (key == "std" and min(values) == 0):
            is_of_bytes = min(values) >= 0 and max(values) <= 255 and (key == "mean" or min(values) > 1)
            better = [round(value / 255, 4) for value in values] if is_of_bytes and max(values) > 1 else usual
            of_bytes = ", which is for pixels in 0..255" if better is not usual else ""
            found.append(
                f"data.{key} must be three numbers {lowest} to 1, because pixels are scaled to 0..1, got "
                f"{shown(values)}{of_bytes}. Hint: set 'data.{key}={shown(better)}'."
            )
    return found
