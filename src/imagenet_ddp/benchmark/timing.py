"""Time several functions in turns, so that other load on the machine affects all of them alike."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

MIN_TIME_S = 0.3  # of one measurement: a shorter function is repeated within its turn


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """Return the median of the repeats' ratios."""
    return statistics.median(value / other for value, other in zip(values, others, strict=True))


@dataclass
class Rates:
    """Images per second, one value for each repeat; index i of two Rates is the same repeat."""

    wall: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.wall)

    def over(self, other: "Rates") -> float:
        """Return the median of the repeats' ratios."""
        return ratio(self.wall, other.wall)

    def as_dict(self) -> dict[str, object]:
        return {"median": round(self.median, 1), "all": [round(rate, 1) for rate in self.wall]}


def time_interleaved(
    functions: Mapping[str, Callable[[], int]], repeats: int, on_measured: Callable[[], None] = lambda: None
) -> dict[str, Rates]:
    """Time functions that process images and return the number of images. A first, untimed turn warms up."""
    rates = {name: Rates() for name in functions}
    num_calls = dict.fromkeys(functions, 1)
    for name, function in functions.items():
        start = time.perf_counter()
        function()
        num_calls[name] = max(1, round(MIN_TIME_S / max(time.perf_counter() - start, 1e-6)))
        on_measured()
    for _ in range(repeats):
        for name, function in functions.items():
            start = time.perf_counter()
            num_images = sum(function() for _ in range(num_calls[name]))
            rates[name].wall.append(num_images / (time.perf_counter() - start))
            on_measured()
    return rates


@contextmanager
def one_core() -> Iterator[None]:
    """Restrict this process to one core and one thread."""
    threads = torch.get_num_threads()
    cores = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    try:
        torch.set_num_threads(1)
        if cores is not None:
            os.sched_setaffinity(0, {max(cores)})
        yield
    finally:
        torch.set_num_threads(threads)
        if cores is not None:
            os.sched_setaffinity(0, cores)
