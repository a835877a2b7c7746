"""Report that training waits for images because their augmentation is slow."""

import random
import statistics
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as L

from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.callbacks.running_metrics import RunningMetrics
from imagenet_ddp.data.augment import Augmentation, AugmentedTransform
from imagenet_ddp.data.datamodule import ImageDataModule
from imagenet_ddp.data.transforms import empty
from imagenet_ddp.system.text import percent

WAIT_SHARE = 0.1  # least share of the training time spent waiting for images that is reported
LEAST_SHARE = 0.25  # least share of the loader's time per image spent on augmentation that is reported
NUM_IMAGES = 12  # number of images measured


class AugmentationNote(L.Callback):
    """Log a line if training waits for images and augmentation is a large part of the loader's work.

    After this process's first epoch with a data wait of 10 % or more, measure the CPU time per image for augmentation
    and for reading and cropping. Log both if augmentation takes at least a quarter of the total. say: function that
    writes a line to the log.
    """

    def __init__(self, say: Callable[[str], None]):
        self._say = say
        self._is_done = False

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        data: Any = getattr(trainer, "datamodule", None)
        metrics = find_callback(trainer, RunningMetrics)
        if self._is_done or not trainer.is_global_zero or not isinstance(data, ImageDataModule) or metrics is None:
            return
        transform, wait = data.train_transform, metrics.train_times.data_wait_frac
        if not isinstance(transform, AugmentedTransform) or wait < WAIT_SHARE:
            return
        self._is_done = True
        augment_s, whole_s = augmentation_s(data, transform)
        if augment_s >= LEAST_SHARE * whole_s:
            self._say(wait_line(wait, augment_s, whole_s, transform.augmentation))


def augmentation_s(data: ImageDataModule, transform: AugmentedTransform) -> tuple[float, float]:
    """Return the median CPU seconds per image for the augmentation, and for all of the loader's work."""
    size = transform.size(0)
    out, generator = empty(size, size, 3), random.Random(0)
    augment_s, whole_s = [], []
    for number in range(min(NUM_IMAGES + 1, len(data.train_images))):
        start_s = time.thread_time()
        try:
            transform.base.into(out, data.train_images.open(number), generator)
        except Exception:  # the loader reports images that cannot be read
            continue
        cropped_s = time.thread_time()
        transform.augmentation.apply(out, generator)
        end_s = time.thread_time()
        augment_s.append(end_s - cropped_s)
        whole_s.append(end_s - start_s)
    # without the first image, whose time includes the import of torchvision
    return statistics.median(augment_s[1:] or [0.0]), statistics.median(whole_s[1:] or [1.0])


def wait_line(wait: float, augment_s: float, whole_s: float, augmentation: Augmentation) -> str:
    keys = ", ".join(f"data.{key}={value}" for key, value in augmentation.costly().items())
    return (
        f"Training waits for images for {percent(wait, 0)} of the time, and the augmentation ({keys}) takes "
        f"{1000 * augment_s:.1f} of the {1000 * whole_s:.1f} ms of CPU time that the loader needs per image. "
        "Hint: increase data.num_workers if there are unused CPU cores, or choose a cheaper data.policy from the table "
        "in docs/data.md."
    )
