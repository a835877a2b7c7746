"""Run a function on images in processes that may crash or hang. The image responsible is reported, and the other images
are still processed."""

import contextlib
import itertools
import os
import resource
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import torch

from imagenet_ddp.data.loader_failures import signal_name
from imagenet_ddp.data.loader_processes import init_worker, worker_context
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.errors import RunError

START_S = 120.0  # limit for the start of a process, which imports torch
Function = Callable[..., Any]  # of the images of a split, a position, and what else a task has


class Result(NamedTuple):
    """The result for one image. value: what the function returned, or None if the image ended the process; then
    `failure` says how."""

    split: str
    index: int  # type: ignore[assignment]  # hides tuple.index
    value: Any
    failure: str = ""


class _Process:
    """A process that handles one image at a time for the thread that made it."""

    def __init__(self, context: Any, function: Function, images: Mapping[str, Images]):
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(function, dict(images), theirs), daemon=True)
        self._process.start()
        theirs.close()  # otherwise the connection would not end with the process

    def receive(self, timeout_s: float) -> Any:
        """Return the answer. Raises TimeoutError if the process is late, EOFError or OSError if it has ended."""
        if not self._connection.poll(timeout_s):
            raise TimeoutError
        return self._connection.recv()

    def ask(self, task: tuple[Any, ...], timeout_s: float) -> Any:
        self._connection.send(task)
        return self.receive(timeout_s)

    def kill(self) -> int | None:
        """Kill the process and return its exit code; None if it hangs on a disk and does not even react to SIGKILL."""
        self._process.kill()  # the processes ignore SIGTERM
        self._process.join(5)
        return self._process.exitcode


def process_images(
    function: Function,
    images: Mapping[str, Images],
    tasks: Iterable[tuple[Any, ...]],
    num_workers: int,
    timeout_s: float,
    window: int,
) -> Generator[Result, None, None]:
    """Yield the Result of function(images[split], index, *more) for each task (split, index, *more), in the order of
    the tasks.

    timeout_s: limit for one image. window: how many images may be started before the first of them is consumed, which
    bounds the memory. Raises RunError if a process cannot start, and whatever the function raises.
    """
    context = worker_context()
    own, processes, is_closing = threading.local(), list[_Process](), list[bool]()

    def start() -> _Process:
        try:
            process = _Process(context, function, images)
            processes.append(process)
            process.receive(START_S)
        except (EOFError, OSError) as error:
            raise RunError(
                f"a process that reads images could not start ({str(error) or type(error).__name__}). Hint: set "
                "prepare.num_workers=1, which needs the least memory."
            ) from error
        return process

    def handle(task: tuple[Any, ...], *, again: bool = False) -> Result:
        if getattr(own, "process", None) is None:
            own.process = start()
        try:
            value = own.process.ask(task, timeout_s)
        except (EOFError, OSError) as error:
            name = signal_name(own.process.kill() or 0)
            own.process = None
            # this command may have been stopped meanwhile, or the system may have killed any process for its memory
            if not again and not is_closing and (isinstance(error, TimeoutError) or name == "SIGKILL"):
                return handle(task, again=True)
            late = f"it takes longer than {timeout_s:g} s (prepare.timeout_s)"
            crash = f"it crashes the decoder{f' ({name})' * bool(name)}"
            if name == "SIGKILL":
                crash = "its process was killed (SIGKILL), usually because memory ran out"
            return Result(task[0], task[1], None, late if isinstance(error, TimeoutError) else crash)
        if isinstance(value, Exception):
            raise value
        return Result(task[0], task[1], value)

    threads, todo, begun = ThreadPoolExecutor(num_workers), iter(tasks), deque[Future[Result]]()
    try:
        while True:
            begun += [threads.submit(handle, task) for task in itertools.islice(todo, window - len(begun))]
            if not begun:
                return
            yield begun.popleft().result()
    finally:
        is_closing.append(True)
        threads.shutdown(wait=False, cancel_futures=True)
        for process in [*processes]:
            process.kill()
        threads.shutdown()
        for process in processes:  # started meanwhile
            process.kill()


def _work(function: Function, images: dict[str, Images], connection: Connection) -> None:
    """Answer the tasks of the parent until it ends."""
    init_worker(0)
    torch.set_num_threads(1)
    with open(os.devnull, "w", encoding="utf-8") as null:  # noqa: PTH123
        os.dup2(null.fileno(), 2)  # hide what libtiff and libpng print
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(EOFError, OSError):  # the parent has ended
        connection.send("ready")
        while True:
            split, index, *more = connection.recv()
            try:
                answer = function(images[split], index, *more)
            except Exception as error:
                error.add_note(traceback.format_exc())  # a pickled error loses its traceback
                answer = error
            connection.send(answer)
