"""Test whether two samples of unequal variance have the same mean (Welch's t-test)."""

import math
from collections.abc import Sequence
from statistics import mean, variance

import numpy as np


def welch_p(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Return the two-sided p-value, or None if a sample has fewer than two values, or if neither sample varies."""
    if min(len(a), len(b)) < 2:
        return None
    parts = [variance(values) / len(values) for values in (a, b)]
    if not (total := sum(parts)):
        return None
    t = (mean(a) - mean(b)) / math.sqrt(total)
    # the degrees of freedom according to the Welch-Satterthwaite equation
    freedom = total**2 / sum(part**2 / (len(values) - 1) for part, values in zip(parts, (a, b), strict=True))
    return two_sided_p(t, freedom)


def two_sided_p(t: float, freedom: float) -> float:
    """Return the probability that a value of Student's t-distribution is at least as far from 0 as t. freedom: degrees
    of freedom, at least 1, not necessarily an integer."""
    # The substitution t = sqrt(freedom) tan(angle) turns the density into cos(angle) ** (freedom - 1), which has no
    # infinite tail. The angle is measured from its end, pi / 2. The integral is over the square root of the angle,
    # because the integrand is smooth in it.
    ends = np.sqrt([math.atan2(math.sqrt(freedom), abs(t)), math.pi / 2])
    nodes, weights = np.polynomial.legendre.leggauss(64)
    points = np.outer(ends, (nodes + 1) / 2)
    tail, whole = ends * ((2 * points * np.sin(points**2) ** (freedom - 1)) @ weights)
    return float(tail / whole)
