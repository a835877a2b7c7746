"""Measure the time of a loop's steps, and the time spent waiting for data."""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass
class Span:
    """Steps of a loop: seconds, measured on this rank, and images, over all ranks."""

    images: int = 0
    steps: int = 0
    batch_s: float = 0.0  # whole steps
    data_s: float = 0.0  # the part of them that waited for data

    def add(self, other: "Span") -> None:
        self.images += other.images
        self.steps += other.steps
        self.batch_s += other.batch_s
        self.data_s += other.data_s

    @property
    def images_per_s(self) -> float:
        return self.images / self.batch_s if self.batch_s else 0.0

    @property
    def data_wait_frac(self) -> float:
        return self.data_s / self.batch_s if self.batch_s else 0.0


class StepTimes:
    """The times of a loop's last step, of this epoch, and of the whole run. A step begins when the previous one
    ends."""

    def __init__(self) -> None:
        self.last, self.epoch, self.run, self._since = Span(), Span(), Span(), Span()
        self._mark = self._data_s = 0.0

    def begin(self) -> None:
        """Begin the next step now, so that the time since the last step belongs to no step."""
        self._mark = time.perf_counter()

    def begin_epoch(self) -> None:
        self.epoch = Span()
        self.begin()

    def data_is_here(self) -> None:
        """Count the time of the step so far as waiting for data."""
        self._data_s = time.perf_counter() - self._mark

    def end_step(self, num_images: int = 0) -> None:
        self.last = Span()
        self._add(Span(num_images, 1, time.perf_counter() - self._mark, self._data_s))

    def add_wait(self, seconds: float) -> None:
        """Add the seconds just passed to the last step, but not to its time waiting for data."""
        self._add(Span(batch_s=seconds))

    def _add(self, span: Span) -> None:
        for each in (self.last, self.epoch, self.run, self._since):
            each.add(span)
        self._mark += span.batch_s

    def take(self) -> Span:
        """Return the steps since the last call."""
        taken, self._since = self._since, Span()
        return taken

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": asdict(self.epoch), "run": asdict(self.run)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.epoch, self.run = Span(**state_dict["epoch"]), Span(**state_dict["run"])
