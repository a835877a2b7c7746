"""Apply a function that waits for a disk to many items at a time: a network disk answers each request late."""

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

NUM_THREADS = 8

T = TypeVar("T")
R = TypeVar("R")


def map_concurrently(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Yield function(item) of each item, in order.

    The threads are daemons: those of a ThreadPoolExecutor would delay the end of the process for as long as a disk
    hangs.
    """
    futures: list[Future[R]] = [Future() for _ in items]
    todo = deque(zip(futures, items, strict=True))

    def work() -> None:
        with suppress(IndexError):
            while True:
                future, item = todo.popleft()
                try:
                    future.set_result(function(item))
                except BaseException as error:
                    future.set_exception(error)

    for _ in range(min(NUM_THREADS, len(items))):
        threading.Thread(target=work, name="disk", daemon=True).start()
    try:
        for future in futures:
            yield future.result()
    finally:
        todo.clear()
