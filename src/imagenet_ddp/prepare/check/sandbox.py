"""Processes that look at images and may die of them: the image that ended one is known, and another one goes on."""

import contextlib
import multiprocessing
import os
import resource
import signal
import time
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import torch

from imagenet_ddp.data.loading.worker_processes import choose_mp_context, init_worker, start_fork_server
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare.check.probe import Look, look

CHUNK = 64  # images per order to a process
LOOK_S = 0.5  # between two looks at which processes are late
START_S = 120.0  # longest wait for a process to begin: it imports torch
MIB = 2**20
DIED = "it ends the decoder"


@dataclass(frozen=True, slots=True)
class Found:
    split: str
    index: int
    look: Look


class Limits(NamedTuple):
    """Of one image."""

    timeout_s: float
    memory_mib: int  # beyond what the process takes before its first image


class _Examiner:
    """One process, and what it was asked."""

    def __init__(self, context: Any, images: Mapping[str, Images], limits: Limits):
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(dict(images), limits, theirs), daemon=True)
        self.process.start()
        theirs.close()  # so that its death ends the connection
        self.split, self.next, self.stop = "", 0, 0
        self.is_ready = False
        self.since_s = time.monotonic()

    def order(self, split: str, begin: int, end: int) -> None:
        self.split, self.next, self.stop = split, begin, end
        self.since_s = time.monotonic()
        with contextlib.suppress(OSError):  # it has just died, which is seen next
            self.connection.send((split, begin, end))

    @property
    def is_free(self) -> bool:
        return self.is_ready and self.next == self.stop

    def end(self) -> int | None:
        """Exit code; None: it does not even end when killed, because its disk does not answer."""
        self.connection.close()
        self.process.kill()
        self.process.join(5)
        return self.process.exitcode


def examine(
    images: Mapping[str, Images], num_workers: int, limits: Limits, mp_context: str
) -> Generator[Found, None, None]:
    """Every image of every split, each once, in no order. Raises RunError where no process can begin."""
    context = choose_mp_context(mp_context)
    if context == "forkserver":
        start_fork_server()
    orders = iter(_orders(images, num_workers))
    retry: list[tuple[str, int, int]] = []
    killed: set[tuple[str, int]] = set()
    examiners: list[_Examiner] = []
    try:
        examiners += [_begun(context, images, limits) for _ in range(num_workers)]
        while True:
            for examiner in examiners:
                if examiner.is_free and (order := retry.pop() if retry else next(orders, None)) is not None:
                    examiner.order(*order)
            busy = [examiner for examiner in examiners if not examiner.is_free]
            if not busy:
                return
            begin_s = time.monotonic()
            answered = set(wait([examiner.connection for examiner in busy], timeout=LOOK_S))
            if (stopped_s := time.monotonic() - begin_s - LOOK_S) > LOOK_S:  # Ctrl-Z: the images did not go on either
                for examiner in busy:
                    examiner.since_s += stopped_s
            for examiner in busy:
                why = None
                if examiner.connection in answered:
                    try:
                        yield from _answers(examiner)
                    except (EOFError, OSError):
                        why = DIED
                elif time.monotonic() - examiner.since_s > (limits.timeout_s if examiner.is_ready else START_S):
                    why = f"it takes longer than {limits.timeout_s:g} s (prepare.timeout_s)"
                if why is None:
                    continue
                code = examiner.end()
                if not examiner.is_ready:
                    raise _not_begun(f"exit code {code}")
                last = examiner.split, examiner.next
                if code == -signal.SIGKILL and why == DIED and last not in killed:
                    killed.add(last)  # by someone else, and perhaps not because of this image: it is asked once more
                    retry.append((*last, examiner.stop))
                else:
                    yield Found(*last, Look(why + _signal(code, why)))
                    if examiner.next + 1 < examiner.stop:
                        retry.append((examiner.split, examiner.next + 1, examiner.stop))
                examiners[examiners.index(examiner)] = _begun(context, images, limits)
    finally:
        for examiner in examiners:
            examiner.end()


def _begun(context: str, images: Mapping[str, Images], limits: Limits) -> _Examiner:
    for is_last in (False, True):
        try:
            return _Examiner(multiprocessing.get_context(context), images, limits)
        except OSError as error:  # it, or the server that forks it, died before it had read what it is to do
            if is_last:
                raise _not_begun(error.strerror or str(error)) from error
            if context == "forkserver":
                start_fork_server()
    raise AssertionError


def _not_begun(why: str) -> RunError:
    return RunError(
        f"a process that looks at images could not begin ({why}). Hint: prepare.num_workers=1 needs the least memory; "
        "data.mp_context=spawn starts it another way."
    )


def _orders(images: Mapping[str, Images], num_workers: int) -> list[tuple[str, int, int]]:
    orders = []
    for split, members in images.items():
        size = max(1, min(CHUNK, len(members) // (4 * num_workers)))
        orders += [(split, begin, min(begin + size, len(members))) for begin in range(0, len(members), size)]
    return orders


def _answers(examiner: _Examiner) -> Iterator[Found]:
    """What it has said so far. Raises EOFError once it is dead and all it said is read."""
    while examiner.connection.poll():
        said = examiner.connection.recv()
        examiner.since_s = time.monotonic()
        if said is None:
            examiner.is_ready = True
            return
        yield Found(examiner.split, examiner.next, said)
        examiner.next += 1
        if examiner.is_free:
            return


def _signal(code: int | None, why: str) -> str:
    if code is None or code >= 0 or why != DIED:
        return ""
    name = signal.Signals(-code).name
    return f" ({name}, twice: the machine ran out of memory?)" if name == "SIGKILL" else f" ({name})"


# ---- in the process ------------------------------------------------------------------------------------------------


def _work(images: dict[str, Images], limits: Limits, connection: Connection) -> None:
    init_worker(0)
    torch.set_num_threads(1)
    with open(os.devnull, "w") as nowhere:  # noqa: PTH123
        os.dup2(nowhere.fileno(), 2)  # libtiff and libpng speak to the screen
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _bound_memory(limits.memory_mib)
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        connection.send(None)
        while True:
            split, begin, end = connection.recv()
            for index in range(begin, end):
                found = look(images[split], index)
                if found.reason == "MemoryError":
                    found = found._replace(reason=f"it needs more than {limits.memory_mib} MiB (prepare.memory_mib)")
                connection.send(found)


def _bound_memory(mib: int) -> None:
    """Of what the process writes, heap and maps: a packed file that is mapped for reading does not count. Linux alone
    counts maps there (since 4.7); elsewhere there is no such bound."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        now = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmData:"))
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        wanted = now + mib * MIB
        resource.setrlimit(resource.RLIMIT_DATA, (wanted if most < 0 else min(wanted, most), most))
