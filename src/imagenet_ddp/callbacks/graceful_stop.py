"""Save and stop on a signal, at the same position on all ranks (stop_agreement.py). SLURM sends it as long before the
time limit as --signal in scripts/*.sbatch says."""

from typing import Any

import lightning.pytorch as L
from lightning.pytorch.callbacks import Checkpoint, WeightAveraging

from imagenet_ddp.callbacks.checkpoint import ResumeCheckpoint
from imagenet_ddp.callbacks.loop_state import find_callback, is_epoch_over, is_update, validates_next
from imagenet_ddp.callbacks.stop_agreement import StopAgreement
from imagenet_ddp.runs.signals import Stopped


class _StopAt(L.Callback):
    def __init__(self, agreement: StopAgreement):
        self._agreement = agreement

    def _stop_if_agreed(
        self, trainer: L.Trainer, offset: int, *, before_validation: bool = False, leave: bool = True
    ) -> None:
        """Save with the trainer's ResumeCheckpoint, if it has one, and raise Stopped."""
        if self._agreement.must_stop(3 * _num_batches(trainer) + offset, leave=leave):
            if not before_validation:
                _log_last(trainer)
            if checkpoint := find_callback(trainer, ResumeCheckpoint):
                checkpoint.save_stopped(trainer, before_validation)
            assert self._agreement.signal_number is not None
            raise Stopped(self._agreement.signal_number)


class GracefulStopInValidation(_StopAt):
    """Stop within a validation. Must come first: a rank that has begun another callback's collective cannot stop before
    it."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        # Lightning's SIGTERM handler calls a collective in the middle of whatever the process was doing, and hangs; and
        # it broadcasts a flag and reads it back in every training step. Both are private: the version is bounded,
        # tests/distributed/test_several_hosts.py watches.
        trainer._signal_connector.register_signal_handlers = lambda: None  # type: ignore[method-assign]
        trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # type: ignore[method-assign]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._agreement.start_from(3 * _num_batches(trainer))

    def on_validation_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self._may_stop(trainer):
            self._stop_if_agreed(trainer, 1, before_validation=True, leave=False)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._may_stop(trainer):
            self._stop_if_agreed(trainer, 1, before_validation=True)

    @staticmethod
    def _may_stop(trainer: L.Trainer) -> bool:
        # while Lightning's averaging callbacks validate, the average stands in for the weights
        is_swapped = find_callback(trainer, WeightAveraging) is not None
        return not (trainer.sanity_checking or is_swapped) and is_update(trainer)


class GracefulStop(_StopAt, Checkpoint):
    """Stop after a step or an epoch. Must come last, so that the work of the other callbacks is done and in the
    checkpoint; a Checkpoint, because Lightning calls these after all others."""

    _delayed = False  # trainer.should_stop was set within an update, and takes effect when the update is complete

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._delay_stop(trainer)
        # the run stops there instead: after an epoch's last batch, and in a validation that follows
        if not is_epoch_over(trainer) and is_update(trainer) and not validates_next(trainer):
            self._stop_if_agreed(trainer, 0)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not trainer.sanity_checking:
            self._delay_stop(trainer)

    def _delay_stop(self, trainer: L.Trainer) -> None:
        """Delay a stop requested by another callback (EarlyStopping, trainer.max_time) until the end of the update."""
        if is_update(trainer):
            trainer.should_stop |= self._delayed
            self._delayed = False
        elif trainer.should_stop:
            trainer.should_stop, self._delayed = False, True

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop_if_agreed(trainer, 2)


def _log_last(trainer: L.Trainer) -> None:
    """Pass the figures of the last step (after an epoch's last step: those of the epoch) to the loggers. Lightning
    would do so only after this hook, and a resumed run does not train the step again. Private API: the version is
    bounded, and tests/callbacks/test_graceful_stop.py watches it."""
    connector, epoch_loop = trainer._logger_connector, trainer.fit_loop.epoch_loop
    if is_epoch_over(trainer):
        epoch_loop._batches_that_stepped -= 1  # as Lightning: an epoch's figures are logged at its last step
        connector.update_train_epoch_metrics()
        epoch_loop._batches_that_stepped += 1
    else:
        connector.update_train_step_metrics()


def _num_batches(trainer: L.Trainer) -> int:
    """Return the number of training batches begun in the whole run, the same on every rank."""
    return trainer.fit_loop.total_batch_idx + 1
