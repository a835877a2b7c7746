"""Run a function on images in processes that may crash or hang. The image responsible is reported, and the other images
are still processed."""

import contextlib
import itertools
import multiprocessing
import os
import resource
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.workers import choose_mp_context, init_worker, signal_name, start_fork_server
from imagenet_ddp.errors import RunError

START_S = 120.0  # limit for the start of a process, which imports torch


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


class _Process:
    """A process that handles one image at a time for the thread that made it."""

    def __init__(self, args: tuple[Any, ...]):
        context: Any = multiprocessing.get_context(choose_mp_context())
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(*args, theirs), daemon=True)
        self._process.start()
        theirs.close()  # otherwise the connection would not end with the process

    def receive(self, timeout_s: float) -> tuple[Any] | None:
        """Return the answer, or None if the process is late. Raises EOFError or OSError if it has ended."""
        return self._connection.recv() if self._connection.poll(timeout_s) else None

    def ask(self, task: tuple[str, int], timeout_s: float) -> tuple[Any] | None:
        self._connection.send(task)
        return self.receive(timeout_s)

    def kill(self) -> int | None:
        """Kill the process and return its exit code; None if it hangs on a disk and does not even react to SIGKILL."""
        self._process.kill()  # the processes ignore SIGTERM
        self._process.join(5)
        return self._process.exitcode


class _Pool:
    """The threads of process_images, with a process for each."""

    def __init__(self, args: tuple[Any, ...], limits: Limits):
        self._args, self._limits = args, limits
        self._own = threading.local()
        self._lock = threading.Lock()
        self._processes: set[_Process] = set()
        self._is_closed = False

    def handle(self, task: tuple[str, int]) -> Result:
        """Process one image. It is tried twice if it is late or its process was killed by SIGKILL, because the reason
        may be another: Ctrl-Z, or memory that another program used up."""
        failure, is_late = "", False
        for is_last in (False, True):
            process = self._get()
            try:
                answer = process.ask(task, self._limits.timeout_s)
            except (EOFError, OSError):
                is_late = False
            else:
                if answer is not None:
                    if isinstance(answer[0], Exception):
                        raise answer[0]
                    return Result(*task, answer[0])
                is_late = True
            code = self._discard(process)
            failure = f"it takes longer than {self._limits.timeout_s:g} s" if is_late else _crash(code)
            if is_last or self._is_closed or not (is_late or code == -signal.SIGKILL):
                break
        return Result(*task, None, failure, is_late)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
        for process in list(self._processes):
            process.kill()

    def _get(self) -> _Process:
        """Return the process of this thread, started if necessary."""
        if (process := getattr(self._own, "process", None)) is not None:
            return process
        try:
            with self._lock:
                if self._is_closed:
                    raise OSError("stopped")
                process = _Process(self._args)
                self._processes.add(process)
        except OSError as error:
            raise _start_error(error.strerror or str(error)) from error
        try:
            is_ready = process.receive(START_S) is not None
        except (EOFError, OSError):
            is_ready = False
        if not is_ready:
            raise _start_error(f"exit code {self._discard(process)}")
        self._own.process = process
        return process

    def _discard(self, process: _Process) -> int | None:
        self._own.process = None
        self._processes.discard(process)
        return process.kill()


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
    pool, threads = _Pool((function, dict(images), limits.memory_mib), limits), ThreadPoolExecutor(num_workers)
    todo, begun = iter(tasks), deque[Future[Result]]()
    try:
        while True:
            begun += [threads.submit(pool.handle, task) for task in itertools.islice(todo, window - len(begun))]
            if not begun:
                return
            yield begun.popleft().result()
    finally:
        threads.shutdown(wait=False, cancel_futures=True)
        pool.close()
        threads.shutdown()


def _start_error(why: str) -> RunError:
    return RunError(
        f"a process that reads images could not start ({why}). Hint: set prepare.num_workers=1, which needs the least "
        "memory."
    )


def _crash(code: int | None) -> str:
    name = signal_name(code or 0)
    more = ", twice: the machine may have run out of memory" if name == "SIGKILL" else ""
    return "it crashes the decoder" + (f" ({name}{more})" if name else "")


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
        connection.send(("ready",))
        while True:
            split, index = connection.recv()
            try:
                answer = function(images[split], index)
            except Exception as error:
                error.add_note(traceback.format_exc())  # a pickled error loses its traceback
                answer = error
            connection.send((answer,))


def _limit_memory(mib: int) -> None:
    """Limit the writable memory of the process (heap and private mappings). A packed file that is mapped for reading
    does not count. Only Linux (since 4.7) counts mappings in this limit; other systems have no limit."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        used = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        limit = used + mib * 2**20
        resource.setrlimit(resource.RLIMIT_DATA, (limit if hard < 0 else min(limit, hard), hard))
