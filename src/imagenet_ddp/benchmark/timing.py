"""Several things timed in turns, so that whatever else the machine does weighs on all alike."""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

LEAST_S = 0.3  # of one measurement: a shorter one is repeated within its turn


@dataclass
class Rates:
    """Images per second, one for each repeat; rates of the same repeat stand at the same place."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # per second that this process computed: without loader workers

    @property
    def median(self) -> float:
        return statistics.median(self.wall)

    def over(self, other: "Rates") -> float:
        """Median of the repeats' ratios."""
        return statistics.median(mine / its for mine, its in zip(self.wall, other.wall, strict=True))

    def as_dict(self) -> dict[str, object]:
        return {
            "median": round(self.median, 1),
            "all": [round(rate, 1) for rate in self.wall],
            "per_cpu_second": [round(rate, 1) for rate in self.cpu],
        }


def in_turns(
    ways: Mapping[str, Callable[[], int]], repeats: int, tick: Callable[[], None] = lambda: None
) -> dict[str, Rates]:
    """ways: each handles some images and says how many. A first turn warms up, and does not count."""
    found = {name: Rates() for name in ways}
    times = dict.fromkeys(ways, 1)
    for name, way in ways.items():
        begin = time.perf_counter()
        way()
        times[name] = max(1, round(LEAST_S / max(time.perf_counter() - begin, 1e-6)))
        tick()
    for _ in range(repeats):
        for name, way in ways.items():
            begin, cpu = time.perf_counter(), time.process_time()
            count = sum(way() for _ in range(times[name]))
            found[name].wall.append(count / (time.perf_counter() - begin))
            found[name].cpu.append(count / max(time.process_time() - cpu, 1e-9))
            tick()
    return found


def microseconds(work: Callable[[], int], least_s: float = LEAST_S) -> float:
    """Per image; of the faster half of some rounds, because other programs only ever add."""
    rounds: list[float] = []
    end = time.perf_counter() + least_s
    while len(rounds) < 3 or time.perf_counter() < end:
        begin = time.perf_counter()
        count = work()
        rounds.append((time.perf_counter() - begin) / count)
    return 1e6 * statistics.median(sorted(rounds)[: (len(rounds) + 1) // 2])


@contextmanager
def one_core() -> Iterator[None]:
    """This process keeps to one core and one thread."""
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
