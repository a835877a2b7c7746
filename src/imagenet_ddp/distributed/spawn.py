"""Start this node's worker processes, forward signals to them, and return their exit code.

Nothing here listens on a network. torchrun's agent, called as a function, opens two stores at all addresses of the
machine and unpickles what it reads there, and torch.multiprocessing unpickles errors from files in /tmp.
"""

import contextlib
import ctypes
import math
import multiprocessing
import os
import pickle
import secrets
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any, NoReturn

from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.system.console import discard_closed_terminal, print_message
from imagenet_ddp.system.idle_cores import Cores
from imagenet_ddp.system.process import start_resource_tracker
from imagenet_ddp.system.stop_signals import DUPLICATE_S, RESTART_SIGNALS, STOP_SIGNALS, respected

POLL_S = 0.1
END_S = 30.0  # after one worker has failed, the others have this time to end
LAST_S = 5.0  # after the third request to stop, which ends a worker at once
GONE = "is gone: its process, or its machine, no longer answers"
LOST = 3  # exit code of a worker that ends because another rank is gone; the command's is 1
LOOPBACK = "127.0.0.1"


class WorkersFailedError(Exception):
    """Raised when a worker has failed and has printed the reason.

    exit_code: 2 if the worker was refused, 128 + n if signal n stopped it, otherwise 1. reason: why, if the worker
    itself did not fail: it was killed, or another rank is gone. is_requeued: whether SLURM will requeue the job.
    """

    def __init__(self, exit_code: int, reason: str = ""):
        super().__init__(f"a worker ended with exit code {exit_code}")
        self.exit_code, self.reason = exit_code, reason
        self.is_requeued = False

    def exit(self) -> NoReturn:
        sys.exit(self.exit_code)


@dataclass
class Workers:
    """Run worker(place, *arguments) in num_local processes of this node.

    Each process has the environment variables by which libraries find their rank. node: place of this
    node's command, once it has claimed its number; None on a single node. cores: for all workers, if counted.
    """

    worker: Callable[..., Any]
    arguments: tuple[Any, ...]
    num_local: int
    node: Place | None = None
    cores: Cores | None = None

    def run(self) -> Any:
        """Run the workers and return the result of this node's first rank. Raises WorkersFailedError if a worker fails.

        Each worker receives a signal only once, because workers run in their own sessions, which the terminal does not
        signal. A worker ends by itself after it has saved its checkpoint.
        """
        with _recorded_signals() as received:
            if [number for number in received if number not in RESTART_SIGNALS]:
                raise _nothing_to_save(received[0])
            first, store = self.node, None
            if first is None:
                first = Place(world_size=self.num_local, local_world_size=self.num_local, launcher="own workers")
                if self.num_local > 1:
                    from imagenet_ddp.distributed.store import serve_here  # imports torch

                    store = serve_here()  # as long as the workers run
                    # other users of this machine reach the loopback, too
                    secret = secrets.token_bytes(32)
                    first = replace(first, address=Address(LOOPBACK, store.port), secret=secret)
            value, failed, stop = self._watch(*self._start(first), received)
            del store
        if failed:
            raise _failure(failed, stop, first.rank)
        if received:
            raise _nothing_to_save(received[0])
        return value

    def _start(self, first: Place) -> tuple[list[SpawnProcess], Connection]:
        """Start the workers, with the signals blocked until they have set their own handlers. Return them, and the
        pipe from which the result of the first one is read.

        Their arguments, which may name millions of images, follow through a pipe each: start() waits until a process
        has read what it is started with, and it has read nothing until its imports are done.
        """
        context, content = multiprocessing.get_context("spawn"), pickle.dumps(self.arguments)
        receiver, sender = context.Pipe(duplex=False)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        start_resource_tracker(STOP_SIGNALS)
        processes, feeds = list[SpawnProcess](), list[Connection]()
        try:
            for local_rank in range(self.num_local):
                rank = first.rank + local_rank
                place = replace(
                    first, rank=rank, local_rank=local_rank, is_node=False, is_worker=True, cores=self.cores
                )
                result = None if local_rank else sender
                fed, feed = context.Pipe(duplex=False)
                process = context.Process(target=_run_worker, args=(self.worker, fed, place, os.getpid(), result))
                process.start()
                fed.close()
                processes.append(process)
                feeds.append(feed)
        except BaseException:
            _signal(signal.SIGKILL, processes)
            raise
        finally:
            sender.close()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for feed in feeds:
            threading.Thread(target=_feed, args=(feed, content), name="arguments", daemon=True).start()
        return processes, receiver

    def _watch(
        self, processes: list[SpawnProcess], receiver: Connection, received: list[int]
    ) -> tuple[Any, list[tuple[int, int]], int]:
        """Wait until all have ended, and forward the signals that this process receives meanwhile. Return the result of
        the first worker, (local rank, exit code) of those that failed in the order of their end, and the last signal
        that was forwarded."""
        value, open_ends, codes = None, [receiver], dict[int, int]()
        end_at_s, stop, requests_s, late = math.inf, 0, list[float](), list[int]()
        try:
            while len(codes) < len(processes):
                running = [each.sentinel for rank, each in enumerate(processes) if rank not in codes]
                connection.wait([*open_ends, *running], POLL_S)
                ended = {rank: each.exitcode for rank, each in enumerate(processes) if each.exitcode is not None}
                codes |= {rank: code for rank, code in ended.items() if rank not in codes}
                if open_ends and receiver.poll():
                    open_ends.clear()
                    with contextlib.suppress(EOFError):  # the worker has failed
                        value = receiver.recv()
                now_s = time.monotonic()
                while received:
                    stop = received.pop(0)
                    if stop == signal.SIGHUP:
                        discard_closed_terminal()
                    _signal(stop, processes)
                    if not requests_s or now_s - requests_s[-1] > DUPLICATE_S:
                        requests_s.append(now_s)
                    if len(requests_s) == 3:  # the workers end at once, unless they cannot
                        end_at_s = min(end_at_s, now_s + LAST_S)
                if end_at_s == math.inf and any(codes.values()):
                    _signal(signal.SIGTERM, processes)
                    end_at_s = now_s + END_S
                if end_at_s == math.inf and codes.get(0) == 0:  # with the result, which the others have no part in
                    end_at_s, late = now_s + END_S, [rank for rank in range(len(processes)) if rank not in codes]
                if now_s > end_at_s:
                    _signal(signal.SIGKILL, processes)
        finally:
            _signal(signal.SIGKILL, processes)
        if killed := [rank for rank in late if codes[rank] == -signal.SIGKILL]:
            names = ", ".join(f"local rank {rank}" for rank in killed)
            print_message(f"{names} did not end within {END_S:g} s of local rank 0, and was killed.")
        return value, [(rank, code) for rank, code in codes.items() if code and rank not in killed], stop


