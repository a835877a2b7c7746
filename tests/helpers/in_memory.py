"""A data module of random images in memory, in the order of the project's own sampler."""

from typing import Any

import lightning.pytorch as L
import torch
from torch.utils.data import DataLoader, Dataset

from imagenet_ddp.data.sampler import BatchSampler, SampleKey

NUM_CLASSES = 5


class _Keys(Dataset):
    """The sampler's keys as they are."""

    def __getitem__(self, key: SampleKey) -> SampleKey:
        return key


class Images(L.LightningDataModule):
    """Images of 3 x size x size, from which their class can be learned. batch: images per forward of the process."""

    def __init__(self, num_train: int, num_val: int, batch: int, size: int, fill_to: int = 1) -> None:
        super().__init__()
        self.num_train_images, self.num_val, self.train_step_images, self.fill_to = num_train, num_val, batch, fill_to
        number = max(num_train, num_val)
        self.target = torch.arange(number) % NUM_CLASSES
        drawn = torch.randn(number, 3, size, size, generator=torch.Generator().manual_seed(0))
        self.images = drawn + self.target.view(-1, 1, 1, 1)
        self.train_sampler: BatchSampler | None = None
        self._start = (-1, 0, 0)

    def start_at(self, *start: int) -> None:
        self._start = start

    def train_dataloader(self) -> Any:
        trainer = self.trainer
        assert trainer is not None
        self.train_sampler = BatchSampler(
            self.num_train_images, self.train_step_images, 1, 0, shuffle=True, seed=1, fill_to=self.fill_to,
            accumulate=lambda: trainer.accumulate_grad_batches, num_steps=lambda: trainer.num_training_batches,
        )  # fmt: skip
        self.train_sampler.start_at(*self._start)
        return self._loader(self.train_sampler)

    def val_dataloader(self) -> Any:
        return self._loader(BatchSampler(self.num_val, self.train_step_images, 1, 0, shuffle=False, seed=1, fill_to=1))

    def _loader(self, sampler: BatchSampler) -> DataLoader:
        return DataLoader(_Keys(), batch_sampler=sampler, collate_fn=self._batch)  # type: ignore[arg-type]

    def _batch(self, keys: list[SampleKey]) -> dict[str, Any]:
        index = torch.tensor([key.index for key in keys])
        return {
            "image": self.images[index], "target": self.target[index], "index": index,
            "num_counted": sum(key.counts for key in keys), "step_images": keys[0].step_images,
            "update_images": keys[0].update_images,
        }  # fmt: skip
