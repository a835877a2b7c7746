"""Images are processed in order, whatever happens to the processes."""

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare import worker_pool
from imagenet_ddp.prepare.worker_pool import process_images


class Actions:
    """A source whose images do something instead."""

    def __init__(self, *actions: str):
        self.actions, self.targets = actions, np.zeros(len(actions), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.actions)


def act(images: Any, index: int) -> int:
    match images.actions[index]:
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(0)
        case "raise":
            raise ZeroDivisionError(index)
    return index


def results(images: Any, num_workers: int = 2, timeout_s: float = 60, window: int = 100) -> Any:
    tasks = [("train", index) for index in range(len(images))]
    return process_images(act, {"train": images}, tasks, num_workers, timeout_s, window)


def test_the_image_at_fault_is_named_and_the_others_are_processed():
    found = list(results(Actions("", "segv", "", "stop", "", "exit", ""), timeout_s=2))
    assert [result.index for result in found] == list(range(7))
    assert [result.value for result in found] == [0, None, 2, None, 4, None, 6]
    assert [result.failure for result in found if result.failure] == [
        "it crashes the decoder (SIGSEGV)",
        "it takes longer than 2 s (prepare.timeout_s)",
        "it crashes the decoder",
    ]


def test_closing_ends_all_processes(monkeypatch: pytest.MonkeyPatch):
    """No more than `window` images are begun ahead."""
    started: list[Any] = []
    start = worker_pool._Process
    monkeypatch.setattr(worker_pool, "_Process", lambda *args: started.append(start(*args)) or started[-1])
    begun: list[int] = []
    tasks = (("train", index) for index in range(200) if begun.append(index) is None)
    generator = process_images(act, {"train": Actions(*[""] * 200)}, tasks, 2, 60, 10)  # type: ignore[dict-item]
    assert [next(generator).index for _ in range(150)] == list(range(150))
    assert len(begun) <= 160
    generator.close()
    time.sleep(0.1)
    assert started and not any(each._process.is_alive() for each in started)


def test_errors():
    with pytest.raises(ZeroDivisionError) as caught:
        list(results(Actions("", "raise"), num_workers=1))
    assert "in act" in caught.value.__notes__[0]


class Fatal(Actions):
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)  # in the process that receives it


def test_processes_that_cannot_start():
    with pytest.raises(RunError, match=r"could not start .*Hint: set prepare.num_workers=1"):
        list(results(Fatal(""), num_workers=1))
