"""Apply a function that waits for a disk to many items: one after the other while the disk answers at once, because
threads would only contend for the interpreter; by 16 threads once it is late, as a network disk is."""

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

NUM_THREADS = 16  # twice as many gain nothing on a disk that answers after 5 ms: docs/performance.md
TRIED = 8  # answers that tell how late a disk is
LATE_S = 0.0005  # from where on it is late: a local disk opens a folder in 0.05 ms

T = TypeVar("T")
R = TypeVar("R")


def imap_unordered(
    function: Callable[[T], R], items: deque[T], timeout_s: float | None = None
) -> Iterator[tuple[T, R] | None]:
    """Yield (item, function(item)) for each, in any order, and None whenever threads gave no answer within timeout_s.

    items is emptied; what the caller appends between two answers is included.
    """
    waits: deque[float] = deque(maxlen=TRIED)  # seconds not spent computing, of the last answers
    threads: _Threads[T, R] | None = None
    num_pending = 0  # of the threads, not answered
    try:
        while items or num_pending:
            if threads is None:
                item = items.popleft()
                begin, begin_cpu = time.monotonic(), time.thread_time()
                answer = function(item)
                waits.append(time.monotonic() - begin - (time.thread_time() - begin_cpu))
                yield item, answer
                if items and len(waits) == TRIED and sum(waits) >= TRIED * LATE_S:
                    threads = _Threads(function)
                continue
            while items:
                threads.put(items.popleft())
                num_pending += 1
            try:
                answered = threads.answer(timeout_s)
            except queue.Empty:
                yield None
                continue
            num_pending -= 1
            yield answered
    finally:
        if threads is not None:
            threads.end()


def map_concurrently(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Return function(item) of each, in order."""
    found = dict(filter(None, imap_unordered(lambda number: function(items[number]), deque(range(len(items))))))
    return [found[number] for number in range(len(items))]


class _Threads(Generic[T, R]):
    """NUM_THREADS that call a function. Daemons: those of a ThreadPoolExecutor delay the end of the process for as long
    as a network disk hangs."""

    def __init__(self, function: Callable[[T], R]):
        self._function = function
        self._items: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[T, Any, BaseException | None]] = queue.SimpleQueue()
        for _ in range(NUM_THREADS):
            threading.Thread(target=self._work, name="disk", daemon=True).start()

    def put(self, item: T) -> None:
        self._items.put(item)

    def answer(self, timeout_s: float | None) -> tuple[T, R]:
        """Return the next item that is answered, and its answer, or raise the error. queue.Empty: none within the
        time."""
        item, answer, error = self._answers.get(timeout=timeout_s)
        if error is not None:
            raise error
        return item, answer

    def end(self) -> None:
        """Drop what no thread has begun with."""
        with suppress(queue.Empty):
            while True:
                self._items.get_nowait()
        for _ in range(NUM_THREADS):
            self._items.put(self)

    def _work(self) -> None:
        while (item := self._items.get()) is not self:
            try:
                self._answers.put((item, self._function(item), None))
            except BaseException as error:
                self._answers.put((item, None, error))
