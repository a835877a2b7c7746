"""Choose the number of loader processes, start them and end them. Does not import torch."""

import multiprocessing
import os
import resource
import signal
import sys
import threading
import traceback
from contextlib import suppress
from multiprocessing import forkserver, queues
from typing import Any

from imagenet_ddp.system.cpu_cores import cores_per_process
from imagenet_ddp.system.process import start_resource_tracker
from imagenet_ddp.system.stop_signals import STOP_SIGNALS
from imagenet_ddp.system.text import count_noun

NOT_SENT = 100  # exit code of a worker that could not send a batch to the training process
END_S = 3.0  # time in which all workers of a loader may end by themselves


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


def worker_context() -> Any:
    """Return multiprocessing's context for workers. A plain fork copies locks that other threads (Gloo, OpenMP, NCCL)
    may hold, and the new process can then wait for them forever. Therefore a server, started here, imports torch once
    and forks all workers.

    The server and the workers ignore stop signals from the start, because the training process handles a stop and needs
    its loader until it has saved a checkpoint.
    """
    if sys.platform == "darwin":  # where only this method is safe; each worker imports torch again
        return multiprocessing.get_context("spawn")
    forkserver.set_forkserver_preload(["imagenet_ddp.data.fork_server"])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())  # a new process inherits the mask
    try:
        start_resource_tracker(STOP_SIGNALS)
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return multiprocessing.get_context("forkserver")


def init_worker(worker: int) -> None:
    """Make a worker ignore stop signals, and make it end when the training process ends."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    raise_open_file_limit()
    sys.excepthook = report_unless_parent_left
    # otherwise multiprocessing prints the error and drops the batch, and the training process hangs
    queues.Queue._on_queue_feeder_error = staticmethod(_end_for)  # type: ignore[attr-defined]
    # torch watches only the parent process, which is the fork server and runs as long as its workers
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


def _end_for(error: BaseException, batch: object) -> None:
    traceback.print_exception(error)
    sys.stderr.flush()
    os._exit(NOT_SENT)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


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
        # torch waits 10 s for each one in turn, and those that wait for a disk or are stopped ignore its SIGTERM
        kill = threading.Timer(END_S, lambda: [worker.kill() for worker in workers])
        kill.start()
        iterator._shutdown_workers()
        kill.cancel()
