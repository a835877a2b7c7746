"""Images are processed in order, whatever happens to the processes."""

import os
import signal
import time
from typing import Any

import numpy as np
import pytest

from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare import worker_pool
from imagenet_ddp.prepare.worker_pool import Limits, Result, process_images


class NeedsTwoError(Exception):
    """Can be pickled, but not unpickled."""

    def __init__(self, first: str, second: str):
        super().__init__(first)


class Actions:
    """A source whose images do something instead."""

    def __init__(self, *actions: str):
        self.actions, self.targets = actions, np.zeros(len(actions), dtype=np.int64)

    def __len__(self) -> int:
        return len(self.actions)

    def path(self, index: int) -> str:
        return f"{index} {self.actions[index]}"


def act(images: Any, index: int) -> int:
    match images.actions[index]:
        case "slow":
            time.sleep(0.01)
        case "segv":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "exit":
            os._exit(0)
        case "memory":
            np.ones(2**30, dtype=np.uint8)
        case "raise":
            raise ZeroDivisionError(images.path(index))
        case "odd":
            raise NeedsTwoError("a", "b")
    return index


def results(images: Any, num_workers: int = 2, timeout_s: float = 60, window: int = 100) -> Any:
    tasks = [("train", index) for index in range(len(images))]
    limits = Limits(timeout_s, 256)
    return process_images(act, {"train": images}, tasks, num_workers, limits, window)


def test_the_image_at_fault_is_named_and_the_others_are_processed():
    images = Actions("", "segv", "", "kill", "", "stop", "", "exit", "")
    found = list(results(images, timeout_s=2))
    assert [result.index for result in found] == list(range(9))
    assert [result.value for result in found] == [0, None, 2, None, 4, None, 6, None, 8]
    assert {result.index: (result.failure, result.is_timeout) for result in found if result.failure} == {
        1: ("it crashes the decoder (SIGSEGV)", False),
        3: ("it crashes the decoder (SIGKILL, twice: the machine may have run out of memory)", False),
        5: ("it takes longer than 2 s", True),
        7: ("it crashes the decoder", False),
    }


def test_processes_killed_from_outside_and_closing(monkeypatch: pytest.MonkeyPatch):
    """No image is lost, no more than `window` are begun ahead, and closing ends all processes at once."""
    started: list[Any] = []
    start = worker_pool._Process
    monkeypatch.setattr(worker_pool, "_Process", lambda *args: started.append(start(*args)) or started[-1])
    begun: list[int] = []
    tasks = (("train", index) for index in range(200) if begun.append(index) is None)
    generator = process_images(act, {"train": Actions(*["slow"] * 200)}, tasks, 1, Limits(60), 10)  # type: ignore[dict-item]
    found: list[Result] = []
    for result in generator:
        found.append(result)
        assert len(begun) <= len(found) + 10
        if len(found) in (1, 40):
            next(each._process for each in reversed(started) if each._process.is_alive()).kill()
        if len(found) == 150:
            break
    assert found == [Result("train", index, index) for index in range(150)]
    generator.close()
    assert len(started) >= 3 and not any(each._process.is_alive() for each in started)


def test_errors():
    with pytest.raises(ZeroDivisionError, match="1 raise") as caught:
        list(results(Actions("", "raise"), num_workers=1))
    assert "in act" in caught.value.__notes__[0]
    with pytest.raises(MemoryError):
        list(results(Actions("memory"), num_workers=1))


class Fatal(Actions):
    def __reduce__(self) -> tuple[Any, ...]:
        return os._exit, (3,)  # in the process that receives it


def test_processes_that_cannot_start():
    with pytest.raises(
        RunError, match=r"could not start \(exit code 3\)\. Hint: set prepare.num_workers=1, which needs the least"
    ):
        list(results(Fatal(""), num_workers=1))


def test_an_exception_that_does_not_travel_ends_the_work_too():
    with pytest.raises(TypeError, match="second"):
        list(results(Actions("", "odd", ""), timeout_s=20))
