"""End all ranks soon after one fails. A rank that fails posts the reason in the run's store; a rank that was killed, or
whose machine is gone, is found by the others."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from imagenet_ddp.distributed.failure import post_failure, read_failure
from imagenet_ddp.distributed.meet import Meeting
from imagenet_ddp.distributed.messages import Messages
from imagenet_ddp.distributed.spawn import GONE, LOST
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.bounded_wait import Deadline, run_bounded
from imagenet_ddp.system.process import command_is_gone, exit_at_once
from imagenet_ddp.system.say_once import say_once

BEAT_S = 0.5
LOST_BEATS = 40  # a rank that misses as many is gone; a thread that reads from a slow disk may hold up the others
GRACE_S = 3.0  # time for a rank to raise its own error, before it is ended because another rank failed
STOP_GRACE_S = 1.0  # time for the same signal to stop this rank, too
LEAVE_S = 10.0  # how long rank 0 waits for the others at the end
LEFT = -(2**40)  # of a rank's beats, once its exit is normal


class FailureWatch:
    """Post this rank's failure, and end this process if another rank's failure is the first.

    client: opens the watch's own connection. Every rank counts a beat up in the
    store; rank 0 looks for beats that stand still, and rank 1 for those of rank 0, because a launcher may serve the
    store. Beats are counted instead of seconds, because a suspended machine suspends its other ranks, too. The end of a
    process on this machine is seen at once by its number.
    """

    def __init__(self, meeting: Meeting, client: Callable[[], Messages]):
        place = meeting.place
        self._rank, self._label, self._is_worker = meeting.number, place.label, place.is_worker
        self._own_command, self._server = "", "the launcher" if place.store_is_served else self._label(0)
        if place.is_worker:  # the command of node 0 serves the store
            self._own_command, self._server = meeting.command(place.node_rank or 0), meeting.command(0)
        own = meeting.members[self._rank].pids
        self._local = {
            rank: member.pid for rank, member in enumerate(meeting.members) if rank != self._rank and member.pids == own
        }
        self._store = client()
        self._lock, self._ended, self._answered = threading.Lock(), threading.Event(), True
        self.failed: str | None = None  # the first failure, of this rank or of another rank
        self.code = 1  # exit code for that failure
        self.note: Callable[[str], object] = lambda text: None  # writes to the log of this rank
        self.when_lost: Callable[[], object] = lambda: None  # runs after the message that another rank is gone
        watched = {0: range(1, meeting.size), 1: [0]}.get(self._rank, [])
        # rank -> (beats, how often they were the same)
        self._beats: dict[int, tuple[int, int]] = dict.fromkeys(watched, (0, 0))
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._watch, self._require_answers)]
        for thread in self._threads:
            thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether the first failure is that a process is gone."""
        return (self.failed or "").endswith(GONE)

    def fail(self, what: str, code: int = 1, *, follows: bool = False) -> bool:
        """Report to all ranks that this rank ends. Return False if another rank failed before, because that failure is
        the likely cause.

        code: exit code, 1 if this rank failed, 2 if it was refused, 128 + n if signal n stopped it; a worker whose
        command is gone says that instead of SIGTERM. follows: whether this failure is probably the end of a connection
        to a rank that was killed, which is therefore looked for.
        """
        end = time.monotonic() + (BEAT_S * (LOST_BEATS + 4) if follows else 0)
        while self.failed is None and time.monotonic() < end:
            time.sleep(BEAT_S / 5)
        what = {1: f"failed: {what}", 2: f"refused: {what}"}.get(code, what)
        sentence = f"{self._label(self._rank)} {' '.join(what.split())}"
        if self._is_worker and code == 128 + signal.SIGTERM and command_is_gone():
            sentence, code = f"{self._own_command} {GONE}", 1
        with self._lock:
            if self.failed is not None:
                return False
            self.failed, self.code = sentence, code
        first = run_bounded(lambda: post_failure(self._store, code, [sentence]), BEAT_S * 4)
        if first is not None and first != (code, [sentence]):
            self.code, self.failed = first[0], " ".join(first[1])
            return False
        if self._rank == 0:
            time.sleep(3 * BEAT_S)  # the others read the reason from the store, which this process may serve
        return True

    def end(self, *, wait: bool = True) -> None:
        """Mark this rank's exit as normal. Rank 0, which may serve the store, waits up to LEAVE_S seconds for the other
        ranks to leave first."""
        if self._ended.is_set():
            return

        deadline = Deadline(LEAVE_S)  # of the thread, too: Python's exit aborts while it is in C++ code

        def wait_for_others() -> None:
            present = list(self._beats)
            while not self.failed and not deadline.is_over:
                if not (present := [each for each in present if self._beats_of(each) >= 0]):
                    return
                time.sleep(0.02)

        if wait and self._rank == 0:
            run_bounded(wait_for_others, LEAVE_S)
        self._ended.set()
        run_bounded(lambda: self._store.store.set(self._key(self._rank), str(LEFT)), BEAT_S * 4)
        self._threads[0].join(BEAT_S)

    def _key(self, rank: int) -> str:
        return f"alive/{rank}"

    def _beats_of(self, rank: int) -> int:
        return self._store.add(self._key(rank), 0)

    def _watch(self) -> None:
        try:
            while not self._ended.wait(BEAT_S):
                self._store.add(self._key(self._rank), 1)
                self._find_silent()
                if self._rank and self._beats_of(0) < 0:
                    return  # rank 0 has waited long enough, and the store may end with it
                for rank, pid in list(self._local.items()):
                    if not _exists(pid):
                        del self._local[rank]
                        if self._beats_of(rank) >= 0:
                            post_failure(self._store, 1, [f"{self._label(rank)} {GONE}"])
                if failure := read_failure(self._store):
                    return self._record(failure[0], " ".join(failure[1]))
                self._answered = True
        except ConfigError as error:  # a stranger has posted a failure
            self._record(1, " ".join(map(str, error.mistakes)))
        except Exception:  # the store's process has ended
            self._record(1, f"{self._server} {GONE}")

    def _find_silent(self) -> None:
        for rank, (before, silent) in list(self._beats.items()):
            beats = self._beats_of(rank)
            self._beats[rank] = (beats, silent + 1 if beats == before else 0)
            if beats < 0:
                del self._beats[rank]
            elif silent > LOST_BEATS:
                post_failure(self._store, 1, [f"{self._label(rank)} {GONE}"])

    def _require_answers(self) -> None:
        """Record a failure if the store's machine is gone: a call then blocks for as long as TCP tries again."""
        silent = 0
        while not self._ended.wait(BEAT_S) and self._threads[0].is_alive():
            silent, self._answered = (0 if self._answered else silent + 1), False
            if silent > LOST_BEATS:
                return self._record(1, f"{self._server} {GONE}")

    def _record(self, code: int, sentence: str) -> None:
        with self._lock:
            is_first = self.failed is None
            if is_first:
                self.failed, self.code = sentence, code
        if is_first and not self._ended.is_set():
            threading.Thread(target=self._end_process, name="failure", daemon=True).start()

    def _end_process(self) -> None:
        time.sleep(STOP_GRACE_S if self.code > 128 else GRACE_S)
        self.end_process()

    def end_process(self) -> NoReturn:
        """Exit, with a message that names the rank whose failure is the cause."""
        failed = self.failed or ""
        sentence = f"rank {self._rank} ends because {failed}"
        say_once(sentence, about=failed)
        run_bounded(lambda: self.note(f"{sentence}."), BEAT_S * 4)
        if self.is_lost:
            run_bounded(self.when_lost, BEAT_S * 4)  # it may look at a disk that does not answer, either
        exit_at_once(LOST if self._is_worker and self.is_lost else self.code)


def _exists(pid: Any) -> bool:
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
