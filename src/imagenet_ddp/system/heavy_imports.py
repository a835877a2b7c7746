"""The import of torch, torchvision and Lightning: three thousand modules, seconds of every process's start."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def import_torch() -> Iterator[None]:
    """Around such imports. They make a million objects that all stay: the garbage collector finds nothing among them,
    and would look through all of them again and again, now (a tenth of the time) and while the model trains."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # else extensions (triton) take what is frozen for leaked, and say so at the end
        if was_on:
            gc.enable()
