"""The ranks exchange the signals that they have received at the same steps, and seldom."""

import pytest
import torch

from imagenet_ddp.callbacks import graceful_stop


@pytest.mark.parametrize(("batch_s", "counts"), [(0.25, [1, 4, 4]), (5, [1, 1, 1])])
def test_signals_are_exchanged_once_per_second(
    monkeypatch: pytest.MonkeyPatch, batch_s: float, counts: list[int]
) -> None:
    """Not in each step, which would wait for the device and the other ranks."""
    now = 0.0
    monkeypatch.setattr(graceful_stop.time, "monotonic", lambda: now)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values, op: values)
    exchange, found = graceful_stop._Exchange(), []
    for _ in counts:
        found.append(1)
        now += batch_s
        while not exchange.is_due():
            found[-1] += 1
            now += batch_s
        assert exchange.highest((15, 0), torch.device("cpu")) == [15, 0]
    assert found == counts
