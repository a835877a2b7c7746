"""Welch's test against tables of Student's distribution, and against a published example."""

import pytest

from scripts.recipe_table import two_sided_p, welch_p


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(12.7062, 1, 0.05), (63.6567, 1, 0.01), (31.5991, 2, 0.001), (2.77645, 4, 0.05), (2.22814, 10, 0.05),
     (-3.64596, 30, 0.001), (1.98397, 100, 0.05), (0, 2.5, 1)],
)  # fmt: skip
def test_the_tables_of_students_distribution(t: float, freedom: float, p: float):
    assert two_sided_p(t, freedom) == pytest.approx(p, rel=1e-4)


def test_samples_of_unequal_size_and_variance():
    """The second and third example of Wikipedia's article on this test, with the p-values given there."""
    a = [17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8]
    b = [21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8, 20.7, 21.7, 21.5, 22.5, 23.6, 21.5, 22.5, 23.5,
         21.5, 21.8]  # fmt: skip
    assert welch_p(a, b) == welch_p(b, a) == pytest.approx(0.149, abs=5e-4)
    a = [19.8, 20.4, 19.6, 17.8, 18.5, 18.9, 18.3, 18.9, 19.5, 22.0]
    b = [28.2, 26.6, 20.1, 23.3, 25.2, 22.1, 17.7, 27.6, 20.6, 13.7, 23.2, 17.5, 20.6, 18.0, 23.9, 21.6, 24.3, 20.4,
         24.0, 13.2]  # fmt: skip
    assert welch_p(a, b) == pytest.approx(0.036, abs=5e-4)
