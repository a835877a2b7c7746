"""Sum losses and hits on the device, and read them together."""

import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.callbacks.means import is_hit, sums_of

MAX_KEPT = 64  # steps whose figures wait to be added up


class ImageSums:
    """Sum the losses and the hits by place over this rank's training images, and count the images. Adding a step does
    not wait for the device. unread() returns what is to be copied to the host; move() adds the copy to the sums there.

    epoch, since: the sums on the host, as Means.from_sums takes them. Callers set them to zero.
    """

    def __init__(self, device: torch.device, top_k: int):
        self._loss = torch.zeros((), dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
        self._hits = torch.zeros(top_k, dtype=torch.int64, device=device)
        self._top_k = top_k
        self._count = 0  # images in the sums on the device
        self._recent: list[tuple[Tensor, Tensor]] = []  # steps that are not in these sums yet: loss, is_hit()
        self._last: tuple[Tensor, Tensor] | None = None
        self.epoch, self.since = np.zeros(4), np.zeros(4)

    @property
    def begun(self) -> bool:
        """Return whether there has been a step."""
        return self._last is not None

    def add(self, loss_sum: Tensor, logits: Tensor, target: Tensor) -> None:
        """Add a step. loss_sum: a scalar. logits: float (B, C). target: int64 (B,)."""
        self._last = loss_sum, is_hit(logits, target, self._top_k)
        self._recent.append(self._last)
        self._count += len(target)
        if len(self._recent) == MAX_KEPT:
            self._add_up()

    def _add_up(self) -> None:
        # of several steps at once: 10 µs less per step
        if self._recent:
            losses, hits = zip(*self._recent, strict=True)
            self._loss += torch.stack(losses).sum(dtype=self._loss.dtype)
            self._hits += torch.cat(hits).sum(0)
            self._recent.clear()

    def unread(self) -> Tensor:
        """Return [loss, hits by place] on the device, since the last move()."""
        self._add_up()
        return concatenate(self._loss, self._hits)

    def last(self) -> tuple[Tensor, int]:
        """Return ([loss, hits by place] on the device, number of images) of the last step."""
        assert self._last is not None
        loss, hits = self._last
        return concatenate(loss, hits.sum(0)), len(hits)

    def move(self, numbers: list[float]) -> None:
        """Add a copy of unread() to the sums on the host, and set those on the device to zero."""
        sums = sums_of(numbers[0], numbers[1:], self._count)
        self.epoch += sums
        self.since += sums
        self._loss.zero_()
        self._hits.zero_()
        self._count = 0

    def epoch_on_device(self) -> Tensor:
        """Return this epoch's sums as a tensor, for a sum over all ranks."""
        return torch.tensor(self.epoch, dtype=self._loss.dtype, device=self._loss.device)


def concatenate(*parts: Tensor) -> Tensor:
    """Concatenate scalars and vectors, for a single copy to the host."""
    return torch.cat([part.reshape(-1) for part in parts])
