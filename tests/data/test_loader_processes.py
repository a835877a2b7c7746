"""How many loader processes there are, and how they start."""

import os

import pytest

from imagenet_ddp.data.loader_processes import choose_num_workers, worker_context


@pytest.mark.parametrize(
    ("asked", "on_cpu", "cores", "processes", "expected"),
    [
        ("5", True, 2, 8, 5),
        ("auto", True, 1, 1, 0),
        ("auto", True, 16, 2, 2),
        ("auto", False, 2, 2, 1),
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


def test_no_loader_process_is_forked_from_this_process():
    """A process that is forked after CUDA was initialised cannot use it, and inherits its locks."""
    assert worker_context().get_start_method() in ("forkserver", "spawn")
