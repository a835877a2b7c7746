import os

import pytest

from imagenet_ddp.data.workers import choose_num_workers
from imagenet_ddp.system.text import count_noun


@pytest.mark.parametrize(
    ("asked", "on_cpu", "cores", "processes", "expected"),
    [
        (0, False, 64, 1, 0),
        ("5", True, 2, 8, 5),
        ("auto", True, 1, 1, 0),
        ("auto", True, 4, 1, 1),
        ("auto", True, 16, 2, 2),
        ("auto", False, 2, 2, 1),
        ("auto", False, 8, 1, 7),
        ("auto", False, 96, 1, 16),
    ],
)
def test_the_number_of_workers_follows_the_cores(
    monkeypatch: pytest.MonkeyPatch, asked: int | str, on_cpu: bool, cores: int, processes: int, expected: int
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    number, reason = choose_num_workers(asked, on_cpu, processes)
    assert number == expected
    assert (reason == "as set") == (asked != "auto")
    if asked == "auto":
        assert f"{count_noun(cores // processes, 'core')} per " in reason
