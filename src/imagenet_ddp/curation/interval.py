"""Give the 95 % interval of an accuracy that was measured on some images."""

from statistics import NormalDist

_Z = NormalDist().inv_cdf(0.975)


def interval(num_right: float, num_images: int) -> tuple[float, float]:
    """Return the 95 % interval of an accuracy (Wilson 1927, JASA 22, 209)."""
    if not num_images:
        return 0.0, 1.0
    share, spread = num_right / num_images, _Z**2 / num_images
    centre = (share + spread / 2) / (1 + spread)
    half = _Z / (1 + spread) * (share * (1 - share) / num_images + spread / (4 * num_images)) ** 0.5
    return max(centre - half, 0.0), min(centre + half, 1.0)


def interval_words(num_right: float, num_images: int) -> str:
    """Return the interval as text, such as "84 to 95 %"."""
    low, high = (100 * end for end in interval(num_right, num_images))
    digits = 0 if high - low >= 2 else 1 if high - low >= 0.2 else 2
    return f"{low:.{digits}f} to {high:.{digits}f} %"
