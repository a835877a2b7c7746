"""Stop all ranks at the same step, without a collective or a device sync per step.

A signal only sets a flag (runs/signals.py). Each rank has a thread with its own connection to the rendezvous store,
which reports the signal to the other ranks. Rank 0 then proposes a position slightly ahead, and every rank answers
whether it can still stop there. If all ranks can, rank 0 decides on this position. Otherwise it proposes a later one.
The training thread compares two integers per step, and waits only at a position that is proposed but not yet decided.

Positions are the same on all ranks and increase: 3k after training batch k (of the whole run), 3k + 1 in the validation
after it, 3k + 2 at the end of the epoch. A run stops at the first position at or after the decided one.
"""

import itertools
import sys
import threading
import time
from collections.abc import Callable

from torch.distributed import Store

from imagenet_ddp.runs.signals import Signals
from imagenet_ddp.system.process_exit import exit_at_once
from imagenet_ddp.system.text import first_line

POLL_S = 0.1  # time between two reads of the store by the thread
ANSWER_S = 5.0  # longest wait for another rank's thread, which answers even during a long step


class StopAgreement:
    """Agree with the other ranks on a position at which to stop. store_client: function that opens the thread's
    connection to the store; None for a single process."""

    def __init__(self, signals: Signals, rank: int, world_size: int, store_client: Callable[[], Store] | None):
        self._signals, self._rank, self._world_size = signals, rank, world_size
        self._lock = threading.Condition()
        self._passed = -1  # highest position this rank has passed
        self._validating = False
        self._proposed: int | None = None
        self._decided = False
        self._ending = False
        self.signal_number: int | None = None
        self._thread: threading.Thread | None = None
        if store_client is not None:
            self._thread = threading.Thread(target=self._watch, args=(store_client,), name="stop", daemon=True)
            self._thread.start()

    def start_from(self, position: int) -> None:
        """Set the position at which a resumed run starts."""
        with self._lock:
            self._passed = position

    def must_stop(self, position: int, *, leave: bool = True) -> bool:
        """Return whether to stop at this position. Wait for the decision if this position has been proposed. leave:
        mark the position as passed if the run does not stop; False for a position that is tested several times, as
        before each validation batch."""
        if self._thread is None:
            self.signal_number = self._signals.received
            return self.signal_number is not None
        with self._lock:
            self._validating = not leave
            # The thread has already answered that this rank can stop here. If this rank continued before the decision,
            # the other ranks might wait for it. The thread ends either this wait or the process. When this rank wakes,
            # a later position may already be proposed, at which it must not stop yet.
            while self._is_proposed(position) and not self._decided and self._thread.is_alive():
                self._lock.wait(ANSWER_S)
            if self._decided and self._is_proposed(position):
                return True
            if leave:
                self._passed = position
            return False

    def end(self) -> None:
        """End the thread. To be called when the run is over, so that the other ranks need not wait for this one."""
        self._ending = True
        if self._thread is not None:
            self._thread.join(2 * POLL_S)

    def _is_proposed(self, position: int) -> bool:
        return self._proposed is not None and position >= self._proposed

    def _watch(self, store_client: Callable[[], Store]) -> None:
        try:
            store = store_client()
            while not self._ending:
                if self._signals.received:
                    # if several ranks receive signals, the first one counts
                    store.compare_set("stop/signal", "", str(self._signals.received))
                if store.check(["stop/signal"]):
                    self.signal_number = int(store.get("stop/signal"))
                    self._agree(store)
                    return
                time.sleep(POLL_S)
        except Exception as error:
            # the run continues without the store, but the ranks cannot agree on a position for this or a later signal
            while not (self._ending or self._signals.received or self.signal_number):
                time.sleep(POLL_S)
            if not self._ending:
                self._give_up(f"the rendezvous store does not answer ({first_line(error)})")

    def _agree(self, store: Store) -> None:
        for attempt in itertools.count():
            key = f"stop/{attempt}"
            if self._rank == 0:
                with self._lock:
                    # other ranks may be one batch ahead, but during a validation all ranks are in the same one
                    ahead = 1 if self._validating else 4
                    store.set(f"{key}/position", str(self._passed + ahead))
            position = int(self._get(store, f"{key}/position", "rank 0"))
            with self._lock:
                in_time = self._passed < position
                self._proposed = position if in_time else None
            store.set(f"{key}/rank{self._rank}", "yes" if in_time else "no")
            if self._rank == 0:
                answers = [self._get(store, f"{key}/rank{rank}", f"rank {rank}") for rank in range(self._world_size)]
                store.set(f"{key}/decision", "stop" if all(answer == "yes" for answer in answers) else "later")
            decision = self._get(store, f"{key}/decision", "rank 0")
            with self._lock:
                self._decided = decision == "stop"
                if not self._decided:
                    self._proposed = None
                self._lock.notify_all()
            if self._decided:
                return

    def _get(self, store: Store, key: str, owner: str) -> str:
        pause_s = POLL_S / 10
        # polls are counted instead of seconds, because a suspended machine suspends its other ranks too
        polls_left = round(ANSWER_S / pause_s)
        while not store.check([key]):
            if self._ending:
                raise SystemExit
            if polls_left == 0:
                self._give_up(f"{owner} does not answer")
            polls_left -= 1
            time.sleep(pause_s)
        return store.get(key).decode()

    def _give_up(self, reason: str) -> None:
        """End the process, because its training thread is in a collective that will never return."""
        number = self.signal_number or self._signals.received
        if number:
            print(f"rank {self._rank} exits without saving: {reason}", file=sys.stderr, flush=True)
            exit_at_once(128 + number)
