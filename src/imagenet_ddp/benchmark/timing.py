"""Time several functions in turns, so that other load on the machine affects all of them alike."""

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

MIN_TIME_S = 0.3  # minimum of one measurement; a shorter function is repeated within its turn


def time_interleaved(
    functions: Mapping[Any, Callable[[], int]], repeats: int, on_measured: Callable[[], None]
) -> dict[Any, list[float]]:
    """Time functions that process images and return their number. Return the images per second of each function, with
    one value per repeat. A first turn warms up and is not counted."""
    rates: dict[Any, list[float]] = {name: [] for name in functions}
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
            rates[name].append(num_images / (time.perf_counter() - start))
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
