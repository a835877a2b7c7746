"""Speed up the imports of torch, torchvision and Lightning: three thousand modules, seconds of each process's start."""

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def import_torch() -> Iterator[None]:
    """Pause the garbage collector, and exclude the objects made in the block from collection for good.

    Such imports make a million objects that all stay: the collector would search them in vain again and again, now (a
    tenth of the import time) and during training.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # else extensions (triton) report frozen objects as leaks at exit
        if was_enabled:
            gc.enable()
