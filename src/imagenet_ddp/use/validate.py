"""Validate the images of a data module once over all ranks, for evaluate and features."""

from collections.abc import Sequence
from pathlib import Path

import lightning.pytorch as L

from imagenet_ddp.callbacks.background_logger import connect
from imagenet_ddp.callbacks.stalled_step import StalledStep
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.launch.world import World
from imagenet_ddp.training import build
from imagenet_ddp.training.diagnosis import refusing


class Validation:
    """A Trainer for one validation, with a watch that ends it if another rank fails. callbacks: called in this order.
    folder: of the loggers."""

    def __init__(self, plan: Plan, world: World, callbacks: Sequence[L.Callback], folder: Path):
        limit_s = plan.config.strategy.timeout_s
        self._watches = [] if world.watch is None else [StalledStep(world.watch.fail, limit_s)]
        self.trainer = build.make_trainer(plan, world, [*self._watches, *callbacks], folder)

    def run(self, module: L.LightningModule, data: ImageDataModule) -> list[str]:
        """Validate, and end the processes of the loader. Return sentences about ignored parts of images. Call on all
        ranks."""
        try:
            with refusing():
                connect(self.trainer.loggers)
                self.trainer.validate(module, datamodule=data, verbose=False)
            ignored_lines = data.ignored_lines(self.trainer)
            for watch in self._watches:  # from here on, no rank waits for another
                watch.end()
        finally:
            data.close()
        return ignored_lines
