"""All ranks stop at the same step, save, and leave; without a collective or a device sync per step.

A signal only sets a flag (signals.py). A thread on each rank, with a connection of its own to the rendezvous store,
carries it to the others: rank 0 proposes a position a little ahead, every rank answers whether it can still stop
there, and only when all can is it decided; else rank 0 proposes a later one. The training thread compares two
integers per step, and waits only where it has come to a position that is proposed but not yet decided.

Positions are the same on all ranks and grow: 3k after training batch k (of the whole run), 3k + 1 in the validation
after it, 3k + 2 at the end of the epoch. A run stops at the first position that is not before the decided one.
"""

import itertools
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging
from torch.distributed import Store

from imagenet_ddp.callbacks.loop_position import is_epoch_over, is_update, validates_next
from imagenet_ddp.runs.signals import Signals, Stopped
from imagenet_ddp.system.text import first_line

POLL_S = 0.1  # of the store, by the thread
ANSWER_S = 5.0  # longest wait for another rank's thread; steps may take longer, its thread does not


class StopAgreement:
    """Where to stop. store_client makes a store connection for the thread; None where there is one process."""

    def __init__(self, signals: Signals, rank: int, world_size: int, store_client: Callable[[], Store] | None):
        self._signals, self._rank, self._world_size = signals, rank, world_size
        self._lock = threading.Condition()
        self._passed = -1  # highest position that lies behind
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
        with self._lock:
            self._passed = position

    def arrive(self, position: int, *, leave: bool = True) -> bool:
        """Whether to stop here. leave: this position is passed if not; False where one comes again (each validation
        batch)."""
        if self._thread is None:
            self.signal_number = self._signals.received
            return self.signal_number is not None
        with self._lock:
            self._validating = not leave
            if self._proposed is not None and position >= self._proposed:
                self._lock.wait_for(lambda: self._decided or self._proposed is None, timeout=2 * ANSWER_S)
                if self._decided:
                    return True
            if leave:
                self._passed = position
            return False

    def end(self) -> None:
        """The run is over: a rank that leaves now is no longer waited for."""
        self._ending = True
        if self._thread is not None:
            self._thread.join(2 * POLL_S)

    def _watch(self, store_client: Callable[[], Store]) -> None:
        try:
            store = store_client()
            while not self._ending:
                if self._signals.received:
                    # the first signal counts, whichever rank had it
                    store.compare_set("stop/signal", "", str(self._signals.received))
                if store.check(["stop/signal"]):
                    self.signal_number = int(store.get("stop/signal"))
                    self._agree(store)
                    return
                time.sleep(POLL_S)
        except Exception as error:
            # the run itself needs the store no longer, but the next signal cannot be agreed upon
            while not self._ending and not self._signals.received:
                time.sleep(POLL_S)
            if not self._ending:
                self._give_up(f"the rendezvous store does not answer ({first_line(error)})")

    def _agree(self, store: Store) -> None:
        for attempt in itertools.count():
            key = f"stop/{attempt}"
            if self._rank == 0:
                with self._lock:
                    # others may be one batch further; in a validation all are in the same one
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

    def _get(self, store: Store, key: str, whose: str) -> str:
        begin = time.monotonic()
        while not store.check([key]):
            if self._ending:
                raise SystemExit
            if time.monotonic() - begin > ANSWER_S:
                self._give_up(f"{whose} does not answer")
            time.sleep(POLL_S / 10)
        return store.get(key).decode()

    def _give_up(self, reason: str) -> None:
        """The training thread sits in a collective that will never end: only the process's end helps."""
        number = self.signal_number or self._signals.received
        if number:
            print(f"rank {self._rank} leaves without saving: {reason}", file=sys.stderr, flush=True)
            os._exit(128 + number)


class _Asking(L.Callback):
    """save(trainer, before_validation) writes the checkpoint; it is called on all ranks."""

    def __init__(self, agreement: StopAgreement, save: Callable[[L.Trainer, bool], None]):
        self._agreement, self._save = agreement, save

    def _ask(self, trainer: L.Trainer, position: int, *, before_validation: bool = False, leave: bool = True) -> None:
        if self._agreement.arrive(position, leave=leave):
            self._save(trainer, before_validation)
            assert self._agreement.signal_number is not None
            raise Stopped(self._agreement.signal_number)


class GracefulStopInValidation(_Asking):
    """Comes first among the callbacks: a rank that has begun another's collective cannot stop before it."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        # Lightning's SIGTERM handler calls a collective, in the middle of whatever the process was doing, and hangs;
        # and it broadcasts a flag and reads it back in every training step. Both are private: the version is bounded,
        # a test watches.
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._agreement.start_from(3 * _batches(trainer))

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._may_stop(trainer):
            self._ask(trainer, 3 * _batches(trainer) + 1, before_validation=True, leave=False)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._may_stop(trainer):
            self._ask(trainer, 3 * _batches(trainer) + 1, before_validation=True)

    @staticmethod
    def _may_stop(trainer: L.Trainer) -> bool:
        callbacks: Any = trainer.callbacks  # type: ignore[attr-defined]
        # while Lightning's averaging callbacks validate, the average stands in the weights' place
        swapped = any(isinstance(callback, WeightAveraging) for callback in callbacks)
        return not (trainer.sanity_checking or swapped) and is_update(trainer)


class GracefulStop(_Asking, Checkpoint):
    """Comes last: what the other callbacks do after a step, or an epoch, is done and in the checkpoint. A Checkpoint,
    because Lightning calls these after all others."""

    _held = False  # trainer.should_stop, until the update is complete

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._hold_back(trainer)
        # after an epoch's last batch, and where a validation follows, the stop is there
        if not is_epoch_over(trainer) and is_update(trainer) and not validates_next(trainer):
            self._ask(trainer, 3 * _batches(trainer))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._hold_back(trainer)

    def _hold_back(self, trainer: L.Trainer) -> None:
        """Let what another callback ended (EarlyStopping, trainer.max_time) end with the update, not amid it."""
        if is_update(trainer):
            trainer.should_stop |= self._held
            self._held = False
        elif trainer.should_stop:
            trainer.should_stop, self._held = False, True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._ask(trainer, 3 * _batches(trainer) + 2)


def _batches(trainer: L.Trainer) -> int:
    """Training batches begun in the whole run, on every rank the same."""
    return trainer.fit_loop.total_batch_idx + 1
