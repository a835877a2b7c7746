"""Run a function on images in processes that may crash or hang. The image responsible is reported, and the other images
are still processed."""

import contextlib
import multiprocessing
import os
import resource
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.worker_failures import signal_name
from imagenet_ddp.data.workers import choose_mp_context, init_worker, start_fork_server
from imagenet_ddp.errors import RunError

DEPTH = 4  # images queued per process, so that a process need not wait for its next image
POLL_S = 0.5  # seconds between two checks for late processes
START_S = 120.0  # limit for the start of a process, which imports torch
_READY = "ready"  # sent by a process before its first result


class Limits(NamedTuple):
    """Limits for one image. memory_mib: memory in addition to what the process uses before its first image; None means
    no limit."""

    timeout_s: float
    memory_mib: int | None = None


@dataclass(frozen=True)
class Result:
    """The result for one image. value: what the function returned, or None if the image ended the process; then
    `failure` says how."""

    split: str
    index: int
    value: Any
    failure: str = ""
    is_timeout: bool = False


@dataclass(frozen=True)
class _Task:
    number: int
    split: str
    index: int


class _Worker:
    """A process, with the tasks that were sent to it."""

    def __init__(self, args: tuple[Any, ...]):
        context: Any = multiprocessing.get_context(choose_mp_context())
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(*args, theirs), daemon=True)
        self.process.start()
        theirs.close()  # otherwise the connection would not end with the process
        self.tasks: deque[_Task] = deque()
        self.is_ready = False
        self.begin_s = time.monotonic()  # when the first task began, or the process was started

    def submit(self, task: _Task) -> None:
        if not self.tasks:
            self.begin_s = time.monotonic()
        self.tasks.append(task)
        with contextlib.suppress(OSError):  # the process has just ended, which the next recv reports
            self.connection.send(task)

    def kill(self) -> int | None:
        """Kill the process and return its exit code; None if it hangs on a disk and does not even react to SIGKILL."""
        self.process.kill()
        self.process.join(5)
        return self.process.exitcode


def process_images(
    function: Callable[[Images, int], Any],
    images: Mapping[str, Images],
    tasks: Iterable[tuple[str, int]],
    num_workers: int,
    limits: Limits,
    window: int,
) -> Generator[Result, None, None]:
    """Yield the Result of function(images[split], index) for each task (split, index), in the order of the tasks.

    window: how many images may be started before the first of them is consumed, which bounds the memory. Raises
    RunError if a process cannot start, and whatever the function raises.
    """
    start_fork_server()
    args = (function, dict(images), limits.memory_mib)
    numbered = (_Task(number, split, index) for number, (split, index) in enumerate(tasks))
    retry: list[_Task] = []
    killed: set[_Task] = set()
    results: dict[int, Result] = {}
    num_begun = num_yielded = 0
    is_exhausted = False
    workers: list[_Worker] = []

    def next_task() -> _Task | None:
        nonlocal num_begun, is_exhausted
        if retry:
            return retry.pop()
        if is_exhausted or num_begun - num_yielded >= window:
            return None
        task = next(numbered, None)
        is_exhausted = task is None
        num_begun += not is_exhausted
        return task

    def replace(worker: _Worker, is_timeout: bool) -> None:
        """Replace a process that ended or is late. Record its current image as failed, or retry it once after a
        SIGKILL from outside. Queue its other images again."""
        code = worker.kill()
        if not worker.is_ready:
            raise _start_error(f"exit code {code}")
        workers[workers.index(worker)] = _start(args)
        if not worker.tasks:
            return
        task, *others = worker.tasks
        retry.extend(reversed(others))
        if code == -signal.SIGKILL and not is_timeout and task not in killed:
            killed.add(task)  # the system may have killed the process for another reason, so try once more
            retry.append(task)
            return
        failure = (
            f"it takes longer than {limits.timeout_s:g} s" if is_timeout else f"it crashes the decoder{_signal(code)}"
        )
        results[task.number] = Result(task.split, task.index, None, failure, is_timeout)

    try:
        workers += [_start(args) for _ in range(num_workers)]
        loop_s = time.monotonic()
        while True:
            for depth in range(DEPTH):
                for worker in workers:
                    if worker.is_ready and len(worker.tasks) <= depth and (task := next_task()) is not None:
                        worker.submit(task)
            if num_yielded in results:
                yield results.pop(num_yielded)
                num_yielded += 1
                continue
            if is_exhausted and num_begun == num_yielded:
                return
            # after a Ctrl-Z, or in a caller that writes to a slow disk, the pause does not count as the workers' time
            if (paused_s := time.monotonic() - loop_s) > 4 * POLL_S:
                for worker in workers:
                    worker.begin_s += paused_s
            loop_s = time.monotonic()
            ready = wait([worker.connection for worker in workers], POLL_S)
            for worker in list(workers):
                if worker.connection not in ready:
                    if _is_late(worker, limits.timeout_s):
                        replace(worker, is_timeout=True)
                    continue
                try:
                    event = worker.connection.recv()
                except (EOFError, OSError):
                    replace(worker, is_timeout=False)
                    continue
                if event == _READY:
                    worker.is_ready, worker.begin_s = True, time.monotonic()
                elif isinstance(event, Exception):
                    raise event
                else:
                    worker.begin_s, task = time.monotonic(), worker.tasks.popleft()
                    results[task.number] = Result(task.split, task.index, *event)
    finally:
        for worker in workers:
            worker.process.kill()  # the processes ignore SIGTERM
        for worker in workers:
            worker.process.join(5)


def _start(args: tuple[Any, ...]) -> _Worker:
    try:
        return _Worker(args)
    except OSError as error:
        raise _start_error(error.strerror or str(error)) from error


def _start_error(why: str) -> RunError:
    return RunError(
        f"a process that reads images could not start ({why}). Hint: set prepare.num_workers=1, which needs the least "
        "memory."
    )


def _is_late(worker: _Worker, timeout_s: float) -> bool:
    if worker.is_ready and not worker.tasks:
        return False
    return time.monotonic() - worker.begin_s > (timeout_s if worker.is_ready else START_S)


def _signal(code: int | None) -> str:
    name = signal_name(code or 0)
    more = ", twice: the machine may have run out of memory" if name == "SIGKILL" else ""
    return f" ({name}{more})" if name else ""


# ---- in the process ------------------------------------------------------------------------------------------------


def _work(
    function: Callable[[Images, int], Any], images: dict[str, Images], memory_mib: int | None, connection: Connection
) -> None:
    init_worker(0)
    torch.set_num_threads(1)
    with open(os.devnull, "w") as null:  # noqa: PTH123
        os.dup2(null.fileno(), 2)  # hide what libtiff and libpng print
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if memory_mib is not None:
        _limit_memory(memory_mib)
    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        connection.send(_READY)
        while True:
            task = connection.recv()
            try:
                answer = (function(images[task.split], task.index),)
            except Exception as error:
                error.add_note(traceback.format_exc())  # a pickled error loses its traceback
                answer = error
            connection.send(answer)


def _limit_memory(mib: int) -> None:
    """Limit the writable memory of the process (heap and private mappings). A packed file that is mapped for reading
    does not count. Only Linux (since 4.7) counts mappings in this limit; other systems have no limit."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        used = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + mib * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
