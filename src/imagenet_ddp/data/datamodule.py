"""The LightningDataModule: opens the source and gives Lightning its loaders."""

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, TypeVar

import lightning.pytorch as L
import numpy as np
import torch

from imagenet_ddp.config.schema import LoaderConfig
from imagenet_ddp.data.bad_images import BadImages
from imagenet_ddp.data.loading import dali
from imagenet_ddp.data.loading.dataloader import Batch, EpochLoader, make_loader
from imagenet_ddp.data.loading.sampler import BatchSampler
from imagenet_ddp.data.loading.stall_watchdog import StallWatchdog
from imagenet_ddp.data.loading.worker_processes import choose_num_workers
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.transforms import EvalTransform, Sizes, TrainTransform, Transform, normalise
from imagenet_ddp.system.console import print_message

_Loader = TypeVar("_Loader", EpochLoader, dali.DaliLoader)

# Batch norm refuses a single value per channel, which one small image gives in a deep net.
SMALLEST_TRAINING_BATCH = 2


class ImageDataModule(L.LightningDataModule):
    """data and loader: the resolved keys of these names. say: for the log. Loaders are made for the trainer's own rank
    and world size.

    Batches arrive as uint8, and are flipped and normalised on the device (`on_after_batch_transfer`): a quarter of the
    bytes to copy.
    """

    def __init__(
        self,
        source: Source,
        data: Mapping[str, Any],
        seed: int,
        channels_last: bool,
        local_world_size: int = 1,
        bad_images: BadImages | None = None,
        loader: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
    ):
        super().__init__()
        self.source = source
        self.options = dict(data)
        self.seed = seed
        self.loader_options = {**asdict(LoaderConfig()), **(loader or {})}
        self._say = say
        self.channels_last = channels_last
        self.local_world_size = local_world_size
        num_images = len(source.train if source.train is not None else source.val or [])
        self.bad_images = bad_images or BadImages(self.options, num_images)
        self.eval_transform = EvalTransform.from_options(self.options)
        self.train_sampler: BatchSampler | None = None
        self._start = (-1, 0, 0)
        self._loaders: dict[str, EpochLoader | dali.DaliLoader] = {}  # by split

    def close(self) -> None:
        """End the loader processes. They take no signal, so a process that leaves without this would wait
        for them."""
        for loader in self._loaders.values():
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

    def start_at(self, epoch: int, image: int, step: int) -> None:
        """Set where a resumed run continues: the first `image` images of this epoch were trained on, in `step` steps.
        Call before the loaders are made."""
        self._start = (epoch, image, step)

    def train_dataloader(self) -> EpochLoader | dali.DaliLoader:
        transform: Transform = self.eval_transform
        if self.options["augment"] == "crop":
            low, high = self.options["crop_scale"]
            transform = TrainTransform(Sizes.from_options(self.options), (low, high), self.options["flip"])
        sampler = self._sampler(
            self.train_images, self.options["batch_size"], shuffle=not self._overfit, fill_to=SMALLEST_TRAINING_BATCH
        )
        sampler.start_at(*self._start)
        self.train_sampler = sampler
        if self.loader_options["name"] == "dali" and not dali.unsupported_reason(
            self.train_images, self.options["augment"]
        ):
            return self._kept("train", self._dali_loader(self.train_images, transform, sampler))
        return self._kept("train", self._loader(self.train_images, transform, sampler, replace=True))

    def val_dataloader(self) -> EpochLoader:
        batch_size = self.options["val_batch_size"] or self.options["batch_size"]
        sampler = self._sampler(self.val_images, batch_size, shuffle=False, fill_to=1)
        return self._kept("val", self._loader(self.val_images, self.eval_transform, sampler, replace=False))

    def _kept(self, split: str, loader: _Loader) -> _Loader:
        """Close this split's previous loader: with trainer.reload_dataloaders_every_n_epochs there is one."""
        if split in self._loaders:
            self._loaders[split].close()
        self._loaders[split] = loader
        return loader

    def _sampler(self, images: Images, batch_size: int, *, shuffle: bool, fill_to: int) -> BatchSampler:
        world_size = self.trainer.world_size if self.trainer else 1
        rank = self.trainer.global_rank if self.trainer else 0
        return BatchSampler(
            len(images),
            batch_size,
            world_size,
            rank,
            shuffle=shuffle,
            seed=self.seed,
            fill_to=fill_to,
            order_of=getattr(images, "order", None),
            # GradientAccumulationScheduler changes it from epoch to epoch
            accumulate=lambda: self.trainer.accumulate_grad_batches if self.trainer else 1,
            # Lightning knows it only after it has the loader, and counts trainer.limit_train_batches in
            num_steps=lambda: self.trainer.num_training_batches if self.trainer else math.inf,
        )

    @property
    def _root_device(self) -> torch.device:
        return self.trainer.strategy.root_device if self.trainer else torch.device("cpu")

    @property
    def _num_workers(self) -> int:
        on_cpu = self._root_device.type == "cpu"
        return choose_num_workers(self.options["num_workers"], on_cpu, self.local_world_size)[0]

    @property
    def _pin_memory(self) -> bool:
        asked = self.options["pin_memory"]
        return torch.cuda.is_available() and self._root_device.type != "cpu" if asked == "auto" else asked

    def _loader(self, images: Images, transform: Transform, sampler: BatchSampler, *, replace: bool) -> EpochLoader:
        return make_loader(
            images,
            transform,
            sampler,
            seed=self.seed,
            num_workers=self._num_workers,
            pin_memory=self._pin_memory,
            mp_context=self.options["mp_context"],
            replace=replace,
            on_bad_images=self.bad_images.on_bad_images,
            waiting=self._waiting,
        )

    def _dali_loader(self, images: Images, transform: Transform, sampler: BatchSampler) -> dali.DaliLoader:
        return dali.make_dali_loader(
            images,
            transform,
            sampler,
            seed=self.seed,
            num_threads=dali.choose_num_threads(self.loader_options["num_threads"], self._num_workers),
            device=dali.choose_device(self.loader_options["device"], self._root_device),
            pin_memory=self._pin_memory,
            on_bad_images=self.bad_images.on_bad_images,
            say=self._say,
            waiting=self._waiting,
        )

    @property
    def _waiting(self) -> Callable[[Any, Images], StallWatchdog]:
        rank, world_size = (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

        def say(line: str) -> None:
            self._say(line)
            if rank:  # whose log is a file alone, and the others only wait for it
                print_message(line)

        who = f"Rank {rank}" if world_size > 1 else "The training"
        return partial(StallWatchdog, who=who, say=say, timeout_s=self.options["loader_timeout_s"])

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        mean, std = self.eval_transform.mean, self.eval_transform.std
        batch["image"] = normalise(batch["image"], mean, std, self.channels_last, batch["flip"])
        return batch

    def remap_targets(self, positions: np.ndarray) -> None:
        """Evaluation against a checkpoint whose classes stand in another order: target t becomes positions[t]."""
        if self.source.val is not None:
            self.source.val.targets = positions[self.source.val.targets]
