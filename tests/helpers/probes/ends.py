"""A callback, a logger, a net and a source that raise an exception by name at the third step or image."""

import asyncio
import builtins
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn

from imagenet_ddp.data.sources.base import Images, Source


class OwnEnd(BaseException):
    pass


KINDS = {"CancelledError": asyncio.CancelledError, "OwnEnd": OwnEnd}


def end(kind: str) -> None:
    if kind:
        raise (KINDS.get(kind) or getattr(builtins, kind))


class Callback(L.Callback):
    def __init__(self, kind: str, hook: str) -> None:
        self.kind, self.hook = kind, hook

    def act(self, trainer: L.Trainer, hook: str) -> None:
        if hook == self.hook and trainer.global_step >= 2:
            end(self.kind)

    def on_train_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        self.act(trainer, "on_train_batch_end")

    def on_validation_batch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        self.act(trainer, "on_validation_batch_end")

    def on_train_epoch_end(self, trainer: L.Trainer, *args: Any, **kwargs: Any) -> None:
        self.act(trainer, "on_train_epoch_end")


class Logger(CSVLogger):
    def __init__(self, save_dir: str, kind: str) -> None:
        super().__init__(save_dir)
        self.kind = kind

    def log_metrics(self, metrics: Any, step: int | None = None) -> None:
        end(self.kind)


class Net(nn.Module):
    def __init__(self, num_classes: int, kind: str) -> None:
        super().__init__()
        self.linear, self.kind, self.steps = nn.Linear(3, num_classes), kind, 0

    def forward(self, images: Tensor) -> Tensor:
        self.steps += self.training
        if self.steps == 3:
            end(self.kind)
        return self.linear(images.mean((2, 3)))


class Pictures(Images):
    def __init__(self, num_images: int, kind: str) -> None:
        self.targets, self.kind = np.arange(num_images) % 2, kind

    def read(self, index: int) -> Tensor:
        if index == 3:
            end(self.kind)
        return torch.full((3, 32, 32), index * 5, dtype=torch.uint8)


def source(kind: str) -> Source:
    return Source(["a", "b"], Pictures(24, kind), Pictures(8, ""))
