"""Torchmetrics of this project's own."""

import torch
from torch import Tensor
from torchmetrics import Metric


class ImagesCounted(Metric):
    """How often each image of a split was counted, over all ranks: the proof behind "each once"."""

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
        """(images counted at least once, most times any image was counted)."""
        return int((self.times > 0).sum()), int(self.times.max()) if len(self.times) else 0
