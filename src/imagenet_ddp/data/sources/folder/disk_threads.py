"""Apply a function that waits for a disk to many items concurrently, because a network disk answers slowly."""

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
    """Yield function(item) for each item, in order.

    The threads are daemons, because the threads of a ThreadPoolExecutor would keep the process from ending while a disk
    does not respond.
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
