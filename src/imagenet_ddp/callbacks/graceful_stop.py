"""Decide, at the same position on all ranks, that a training ends: for a signal, or because a time limit has passed.
sequence.py saves and stops. SLURM sends the signal before its own time limit; --signal in scripts/*.sbatch sets the
time between the two."""

import time

import lightning.pytorch as L
import torch
from lightning.pytorch.callbacks import WeightAveraging

from imagenet_ddp.callbacks.loop_state import (
    find_callback,
    find_callbacks,
    is_update,
)
from imagenet_ddp.callbacks.run_end import TimeLimit
from imagenet_ddp.runs.signals import Signals

EXCHANGE_S = 1.0  # time between two exchanges; the first follows the first batch, whose time is unknown


class _Exchange:
    """Exchange numbers with the other ranks about every EXCHANGE_S seconds, measured in batches, because the ranks have
    the same batches but not the same clock."""

    def __init__(self) -> None:
        self._wanted = 1  # batches between two exchanges, the same on all ranks
        self.begin()

    def begin(self) -> None:
        self._num_batches, self._start_s, self._last_s = 0, time.monotonic(), time.monotonic()

    def skip(self, seconds: float) -> None:
        """Do not count this time, which another stage has taken since the last batch."""
        self._start_s += seconds
        self._last_s += seconds

    def is_due(self) -> bool:
        """Count a batch. Return whether an exchange follows it."""
        self._num_batches, self._last_s = self._num_batches + 1, time.monotonic()
        return self._num_batches >= self._wanted

    def highest(self, numbers: tuple[int, ...], device: torch.device) -> list[int]:
        """Return the highest of each number over all ranks. Waits for the device. Call on all ranks."""
        if self._num_batches:
            if device.type == "cuda":  # it computes the batches some time after this process has requested them
                torch.cuda.synchronize(device)
                self._last_s = time.monotonic()
            batch_s = (self._last_s - self._start_s) / self._num_batches
            self._wanted = max(1, round(EXCHANGE_S / max(batch_s, 1e-4)))
        # the highest numbers, and the lowest count; not strategy.reduce, which adds a barrier
        values = torch.tensor([*numbers, -self._wanted], device=device)
        torch.distributed.all_reduce(values, torch.distributed.ReduceOp.MAX)
        highest: list[int] = values.tolist()  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        self._wanted = -highest.pop()
        self.begin()
        return highest


class GracefulStop:
    """Decide with the other ranks whether to stop, after an update, within a validation, or after an epoch. sequence.py
    calls these methods, and stops if one returns the number of a signal; 0 means that the training goes on.

    A signal only sets a flag (runs/signals.py). About once per second, and at the end of each epoch, the ranks exchange
    their flags, and whether the time of a TimeLimit is over, so that all of them stop at the same batch. A single
    process looks at both after every batch. Call the methods on all ranks.
    """

    def __init__(self, signals: Signals):
        self._signals = signals
        self.lost_node: int | None = None  # as in Signals, of any rank
        self._training, self._validation = _Exchange(), _Exchange()
        self._validation_start_s = 0.0
        self._limits: list[TimeLimit] = []
        self._delayed = False  # trainer.should_stop was set within an update, and takes effect when it is complete
        self._may_stop_in_validation = True

    def setup(self, trainer: L.Trainer) -> None:
        # Lightning's SIGTERM handler calls a collective at an arbitrary point of the program, and hangs. Lightning also
        # broadcasts a flag and reads it back in every training step. Both methods are private, so the version of
        # Lightning is bounded, and tests/distributed/test_several_hosts.py tests these overrides.
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]
        self._limits = find_callbacks(trainer, TimeLimit)
        # during a validation, Lightning's averaging callbacks replace the weights by their average
        self._may_stop_in_validation = find_callback(trainer, WeightAveraging) is None

    def begin_epoch(self) -> None:
        self._training.begin()

    def delay(self, trainer: L.Trainer, *, is_update: bool) -> None:
        """Delay a stop requested by another callback, or by a time limit, until the end of the update."""
        if is_update:
            trainer.should_stop |= self._delayed
            self._delayed = False
        elif trainer.should_stop:
            trainer.should_stop, self._delayed = False, True

    def after_update(self, trainer: L.Trainer) -> int:
        """Return the signal on which to stop, and end the training if the time of a limit is over."""
        return self._agree(trainer, self._training)

    def after_last_update(self, trainer: L.Trainer) -> None:
        """After the last update of an epoch: end the training if the time of a limit is over."""
        if self._limits:
            self._agree(trainer, self._training, now=True)

    def after_epoch(self, trainer: L.Trainer) -> int:
        """Return the signal on which to stop. A time limit that has passed since this state was saved ends the next
        epoch."""
        return self._agree(trainer, self._training, now=True, with_limits=False)

    def begin_validation(self) -> None:
        self._validation_start_s = time.monotonic()
        self._validation.begin()

    def before_validation_batch(self, trainer: L.Trainer) -> int:
        """Return the signal on which to stop, and end the training if the time of a limit is over."""
        may_stop = self._may_stop_in_validation and not trainer.sanity_checking and is_update(trainer)
        return self._agree(trainer, self._validation) if may_stop else 0

    def end_validation(self, trainer: L.Trainer) -> None:
        self._training.skip(time.monotonic() - self._validation_start_s)
        if not trainer.sanity_checking:
            if self._limits:
                self._agree(trainer, self._training, now=True)
            self.delay(trainer, is_update=is_update(trainer))

    def _agree(self, trainer: L.Trainer, exchange: _Exchange, *, now: bool = False, with_limits: bool = True) -> int:
        """Return the signal that a rank has received, 0 for none, and end the training if a time limit has passed on a
        rank. Call on all ranks. now: exchange both in any case. with_limits: false leaves time limits for later."""
        limits = enumerate(self._limits, 1)
        passed = max((number for number, each in limits if each.elapsed_s(trainer) >= each.limit_s), default=0)
        received, lost = self._signals.received or 0, self._signals.lost_node
        if trainer.world_size > 1:
            if not (now or exchange.is_due()):
                return 0
            numbers = received, passed, -1 if lost is None else lost
            received, passed, lost = exchange.highest(numbers, trainer.strategy.root_device)
        self.lost_node = None if lost == -1 else lost
        if passed and with_limits:
            self._limits[passed - 1].has_passed = trainer.should_stop = True
        return received
