"""Start and end a process quickly: imports of torch, and an exit without Python's clean-up. Does not import torch."""

import atexit
import contextlib
import gc
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, MutableMapping
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import cache_dir

SPIN_COUNT = "1000"  # about 20 µs; docs/performance.md has the measurements


@contextmanager
def import_torch() -> Iterator[None]:
    """Pause the garbage collector, and permanently exclude the objects created in the block from collection.

    These imports create a million objects that are never freed. The collector would search them repeatedly without
    effect, which takes a tenth of the import time, and again during training.
    """
    cache_bytecode()
    limit_spinning(os.environ)
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # else extensions (triton) report frozen objects as leaks at exit
        if was_enabled:
            gc.enable()


def limit_spinning(environ: MutableMapping[str, str]) -> None:
    """Let the OpenMP threads of torch sleep after a short busy wait for each other, unless the user has set how they
    wait. libgomp reads the variable when torch is imported. Its default wait lasts longer than a time slice: threads
    that share their cores with another program then mostly wait for threads that are not running."""
    if not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & environ.keys():
        environ["GOMP_SPINCOUNT"] = SPIN_COUNT


def cache_bytecode() -> None:
    """Store compiled modules in the cache folder if torch's modules are not compiled and Python would not store them.

    uv and many container images install modules without bytecode. Python then writes it at the first start, unless
    PYTHONDONTWRITEBYTECODE is set or the folder is read-only, in which case each start compiles for 8 s. Does nothing
    if PYTHONPYCACHEPREFIX is set. Child processes inherit the folder through the environment.
    """
    with suppress(ConfigError, OSError):  # without a cache folder, each start compiles
        folder = str(cache_dir(os.environ) / "bytecode")
        if sys.pycache_prefix is None:
            compiled = torch_bytecode()
            if compiled.is_file() or (not sys.dont_write_bytecode and os.access(compiled.parent.parent, os.W_OK)):
                return
            Path(folder).mkdir(parents=True, exist_ok=True)
            sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = folder
        if sys.pycache_prefix == folder:  # also in a child process whose command line forbids writing
            sys.dont_write_bytecode = False
            os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def torch_bytecode() -> Path:
    """Return the path of torch's first module in compiled form, whether or not the file exists."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None and spec.origin is not None  # torch is a dependency of this package
    return Path(importlib.util.cache_from_source(spec.origin))


LONGEST_S = 60.0  # longest wait in seconds, in case a disk no longer responds
_futures: set[Future] = set()
_cleanups: list[Callable[[], None]] = []


def finish_before_exit(future: Future) -> None:
    """Make exit_at_once wait for this future. At a normal exit, Python itself joins the threads of executors."""
    _futures.add(future)
    future.add_done_callback(_futures.discard)


def clean_up_at_exit(function: Callable[[], None]) -> Callable[[], None]:
    """Call the function at a normal exit and in exit_at_once. Can be used as a decorator."""
    _cleanups.append(function)
    return atexit.register(function)


def exit_at_once(code: int) -> NoReturn:
    """End this process without Python's clean-up, which would wait for the threads of a hanging collective, disk or
    store, or abort while they run C++ code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe must not keep the process alive
            stream.flush()
    for function in _cleanups:
        function()
    wait(list(_futures), LONGEST_S)
    os._exit(code)
