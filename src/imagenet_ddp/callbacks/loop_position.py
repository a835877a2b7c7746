"""Where in an epoch a training is, as far as stopping and saving depend on it."""

import math

import lightning.pytorch as L


def is_epoch_over(trainer: L.Trainer) -> bool:
    """Whether all batches of the epoch are trained. An epoch can end before: by trainer.max_steps, trainer.max_time, or
    a callback that sets trainer.should_stop."""
    return trainer.fit_loop.batch_idx + 1 >= trainer.num_training_batches


def is_update(trainer: L.Trainer) -> bool:
    """Whether the last batch completed an update of the weights: else a stop loses the gradients so far."""
    return (trainer.fit_loop.batch_idx + 1) % trainer.accumulate_grad_batches == 0 or is_epoch_over(trainer)


def validates_next(trainer: L.Trainer) -> bool:
    """Whether a validation follows the last batch."""
    every, every_n_epochs = trainer.val_check_batch, trainer.check_val_every_n_epoch
    if not trainer.enable_validation or every in (None, math.inf):
        return False
    if every_n_epochs is None:  # counted over the epochs
        return (trainer.fit_loop.total_batch_idx + 1) % every == 0
    return (trainer.current_epoch + 1) % every_n_epochs == 0 and (trainer.fit_loop.batch_idx + 1) % every == 0
