"""Count the mean loss and the images of a validation, over all ranks."""

import torch
from torch import Tensor
from torchmetrics import Metric


class MeanLoss(Metric):
    """Mean over all values of all ranks, summed in double precision whatever type the module is cast to: with
    trainer.precision=bf16-true a sum of torchmetrics' MeanMetric stops growing after some hundred values."""

    full_state_update = False
    higher_is_better = False

    def __init__(self) -> None:
        super().__init__()
        self.total: Tensor
        self.count: Tensor
        self.add_state("total", torch.zeros(()), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros((), dtype=torch.int64), dist_reduce_fx="sum")

    def reset(self) -> None:
        super().reset()
        # here, because casting the module casts its states, and moving a float64 to an Apple GPU fails
        self.total = self.total.to(torch.float32 if self.total.device.type == "mps" else torch.float64)

    def update(self, values: Tensor) -> None:
        """values: (B,) of any floating type."""
        self.total += values.to(self.total.dtype).sum()
        self.count += len(values)

    def compute(self) -> Tensor:
        """Return the mean as a scalar; nan without a value."""
        return self.total / self.count


class ImagesCounted(Metric):
    """Number of times each image of a split was counted, over all ranks: the proof behind "each once"."""

    full_state_update = False
    higher_is_better = None

    def __init__(self, num_images: int):
        super().__init__()
        self.times: Tensor
        self.add_state("times", torch.zeros(num_images, dtype=torch.int32), dist_reduce_fx="sum")

    def update(self, index: Tensor) -> None:
        """index: int64 (B,) positions in the split, without repeats within a batch."""
        self.times[index] += 1

    def compute(self) -> tuple[int, int]:
        """Return (images counted at least once, most times any image was counted)."""
        return int((self.times > 0).sum()), int(self.times.max()) if len(self.times) else 0
