"""Report that validation is no better than guessing, which may mean that labels are wrong."""

from collections.abc import Callable

import lightning.pytorch as L
import numpy as np
from lightning.pytorch.callbacks import WeightAveraging

from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.callbacks.running_metrics import RunningMetrics
from imagenet_ddp.data.datamodule import ImageDataModule
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.models.lightning_module import ImageClassifier
from imagenet_ddp.system.text import count_noun, percent

MIN_EPOCHS = 3  # epochs after which an accuracy at chance level is meaningful
MIN_STEPS = 500  # optimizer steps after which batch norm's statistics have caught up with the weights
MARGIN = 0.1  # share of the way from guessing to 100 % below which an accuracy is not clearly better than guessing


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
        data: ImageDataModule = trainer.datamodule  # type: ignore[attr-defined]
        module: ImageClassifier = pl_module  # type: ignore[assignment]
        trained = metrics.epoch_means.top1
        if learns(trained, data, module):
            for line in at_chance(metrics.best.value, trained, data, module):
                self._say(f"After {metrics.num_epochs} epochs: {line}")


def learns(trained: float, data: ImageDataModule, module: ImageClassifier) -> bool:
    """Return whether train/top1, a fraction, is clearly better than guessing. Half of the way from guessing to 100 % is
    always enough, because with few images the bound on luck may exceed 100 %."""
    guess = _guess(data.train_images, data, module)
    luck = _luck(guess, len(data.train_images))
    return trained > guess + min(max(luck, MARGIN * (1 - guess)), 0.5 * (1 - guess))


def at_chance(best: float, trained: float, data: ImageDataModule, module: ImageClassifier) -> list[str]:
    """Return a list with one line if the best val/top1 is no better than guessing, or cannot be told from it, otherwise
    an empty list.

    best: best val/top1, a fraction. trained: train/top1 of the last epoch, a fraction.
    """
    num_classes, num_images = len(data.source.classes), module.num_counted[0]
    guess = _guess(data.val_images, data, module)
    if num_classes < 2 or best > guess + _luck(guess, num_images):
        return []
    if best > guess + MARGIN * (1 - guess):
        return [f"Val top-1 cannot be told from guessing with only {count_noun(num_images, 'validation image')}."]
    how = "" if _is_balanced(data, module) else "always answering the most frequent one: "
    line = f"Val top-1 is no better than guessing among {num_classes} classes ({how}{percent(guess)})"
    if learns(trained, data, module):
        return [
            f"{line}, while training reaches {percent(trained)}. Check the labels of the validation images: "
            "`python -m imagenet_ddp.report RUN` shows which classes they are mistaken for."
        ]
    return [f"{line}, and neither is training. Check the labels in train_batch.png, or try a lower optim.lr."]


def _guess(images: Images, data: ImageDataModule, module: ImageClassifier) -> float:
    """Return the accuracy of guessing. A net that has learned nothing answers the most frequent class, unless the
    training balances the classes."""
    if _is_balanced(data, module):
        return 1 / max(len(data.source.classes), 1)
    return float(np.bincount(images.targets).max() / len(images))


def _is_balanced(data: ImageDataModule, module: ImageClassifier) -> bool:
    return data.options["sampling"] == "balanced" or module.loss.weights is not None


def _luck(guess: float, num_images: int) -> float:
    """Return by how much the accuracy of guessing may exceed its mean by luck: three standard deviations."""
    return 3 * (guess * (1 - guess) / max(num_images, 1)) ** 0.5
