"""Report that validation is no better than guessing, which may mean that labels are wrong."""

from collections.abc import Callable

import lightning.pytorch as L
from lightning.pytorch.callbacks import WeightAveraging

from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.callbacks.running_metrics import RunningMetrics
from imagenet_ddp.system.text import percent

MIN_EPOCHS = 3  # epochs after which an accuracy at chance level is meaningful
MIN_STEPS = 500  # optimizer steps after which batch norm's statistics have caught up with the weights


class ChanceNote(L.Callback):
    """Log a line if train/top1 is clearly above chance but the best val/top1 is not.

    The check runs once, as soon as MIN_EPOCHS and MIN_STEPS allow it, so that the rest of the training can still be
    saved. It does not run with weight averaging, because an average may lag behind the weights for a long time. say:
    function that writes a line to the log.
    """

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._is_done = False

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        metrics = find_callback(trainer, RunningMetrics)
        if self._is_done or metrics is None or metrics.best.value is None or metrics.epoch_means is None:
            return
        if (
            metrics.num_epochs < MIN_EPOCHS
            or trainer.global_step < MIN_STEPS
            or find_callback(trainer, WeightAveraging)
        ):
            return
        self._is_done = True
        num_classes, trained = len(trainer.datamodule.source.classes), metrics.epoch_means.top1  # type: ignore[attr-defined]
        if learns(trained, num_classes):
            for line in at_chance(metrics.best.value, trained, num_classes, pl_module.num_counted[0]):  # type: ignore[index]
                self._say(f"After {metrics.num_epochs} epochs: {line}")


def learns(trained: float, num_classes: int) -> bool:
    """Return whether train/top1, a fraction, is clearly above chance."""
    return trained > 2 / max(num_classes, 1) + 0.1


def at_chance(best: float, trained: float, num_classes: int, num_images: int) -> list[str]:
    """Return a list with one line if the best val/top1 is no better than guessing, otherwise an empty list.

    best: best val/top1, a fraction. trained: train/top1 of the last epoch, a fraction. num_images: number of validation
    images.
    """
    chance = 1 / max(num_classes, 1)
    if num_classes < 2 or best > chance + 3 * (chance * (1 - chance) / max(num_images, 1)) ** 0.5:
        return []
    line = f"Val top-1 is no better than guessing among {num_classes} classes ({percent(chance)})"
    if learns(trained, num_classes):
        return [
            f"{line}, while training reaches {percent(trained)}. Check the labels of the validation images: "
            "`python -m imagenet_ddp.report RUN` shows which classes they are mistaken for."
        ]
    return [f"{line}, and neither is training. Check the labels in train_batch.png, or try a lower optim.lr."]
