"""Save and stop on a signal, at the same position on all ranks (see stop_agreement.py). SLURM sends the signal before
the time limit. --signal in scripts/*.sbatch sets the time between the two."""

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
        """If the ranks have agreed to stop here, save with the trainer's ResumeCheckpoint, if it has one, and raise
        Stopped.

        offset: place within the current batch: 0 after its training step, 1 in a validation, 2 at the end of the epoch.
        """
        if self._agreement.must_stop(3 * _num_batches(trainer) + offset, leave=leave):
            if not before_validation:
                _log_last(trainer)
            if checkpoint := find_callback(trainer, ResumeCheckpoint):
                checkpoint.save_stopped(trainer, before_validation)
            assert self._agreement.signal_number is not None
            raise Stopped(self._agreement.signal_number)


class GracefulStopInValidation(_StopAt):
    """Stop within a validation. Must precede all callbacks that use collectives, because a rank that is already in such
    a collective cannot stop before it."""

    def setup(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        # Lightning's SIGTERM handler calls a collective at an arbitrary point of the program, and hangs. Lightning also
        # broadcasts a flag and reads it back in every training step. Both methods are private, so the version of
        # Lightning is bounded, and tests/distributed/test_several_hosts.py tests these overrides.
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
        # during a validation, Lightning's averaging callbacks replace the weights by their average
        is_swapped = find_callback(trainer, WeightAveraging) is not None
        return not (trainer.sanity_checking or is_swapped) and is_update(trainer)


class GracefulStop(_StopAt, Checkpoint):
    """Stop after a step or an epoch. Must be the last callback, so that the checkpoint includes the work of all other
    callbacks. The class is a Checkpoint because Lightning calls these callbacks after all others."""

    _delayed = False  # trainer.should_stop was set within an update, and takes effect when the update is complete

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._delay_stop(trainer)
        # otherwise the run stops at the end of the epoch, or in the validation that follows this batch
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
    """Pass the metrics of the last step, or of the epoch after its last step, to the loggers. Lightning would do this
    only after the current hook, and a resumed run does not train the step again.

    Uses private API of Lightning, so its version is bounded, and tests/callbacks/test_graceful_stop.py tests this.
    """
    connector, epoch_loop = trainer._logger_connector, trainer.fit_loop.epoch_loop
    if is_epoch_over(trainer):
        epoch_loop._batches_that_stepped -= 1  # like Lightning, log the epoch's metrics at its last step
        connector.update_train_epoch_metrics()
        epoch_loop._batches_that_stepped += 1
    else:
        connector.update_train_step_metrics()


def _num_batches(trainer: L.Trainer) -> int:
    """Return the number of training batches begun in the whole run, the same on every rank."""
    return trainer.fit_loop.total_batch_idx + 1
