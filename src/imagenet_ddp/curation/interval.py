"""Give the 95 % interval of an accuracy that was measured on some images, and of the difference of two on the same."""

from statistics import NormalDist

from imagenet_ddp.system.text import percent

_Z = NormalDist().inv_cdf(0.975)


def interval(num_right: float, num_images: float) -> tuple[float, float]:
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


def paired_interval(both: float, first: float, second: float, neither: float) -> tuple[float, float]:
    """Return the 95 % interval of the accuracy of the second net minus that of the first, on the same images (Newcombe
    1998, Statistics in Medicine 17, 2635, method 10). both, first, second, neither: number of images that both nets,
    only one of them, or none of them predicts correctly; at least one image."""
    total = both + first + second + neither
    ends = [(right / total, *interval(right, total)) for right in (both + second, both + first)]
    (new, new_low, new_high), (old, old_low, old_high) = ends
    product = (both + first) * (second + neither) * (both + second) * (first + neither)
    excess = both * neither - first * second
    excess = max(excess - total / 2, 0) if excess > 0 else excess
    correlation = excess / product**0.5 if product else 0.0

    def half(one: float, other: float) -> float:
        return max(one**2 - 2 * correlation * one * other + other**2, 0) ** 0.5

    difference = new - old
    return difference - half(new - new_low, old_high - old), difference + half(new_high - new, old - old_low)


def images_to_decide(both: int, first: int, second: int, neither: int) -> int | None:
    """Return how many images leave 0 out of paired_interval if the nets differ on them as on these, with two digits
    that count; None if they differ in nothing. Arguments as for paired_interval."""
    if first == second:
        return None
    counts, more = (both, first, second, neither), 1.0
    while (ends := paired_interval(*(each * more for each in counts)))[0] <= 0 <= ends[1]:
        more *= 1.05
    return int(float(f"{sum(counts) * more:.1e}"))


def without_words(right: tuple[float, float], total: tuple[int, int]) -> str:
    """Return "top-1 92.00 % without them (84 to 95 %), 90.00 % with them". right, total: numbers of images without and
    with some of them."""
    if not total[0]:
        return f"top-1 {percent(right[1] / max(total[1], 1))} with them; there are no others"
    share, whole = (percent(each / number) for each, number in zip(right, total, strict=True))
    rest = "the same as with them" if share == whole else f"{whole} with them"
    return f"top-1 {share} without them ({interval_words(right[0], total[0])}), {rest}"
