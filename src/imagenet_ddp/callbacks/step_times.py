"""Measure the time of a loop's steps, and the time spent waiting for data."""

import math
import time
from typing import Any

# Totals of this epoch and of all earlier ones, which checkpoints store so that a resumed run continues counting.
STORED = ("num_images", "num_steps", "batch_sum_s", "data_sum_s", "all_images", "all_batch_s", "all_data_s")


class StepTimes:
    """Seconds measured on this rank and numbers of images, for the last step, this epoch, the whole run, and the time
    since the last call of take(). A step begins when the previous one ends."""

    def __init__(self) -> None:
        self.batch_s = self.data_s = 0.0  # last step
        self.batch_sum_s = self.data_sum_s = 0.0  # all steps of this epoch
        self.num_steps = self.num_images = 0  # this epoch
        self.all_images, self.all_batch_s, self.all_data_s = 0, 0.0, 0.0  # all epochs that have ended
        self._since_images, self._since_batch_s, self._since_data_s = 0, 0.0, 0.0
        self._is_added = False  # whether this epoch has ended and is included in these totals
        self._mark = 0.0

    def begin(self) -> None:
        """Begin the next step now, so that the time since the last step belongs to no step."""
        self._mark = time.perf_counter()

    def begin_epoch(self) -> None:
        self.batch_sum_s = self.data_sum_s = 0.0
        self.num_steps = self.num_images = 0
        self._is_added = False
        self.begin()

    def data_is_here(self) -> None:
        """Count the time of the step so far as waiting for data."""
        self.data_s = time.perf_counter() - self._mark

    def end_step(self, num_images: int = 0) -> None:
        self.batch_s = 0.0
        self.add(time.perf_counter() - self._mark)
        self.data_sum_s += self.data_s
        self._since_data_s += self.data_s
        self.num_steps += 1
        self.num_images += num_images
        self._since_images += num_images

    def add(self, seconds: float) -> None:
        """Add the seconds just passed to the last step, but not to its time waiting for data."""
        self.batch_s += seconds
        self.batch_sum_s += seconds
        self._since_batch_s += seconds
        self._mark += seconds

    def end_epoch(self) -> None:
        self.all_images += self.num_images
        self.all_batch_s += self.batch_sum_s
        self.all_data_s += self.data_sum_s
        self._is_added = True

    def take(self) -> tuple[float, float]:
        """Return (images/s, share of the time spent waiting for data) since the last call."""
        batch_s = self._since_batch_s or math.inf
        found = self._since_images / batch_s, self._since_data_s / batch_s
        self._since_images, self._since_batch_s, self._since_data_s = 0, 0.0, 0.0
        return found

    @property
    def images_per_s(self) -> float:
        """Return images/s of this epoch."""
        return self.num_images / self.batch_sum_s if self.batch_sum_s else 0.0

    @property
    def data_wait_frac(self) -> float:
        """Return the share of this epoch's time spent waiting for data."""
        return self.data_sum_s / self.batch_sum_s if self.batch_sum_s else 0.0

    def of_run(self) -> tuple[float | None, float | None]:
        """Return (images/s, share of the time spent waiting for data) of all epochs; None before the first step."""
        images, batch_s, data_s = self.all_images, self.all_batch_s, self.all_data_s
        if not self._is_added:
            images, batch_s, data_s = images + self.num_images, batch_s + self.batch_sum_s, data_s + self.data_sum_s
        return (images / batch_s, data_s / batch_s) if batch_s else (None, None)

    def state_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in STORED}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name in STORED:
            setattr(self, name, state_dict[name])
