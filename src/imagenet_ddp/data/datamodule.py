"""The LightningDataModule: opens the source and gives Lightning its loaders."""

from collections.abc import Mapping
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch

from imagenet_ddp.data.loader import Batch, EpochLoader, choose_num_workers, make_loader
from imagenet_ddp.data.sampler import BatchSampler
from imagenet_ddp.data.sources import Images, Source
from imagenet_ddp.data.transforms import EvalTransform, normalise, train_transform

# Batch norm refuses a single value per channel, which one small image gives in a deep net.
SMALLEST_TRAINING_BATCH = 2


class ImageData(L.LightningDataModule):
    """data: the resolved data.* keys. Loaders are made for the trainer's own rank and world size.

    Batches arrive as uint8 and are normalised on the device (`on_after_batch_transfer`): a quarter of the bytes to
    copy.
    """

    def __init__(
        self, source: Source, data: Mapping[str, Any], seed: int, channels_last: bool, local_world_size: int = 1
    ):
        super().__init__()
        self.source = source
        self.keys = dict(data)
        self.seed = seed
        self.channels_last = channels_last
        self.local_world_size = local_world_size
        self.eval_transform = EvalTransform.from_keys(self.keys)
        self.train_sampler: BatchSampler | None = None
        self._start = (-1, 0)
        self._loaders: list[EpochLoader] = []

    def close(self) -> None:
        """End the loader processes. They take no signal (loader.py), so a process that leaves without this would wait
        for them."""
        for loader in self._loaders:
            loader.close()

    @property
    def _overfit(self) -> bool:
        """trainer.overfit_batches wants the same images in every epoch."""
        return bool(getattr(self.trainer, "overfit_batches", 0))

    @property
    def train_images(self) -> Images:
        assert self.source.train is not None
        return self.source.train

    @property
    def val_images(self) -> Images:
        assert self.source.val is not None
        return self.source.val

    def start_at(self, epoch: int, image: int) -> None:
        """Where a resumed run goes on: `image` images of this epoch are already trained on. Call before the loaders
        are made."""
        self._start = (epoch, image)

    def train_dataloader(self) -> EpochLoader:
        if self.keys["augment"] == "crop":
            low, high = self.keys["crop_scale"]
            transform = train_transform(self.keys["image_size"], (low, high), self.keys["flip"])
        else:
            transform = self.eval_transform
        sampler = self._sampler(
            self.train_images, self.keys["batch_size"], shuffle=not self._overfit, fill_to=SMALLEST_TRAINING_BATCH
        )
        sampler.start_at(*self._start)
        self.train_sampler = sampler
        return self._loader(self.train_images, transform, sampler)

    def val_dataloader(self) -> EpochLoader:
        batch_size = self.keys["val_batch_size"] or self.keys["batch_size"]
        sampler = self._sampler(self.val_images, batch_size, shuffle=False, fill_to=1)
        return self._loader(self.val_images, self.eval_transform, sampler)

    def _sampler(self, images: Images, batch_size: int, *, shuffle: bool, fill_to: int) -> BatchSampler:
        world_size = self.trainer.world_size if self.trainer else 1
        rank = self.trainer.global_rank if self.trainer else 0
        return BatchSampler(len(images), batch_size, world_size, rank, shuffle=shuffle, seed=self.seed, fill_to=fill_to)

    def _loader(self, images: Images, transform: Any, sampler: BatchSampler) -> EpochLoader:
        on_cpu = self.trainer.strategy.root_device.type == "cpu" if self.trainer else True
        pin_memory = self.keys["pin_memory"]
        loader = make_loader(
            images,
            transform,
            sampler,
            seed=self.seed,
            num_workers=choose_num_workers(self.keys["num_workers"], on_cpu, self.local_world_size)[0],
            pin_memory=torch.cuda.is_available() and not on_cpu if pin_memory == "auto" else pin_memory,
            mp_context=self.keys["mp_context"],
        )
        self._loaders.append(loader)
        return loader

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        mean, std = self.eval_transform.mean, self.eval_transform.std
        batch["image"] = normalise(batch["image"], mean, std, self.channels_last)
        return batch

    def remap_targets(self, positions: np.ndarray) -> None:
        """Evaluation against a checkpoint whose classes stand in another order: target t becomes positions[t]."""
        if self.source.val is not None:
            self.source.val.targets = positions[self.source.val.targets]