@contextmanager
def _recorded_signals() -> Generator[list[int]]:
    """Record in a list the signals that arrive in the block, and one that arrived before (runs/signals.py)."""
    received: list[int] = []
    before = {
        number: signal.signal(number, lambda number, _: received.append(number)) for number in respected(STOP_SIGNALS)
    }
    owners = [getattr(handler, "__self__", None) for handler in before.values()]
    received += [early for owner in owners if (early := getattr(owner, "received", None))][:1]
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _nothing_to_save(number: int) -> WorkersFailedError:
    print_message(f"Stopped by {signal.Signals(number).name}, with nothing to save yet.")
    return WorkersFailedError(128 + number)


def _signal(number: int, processes: Sequence[SpawnProcess]) -> None:
    for process in processes:
        if process.exitcode is None and process.pid is not None:  # a pid is free for others only after exitcode is read
            os.kill(process.pid, number)


def _failure(failed: Sequence[tuple[int, int]], stop: int, first_rank: int) -> WorkersFailedError:
    """Return the error for workers that failed. failed: (local rank, exit code); a negative code is the signal that
    ended the worker. stop: the signal that they were sent, or 0."""
    # after a failure, the others are ended with SIGTERM, so any other code is more informative
    of_others = (-signal.SIGTERM, 128 + signal.SIGTERM)
    local_rank, code = next((each for each in failed if each[1] not in of_others), failed[0])
    reason = "another rank is gone" if code == LOST else ""
    if stop and code == -stop:
        code = 128 + stop
    elif code < 0:
        # a process that is ended by a signal cannot print the reason itself
        reason = f"rank {first_rank + local_rank} was ended by signal {-code} ({signal.Signals(-code).name})"
        if code == -signal.SIGKILL:
            reason += ", as the system does when memory runs out"
        print_message(reason)
    return WorkersFailedError(code if code in (1, 2) or code > 128 else 1, reason)


def _feed(feed: Connection, content: bytes) -> None:
    with feed, contextlib.suppress(OSError):  # the worker has ended, which is reported
        feed.send_bytes(content)


def _run_worker(
    worker: Callable[..., Any], fed: Connection, place: Place, parent: int, result: Connection | None
) -> None:
    """Prepare a worker process and run `worker`, which unblocks the signals once it has set its handlers. fed: the pipe
    with its arguments."""
    os.setsid()  # Ctrl-C in the terminal reaches only the parent, which forwards it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: the workers end if their parent is killed
        if os.getppid() != parent:
            sys.exit(1)
    os.environ |= {
        "RANK": str(place.rank),
        "LOCAL_RANK": str(place.local_rank),
        "WORLD_SIZE": str(place.world_size),
        "LOCAL_WORLD_SIZE": str(place.local_world_size),
        "GROUP_RANK": str(place.node_rank),
        "GROUP_WORLD_SIZE": str(place.num_nodes),
    }
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # as for the ranks of several commands
    if place.address is not None:
        os.environ |= {"MASTER_ADDR": place.address.host or "", "MASTER_PORT": str(place.address.port)}
    with fed:
        arguments = pickle.loads(fed.recv_bytes())
    value = worker(place, *arguments)
    if result is not None:
        result.send(value)
