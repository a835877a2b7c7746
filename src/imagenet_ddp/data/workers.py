"""Manage loader processes: choose their number, start and initialise them, and make sure that none outlives the
training process."""

import multiprocessing
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, queues, resource_tracker
from typing import Any

from imagenet_ddp.system.cpu_cores import cores_per_process
from imagenet_ddp.system.text import count_noun

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)
NOT_SENT = 100  # exit code of a worker that could not send a batch to the training process


def choose_mp_context() -> str:
    """Return the start method for loader processes. A plain fork copies locks that other threads (Gloo, OpenMP, NCCL)
    may hold, and the new process can then wait for them forever. spawn imports torch again in every worker, and is used
    only on macOS, where it is the only safe method."""
    return "spawn" if sys.platform == "darwin" else "forkserver"


def choose_num_workers(option: int | str, on_cpu: bool, local_world_size: int) -> tuple[int, str]:
    """Return the number of loader processes per rank, and the reason for this number. option: data.num_workers."""
    if option != "auto":
        return int(option), "as set"
    per_rank = cores_per_process(local_world_size)
    cores = count_noun(per_rank, "core")
    if on_cpu:
        # a training step uses all cores and takes ten times as long as decoding, so a worker would only compete with it
        return (0 if per_rank < 4 else per_rank // 4), f"training on the CPU, {cores} per process"
    return max(1, min(per_rank - 1, 16)), f"{cores} per GPU, one reserved for the training process"


def start_fork_server() -> None:
    """Start the process that forks the workers, if choose_mp_context returns "forkserver". The server and the workers
    ignore stop signals from the start, because the training process handles a stop and needs its loader until it has
    saved a checkpoint. The server imports torch once for all workers."""
    if choose_mp_context() != "forkserver":
        return
    forkserver.set_forkserver_preload(["imagenet_ddp.data.preload"])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # a new process inherits the mask
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)  # starting the tracker unblocks two of the signals
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def preserve_sigchld_handler() -> Iterator[None]:
    """Restore the handler of SIGCHLD after workers have started. torch's handler would raise an error in the middle of
    a step when a worker ends. The loader itself notices the end of a worker within 5 s, when it waits for a batch."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGCHLD)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, before or signal.SIG_DFL)


def loader_workers(loader: Any) -> list[Any]:
    """Return the running worker processes of a DataLoader, or an empty list for a loader of another kind. torch has no
    public interface for this."""
    workers = getattr(getattr(loader, "_iterator", None), "_workers", [])
    return [worker for worker in workers if worker.pid is not None]


def end_workers(loader: Any) -> None:
    """End the processes of a DataLoader with persistent workers, if it has any. They ignore stop signals, so a process
    that exits without calling this function would wait for them."""
    workers, iterator = loader_workers(loader), loader._iterator
    loader._iterator = None
    if workers:
        iterator._shutdown_workers()
    for worker in workers:
        if worker.is_alive():  # they ignore the SIGTERM that torch has sent
            worker.kill()


def init_worker(worker: int) -> None:
    """Make a worker ignore stop signals, and make it end when the training process ends."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise_open_file_limit()
    sys.excepthook = report_unless_parent_left
    # otherwise multiprocessing prints the error and drops the batch, and the training process hangs
    queues.Queue._on_queue_feeder_error = staticmethod(_end_for)  # type: ignore[attr-defined]
    # torch watches only the parent process, which is the fork server and lives as long as its workers
    threading.Thread(target=_end_with_parent, name="end with parent", daemon=True).start()


def report_unless_parent_left(kind: type[BaseException], error: BaseException, trace: Any) -> None:
    """Print an error as sys.excepthook does, unless the training process ended in the middle of a message to
    multiprocessing's fork server or file-passing thread. In that case, the training process reports the reason."""
    if not isinstance(error, EOFError | BrokenPipeError | ConnectionResetError):
        sys.__excepthook__(kind, error, trace)


def raise_open_file_limit() -> None:
    """Raise the soft limit on open files to the hard limit, because each batch in transit needs several open files. The
    default is low only for programs that call select()."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(ValueError, OSError):  # macOS allows less than the limit it reports
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def signal_name(code: int) -> str:
    """Return the name of the signal that corresponds to an exit code, or "" if there is none."""
    try:
        return signal.Signals(-code).name if code < 0 else ""
    except ValueError:
        return f"signal {-code}"


def _end_for(error: BaseException, batch: object) -> None:
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(NOT_SENT)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
