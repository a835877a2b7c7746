"""Start and end a process quickly: cheap and delayed imports, and an exit without Python's clean-up. Does not
import torch."""

import atexit
import contextlib
import gc
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import Future, wait
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NoReturn

from imagenet_ddp.system.bounded_wait import said_while_slow
from imagenet_ddp.system.idle_cores import measure_while_importing


@contextmanager
def import_torch() -> Generator[None]:
    """Pause the garbage collector, and permanently exclude the objects created in the block from collection.

    These imports create a million objects that are never freed. The collector would search them repeatedly without
    effect, which takes a tenth of the import time, and again during training. The load of the machine is measured
    meanwhile, for cluster.num_threads=auto, and a slow import is reported.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        with said_while_slow("Loading PyTorch"), measure_while_importing():
            yield
    finally:
        gc.freeze()
        atexit.register(gc.unfreeze)  # else extensions (triton) report frozen objects as leaks at exit
        if was_enabled:
            gc.enable()


def command_is_gone() -> bool:
    """Return whether the command that started this worker has ended before it. The worker gets SIGTERM then (spawn.py),
    which is no request of anyone."""
    command = multiprocessing.parent_process()
    return command is not None and os.getppid() != command.pid


def use_utf8() -> None:
    """Restart this program in Python's UTF-8 mode if the locale has another encoding, in which Python would read
    the names of files and write text. Most file names are UTF-8 whatever the locale, and so are the files of a run.
    Call it before anything else; from Python 3.15 on, this mode is the default."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode and sys.orig_argv[1:]:
        os.environ["PYTHONUTF8"] = "1"  # for the processes that this one starts
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """Return the `__getattr__` of a package that exports names of modules imported on first use (PEP 562).

    modules: name -> module below the package.
    """

    def getattr_of_package(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{modules[name]}"), name)

    return getattr_of_package


# Processes that end at once leave the semaphores of their data loaders: the resource tracker removes and reports them.
QUIET_TRACKER = "ignore::UserWarning:multiprocessing.resource_tracker"


def start_resource_tracker(blocked: Iterable[int]) -> None:
    """Block these signals and start multiprocessing's resource tracker, whose own start unblocks two of them. The
    tracker ignores the others permanently, because SLURM sends SIGUSR2 to every process of a step."""
    from multiprocessing import resource_tracker

    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)
    sys.warnoptions.append(QUIET_TRACKER)  # multiprocessing passes these options on to the process it starts
    resource_tracker.ensure_running()
    sys.warnoptions.remove(QUIET_TRACKER)
    signal.pthread_sigmask(signal.SIG_BLOCK, blocked)


LONGEST_S = 60.0  # longest wait in seconds, in case a disk no longer responds
_futures: set[Future[Any]] = set()
_cleanups: list[Callable[[], None]] = []


def finish_before_exit(future: Future[Any]) -> None:
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
