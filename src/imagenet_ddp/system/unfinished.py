"""Finish work before the process ends at once (os._exit): a checkpoint that a thread is still writing."""

from concurrent.futures import Future, wait

LONGEST_S = 60.0  # for a disk that no longer answers
_futures: set[Future] = set()


def add(future: Future) -> None:
    _futures.add(future)
    future.add_done_callback(_futures.discard)


def finish() -> None:
    """Return once all of that work is done, or has failed."""
    wait(list(_futures), LONGEST_S)
