"""Seconds and images of steps, by a clock that the test sets."""

import pytest

from imagenet_ddp.callbacks.measures import Span, StepTimes


def test_epochs_the_run_and_what_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pause before a step counts only without begin(); a resumed run goes on with the sums of the first."""
    clock = [0.0]
    monkeypatch.setattr("time.perf_counter", lambda: clock[0])

    def epoch(times: StepTimes, *, data_s: float, rest_s: float, pause_s: float = 0.0) -> None:
        for _ in range(2):
            clock[0] += data_s
            times.data_is_here()
            clock[0] += rest_s
            times.end_step(4)
            clock[0] += pause_s
            times.begin()

    times = StepTimes()
    assert (times.epoch.images_per_s, times.run.data_wait_frac) == (0.0, 0.0)
    times.begin_epoch()
    epoch(times, data_s=1.0, rest_s=3.0, pause_s=50.0)
    times.add_wait(2.0)
    assert (times.last.batch_s, times.last.data_s, times.epoch.batch_s) == (6.0, 1.0, 10.0)
    assert (times.epoch.images_per_s, times.epoch.data_wait_frac) == (0.8, 0.2)
    assert times.epoch == times.run == times.take()
    assert times.take() == Span()

    resumed = StepTimes()
    resumed.load_state_dict(times.state_dict())
    resumed.begin_epoch()
    epoch(resumed, data_s=5.0, rest_s=10.0)
    assert resumed.epoch.images_per_s == pytest.approx(8 / 30)
    assert (resumed.run.images_per_s, resumed.run.data_wait_frac) == (16 / 40, 12 / 40)
