"""Images packed by several processes, given back in the order asked for."""

import contextlib
import itertools
import multiprocessing
import queue
import threading
import traceback
from collections.abc import Iterator, Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch

from imagenet_ddp.data.loading.system_counters import process_states
from imagenet_ddp.data.loading.worker_processes import choose_mp_context, init_worker, start_fork_server
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.errors import RunError
from imagenet_ddp.prepare.pack.encode import Packed, Packing, pack
from imagenet_ddp.system import console

CHUNK = 4  # images per message between processes
LOOK_S = 1.0  # between two looks at the clock
SAY_S, TIMEOUT_S = 60.0, 1800.0  # of a wait for images: until a line about it, until its end
AHEAD = 3  # chunks per process that are begun or wait to be taken: bounds the memory
_BEGUN = -1  # number of a process's first answer

# number of the chunk, its images or why there are none
_Answer = tuple[int, list[Packed] | BaseException]


class _Packer:
    """One process, and a pipe that no other has: its death ends the pipe, also in the midst of an answer. A thread
    takes the answers out, so that it can go on while this process writes."""

    def __init__(self, context: Any, images: Mapping[str, Images], packing: Packing):
        self._connection, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(dict(images), packing, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.owes = 1  # answers

    def order(self, number: int, split: str, indices: list[int]) -> None:
        self.owes += 1
        with contextlib.suppress(OSError):  # it has just died, which its answer tells
            self._connection.send((number, split, indices))

    def listen(self, answers: queue.SimpleQueue) -> None:
        threading.Thread(target=self._listen, args=(answers,), name="packed images", daemon=True).start()

    def _listen(self, answers: queue.SimpleQueue) -> None:
        with contextlib.suppress(EOFError, OSError):
            while True:
                answers.put((self, self._connection.recv()))
        answers.put((self, None))


class Pool:
    """images: split -> its images. With one process, it is this one."""

    def __init__(self, images: Mapping[str, Images], packing: Packing, num_workers: int, mp_context: str):
        self._images, self._packing = images, packing
        self._answers: queue.SimpleQueue[tuple[_Packer, _Answer | None]] = queue.SimpleQueue()
        self._packers: list[_Packer] = []
        self._num_threads = torch.get_num_threads()
        torch.set_num_threads(1)  # for small images threads cost more than they give: half the time, with one
        if num_workers == 1:
            return
        asked = choose_mp_context(mp_context)
        if asked == "forkserver":
            start_fork_server()
        context = multiprocessing.get_context(asked)
        try:
            for _ in range(num_workers):
                self._packers.append(_Packer(context, images, packing))
            for packer in self._packers:  # after the last start: a fork would copy the threads' locks
                packer.listen(self._answers)
            for _ in range(num_workers):  # their start belongs to no image's time
                self._answer()
        except (OSError, EOFError) as error:  # it, or the server that forks it, died before it knew what to do
            self.close()
            raise _ended() from error
        except BaseException:
            self.close()
            raise

    @property
    def processes(self) -> list[Any]:
        return [packer.process for packer in self._packers]

    def map(self, split: str, indices: np.ndarray) -> Iterator[Packed]:
        """Raises RunError where a process was ended from outside."""
        if not self._packers:
            yield from (pack(self._images[split], index, self._packing) for index in indices.tolist())
            return
        chunks = np.array_split(indices, -(-len(indices) // CHUNK))
        orders = iter(enumerate(chunk.tolist() for chunk in chunks))
        packed: dict[int, list[Packed]] = {}
        for number in range(len(chunks)):
            # those that the first one waits for, and some more
            room = AHEAD * len(self._packers) - len(packed) - sum(packer.owes for packer in self._packers)
            for later, chunk in itertools.islice(orders, room):
                min(self._packers, key=lambda packer: packer.owes).order(later, split, chunk)
            while number not in packed:
                done, found = self._answer()
                if isinstance(found, BaseException):
                    raise found
                packed[done] = found
            yield from packed.pop(number)

    def _answer(self) -> _Answer:
        """The next one, whoever it is from."""
        waited_s, said_s = 0.0, SAY_S
        while True:
            with contextlib.suppress(queue.Empty):
                packer, answer = self._answers.get(timeout=LOOK_S)
                if answer is None:
                    raise _ended()
                packer.owes -= 1
                return answer
            waited_s += LOOK_S
            if waited_s < said_s:
                continue
            said_s += SAY_S
            pids = [process.pid for process in self.processes]
            words = f"prepare=pack has waited {waited_s:.0f} s for images from processes {process_states(pids)}"
            if waited_s >= TIMEOUT_S:
                raise RunError(f"{words}. Hint: is the disk of the images still there? Who stopped a process?")
            console.print_message(f"{words}. It ends after {TIMEOUT_S:g} s.")

    def close(self) -> None:
        """Also where a process hangs, or its answers were not taken."""
        torch.set_num_threads(self._num_threads)
        for process in self.processes:
            process.kill()  # to SIGTERM they are deaf
        for process in self.processes:
            process.join(5)  # one whose disk does not answer is not even ended by SIGKILL
        self._packers.clear()


def _ended() -> RunError:
    return RunError(
        "a process that packs images was ended from outside, most likely because the machine ran out of "
        "memory. Hint: prepare.num_workers=1 needs the least; type the same again, it goes on where it was."
    )


# ---- in the process ------------------------------------------------------------------------------------------------


def _work(images: dict[str, Images], packing: Packing, connection: Connection) -> None:
    init_worker(0)
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, OSError):  # the parent has gone
        connection.send((_BEGUN, []))
        while True:
            number, split, indices = connection.recv()
            connection.send((number, _packed(images[split], indices, packing)))


def _packed(images: Images, indices: list[int], packing: Packing) -> list[Packed] | BaseException:
    try:
        return [pack(images, index, packing) for index in indices]
    except Exception as error:
        error.add_note(traceback.format_exc())  # a pickled error forgets where it was raised
        return error
