"""Compute the features of the images of a training with its net, each image once over all ranks."""

import math
import time
from collections.abc import Callable
from typing import Any

import lightning.pytorch as L
import torch
from torch import Tensor

from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.models.head import compute_features
from imagenet_ddp.strategies.process_group import gather_on_first
from imagenet_ddp.system.console import Progress

MAX_IMAGES = 20_000  # over all ranks, drawn at random if there are more; 2,048 features of each are 160 MB
FIT = 0.25  # time of the regression, as a share of that of the features
Columns = tuple[Tensor, Tensor, Tensor]  # index, int64 (N,); features, float32 (N, D); targets, int64 (N,)


def compute_columns(
    trainer: L.Trainer,
    pl_module: Any,
    data: ImageDataModule,
    split: str,
    head: str,
    *,
    until_s: float = math.inf,
    num_after: int = 0,
    is_stopped: Callable[[], bool] = lambda: False,
) -> tuple[Columns | None, bool]:
    """Return (the columns of the images of a split on rank 0, in the order of the images, on the CPU, and None on other
    ranks; whether images were left out for want of time, or by a stop). The net must be in evaluation mode. Call on all
    ranks.

    split: train or val. head: name of the last layer in the net. until_s: the time.monotonic() by which the regression
    on the columns, and num_after further images, should be done. is_stopped: called after each batch on rank 0.
    """
    columns: list[tuple[Tensor, ...]] = []
    loader = data.plain_dataloader(split)
    most = min(len(data.train_images if split == "train" else data.val_images), MAX_IMAGES)
    progress = Progress("features", most, "images")
    precision: Any = trainer.precision_plugin
    num_done, num_first, first_s, out_of_time = 0, 0, 0.0, False
    for batch in loader:
        counted = batch["num_counted"]
        batch = data.finish(data.transfer_batch_to_device(batch, pl_module.device, 0), training=False)
        with precision.forward_context():  # as in a validation
            features = compute_features(pl_module.net, head, batch["image"].to(pl_module.dtype))[0]
        rows = batch["index"], features.float(), batch["target"]
        columns.append(tuple(each[:counted].cpu() for each in rows))
        num_done += batch["step_images"]
        if trainer.is_global_zero:
            progress.add(batch["step_images"])
        now_s, num_next = time.monotonic(), batch["step_images"]
        if not num_first:  # the first batch is slower, so it says nothing about the others
            num_first, first_s = num_done, now_s
        # the next batch and the images after it pass through the net, too
        num_left = num_next + num_after + FIT * (num_done + num_next)
        rest_s = (now_s - first_s) / max(num_done - num_first, 1) * num_left
        is_late = (now_s + rest_s > until_s or is_stopped()) and num_done < most
        is_over, out_of_time = trainer.strategy.broadcast((is_late or num_done >= MAX_IMAGES, is_late))
        if is_over:  # at the same step on all ranks
            break
    loader.close()
    if trainer.is_global_zero:
        progress.close()
    mine = tuple(torch.cat(column) for column in zip(*columns, strict=True))
    ranks = gather_on_first(mine, trainer.world_size)
    if ranks is None:
        return None, out_of_time
    index, features, targets = (torch.cat(column) for column in zip(*ranks, strict=True))
    order = index.argsort()  # the same on any number of ranks
    return (index[order], features[order], targets[order]), out_of_time
