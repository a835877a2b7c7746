"""Define the task of images with any number of labels (data.labels=several), such as the objects in a photograph."""

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, distributed
from torchmetrics import Metric
from torchmetrics.functional.classification import binary_average_precision

from imagenet_ddp.config.figures import FIGURES_OF
from imagenet_ddp.config.schema.losses import Bce
from imagenet_ddp.models.losses import Loss, OwnLoss
from imagenet_ddp.models.sums import Sums, loss_dtype
from imagenet_ddp.models.task import Task, has_class


class SeveralLabels(Task):
    """An image has any number of labels, so target is uint8 (N, C), 1 for each label. Its probabilities are sigmoids,
    and a label is predicted from 0.5.

    The score is the mean of the average precision of each class (mAP), with which MS-COCO and Pascal VOC are compared.
    It needs the logits of all images at once, so it is measured in a validation only. Sums over images, also of a
    training, are f1, the mean over the images of 2 × hits / (predicted + labels), and exact, the share of the images
    whose labels are all right.

    loss: the training loss, by default the binary cross entropy, the mean over the classes; that of a validation is
    always this one.
    """

    labels = "several"
    figures = FIGURES_OF["several"]
    has_one_prediction = False
    guess_loss = math.log(2)

    def __init__(self, num_classes: int, loss: Loss | OwnLoss | None = None):
        self._num_classes, self._loss = num_classes, loss or Loss(Bce(), num_classes)

    def training_losses(self, logits: Tensor, batch: Mapping[str, Any], reduction: str) -> Tensor:
        target = batch["target"]
        return self._loss(logits, target, target.to(logits.dtype), reduction)

    def validation_losses(self, logits: Tensor, target: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, target.to(logits.dtype), reduction="none").mean(1)

    def sums(self, loss: Tensor, logits: Tensor, target: Tensor) -> Sums:
        predicted, labels, is_finite = logits.detach() > 0, target.bool(), has_class(logits.detach())
        hits, named = (predicted & labels).sum(1), predicted.sum(1) + labels.sum(1)
        f1 = torch.where(named > 0, 2 * hits / named.clamp(min=1), 1.0)  # 1 if there is no label, and none predicted
        f1 = (f1 * is_finite).sum(dtype=loss_dtype(f1.device))
        exact = ((predicted == labels).all(1) & is_finite).sum()
        return Sums({"loss": loss.detach(), "f1": f1, "exact": exact}, len(logits))

    @staticmethod
    def probabilities(logits: Tensor) -> Tensor:
        return logits.sigmoid()

    def val_measures(self, num_images: int) -> dict[str, Metric]:
        return {"map": MeanAveragePrecision(num_images, self._num_classes)}


class MeanAveragePrecision(Metric):
    """Mean over the classes with a label of their average precision, over all images of all ranks. Keeps the logits of
    each image, float32 (num_images, num_classes). After compute(), of_each has the values of the classes, NaN for those
    without a label."""

    full_state_update = False
    higher_is_better = True
    name_of_each = "average_precision"

    def __init__(self, num_images: int, num_classes: int):
        super().__init__(dist_sync_fn=_sum_over_ranks)
        self.logits: Tensor
        self.labels: Tensor
        self.times: Tensor
        self.of_each = torch.full((num_classes,), torch.nan)
        for name, shape, dtype in (
            ("logits", (num_images, num_classes), torch.float32),
            ("labels", (num_images, num_classes), torch.uint8),
            ("times", (num_images,), torch.int32),
        ):
            # each image is counted on one rank, so the sum over the ranks has its values
            self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")  # pyright: ignore[reportUnknownMemberType]

    def reset(self) -> None:
        super().reset()
        self.logits = self.logits.float()  # which trainer.precision=bf16-true would round

    def update(self, logits: Tensor, target: Tensor, index: Tensor) -> None:
        """Add a batch. logits, target: (B, C). index: int64 (B,), positions of the images in the split."""
        self.logits[index] = logits.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        self.labels[index] = target.to(torch.uint8)
        self.times[index] += 1

    def compute(self) -> Tensor:
        """Return the mean as a scalar; NaN if there is no label."""
        logits, labels, times = (each.cpu() for each in (self.logits, self.labels, self.times))
        logits, labels = logits[times > 0], labels[times > 0].long()
        self.of_each = torch.full((labels.shape[1],), torch.nan)
        for each in range(labels.shape[1]):
            if labels[:, each].any():
                shares = logits[:, each].double().sigmoid()
                self.of_each[each] = binary_average_precision(shares, labels[:, each])
        return self.of_each.nanmean()


def _sum_over_ranks(state: Tensor, group: Any = None) -> list[Tensor]:
    """Return the sum of a state over the ranks, as a list of one. torchmetrics would gather the states of all ranks on
    each of them, which needs a multiple of the memory that grows with the ranks."""
    total = state.clone()
    distributed.all_reduce(total, group=group)
    return [total]
