"""Finish work before os._exit ends the process, such as a checkpoint that a thread is still writing."""

from concurrent.futures import Future, wait

LONGEST_S = 60.0  # longest wait in seconds, in case a disk no longer responds
_futures: set[Future] = set()


def add(future: Future) -> None:
    _futures.add(future)
    future.add_done_callback(_futures.discard)


def finish() -> None:
    """Return once all added work is done or has failed, or after LONGEST_S."""
    wait(list(_futures), LONGEST_S)
