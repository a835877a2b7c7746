"""Provide a LightningDataModule that loads the images of a source."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch

from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.data.augment import OwnTransform, make_train_transform
from imagenet_ddp.data.check_data import inspect
from imagenet_ddp.data.checkpoint_options import read_options, require_classes
from imagenet_ddp.data.ignored_parts import IgnoredParts
from imagenet_ddp.data.loader import Batch, EpochLoader, make_loader
from imagenet_ddp.data.loader_failures import StallWatchdog
from imagenet_ddp.data.loader_processes import choose_num_workers
from imagenet_ddp.data.mixing import Mixing
from imagenet_ddp.data.sampler import BatchSampler
from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.data.sources.registry import implied, open_source
from imagenet_ddp.data.transforms import EvalTransform, Transform, normalise
from imagenet_ddp.data.unreadable_images import BadImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.console import print_message

# Batch norm raises an error if a channel has a single value, which happens with one small image in a deep net.
SMALLEST_TRAINING_BATCH = 2


class ImageDataModule(L.LightningDataModule):
    """Data of one source for any Lightning Trainer, distributed or not. `from_options` creates an instance without
    Hydra.

    A batch is a dict (`loader.Batch`). `image` is copied to the device as uint8, a quarter of the bytes of
    float32, and is flipped and normalised there. `target` is int64 (B,). Only the first `num_counted` images count. The
    others pad the batch so that all ranks take the same number of steps. With data.mixup_alpha or data.cutmix_alpha, a
    training batch has `soft_target`, float32 (B, classes), and `target` is the label with the larger share of each
    mixed image. If the source has weights, a training batch has `weight`, float32 (B,), mixed in the same proportions.
    """

    def __init__(
        self,
        source: Source,
        data: DataConfig,
        seed: int,
        channels_last: bool,
        local_world_size: int | None = None,
        bad_images: BadImages | None = None,
        say: Callable[[str], None] = print,
        transform: OwnTransform | None = None,
    ):
        """local_world_size: number of processes that share this machine's CPU cores; None: the Trainer's number of
        devices. say: writes a line to the log. transform: a further one of the training images."""
        super().__init__()
        self.source = source
        self.options = data
        self.seed = seed
        self._say = say
        self.channels_last = channels_last
        self._local_world_size = local_world_size
        num_images = len(source.train if source.train is not None else source.val or [])
        self.bad_images = bad_images or BadImages(data, num_images)
        self.ignored_parts = IgnoredParts(say)
        self.eval_transform = EvalTransform.of(data)
        self.train_transform = make_train_transform(data, transform)
        self._mixing = Mixing(data, len(source.classes)) if data.mixup_alpha or data.cutmix_alpha else None
        self.train_sampler: BatchSampler | None = None
        self._start = (-1, 0, 0)
        self._copy_stream: torch.cuda.Stream | None = None
        self._image_weights: torch.Tensor | None = None  # of all training images, on the device
        self._loaders: dict[str, EpochLoader] = {}  # by split

    @classmethod
    def from_options(
        cls,
        name: str,
        root: str | Path | None = None,
        *,
        seed: int = 0,
        channels_last: bool = True,
        transform: Callable[[Any], Any] | None = None,
        **options: Any,
    ) -> "ImageDataModule":
        """Open the data described by the options of the `data` config group. Options that are left out have the
        defaults of the source's class in config/schema/data.py.

        name: shapes, imagefolder, imagenet, table, stl10, packed or streamed. transform: of the cropped training
        images, a function of an image of Pillow (augment.OwnTransform). Raises ConfigError with all mistakes.
        """
        data = DataConfig.of(name=name, root=None if root is None else str(root), **options)
        return cls._open(replace(data, **implied(data)), seed, channels_last, transform)

    @classmethod
    def load_from_checkpoint(  # type: ignore[override]  # Lightning's reads arguments of __init__ from the file
        cls, checkpoint_path: str | Path, *, transform: Callable[[Any], Any] | None = None, **options: Any
    ) -> "ImageDataModule":
        """Open the data of a checkpoint as its run read them: the same split, size, interpolation, mean and std. No
        code is run from the file.

        transform: as in from_options; that of the run is not used. options: what differs, such as root="elsewhere".
        Raises ConfigError if the file is not a checkpoint of this program, if the data have other classes, and for what
        the author of the file must not choose, such as a source of one's own: pass it as an option.
        """
        data, seed, channels_last, classes = read_options(checkpoint_path, options)
        module = cls._open(data, seed, channels_last, transform)
        require_classes(module.source.classes, classes, data.root, checkpoint_path)
        return module

    @classmethod
    def _open(
        cls, data: DataConfig, seed: int, channels_last: bool, transform: Callable[[Any], Any] | None
    ) -> "ImageDataModule":
        mistakes, found = inspect(data, seed)
        if mistakes:
            raise ConfigError(mistakes)
        own = OwnTransform(transform, "transform") if transform else None
        return cls(open_source(data, seed, found=found), data, seed, channels_last, transform=own)

    def teardown(self, stage: str) -> None:
        self.close()

    def on_exception(self, exception: BaseException) -> None:
        self.close()

    def close(self) -> None:
        """End the loader processes. They ignore stop signals, so a process that exits without calling this method would
        wait for them."""
        for loader in self._loaders.values():
            loader.close()

    @property
    def _overfit(self) -> bool:
        """Return whether trainer.overfit_batches repeats the same images in every epoch."""
        return bool(getattr(self.trainer, "overfit_batches", 0))  # the Trainer does not declare this attribute

    @property
    def train_images(self) -> Images:
        assert self.source.train is not None
        return self.source.train

    @property
    def val_images(self) -> Images:
        assert self.source.val is not None
        return self.source.val

    @property
    def num_train_images(self) -> int:
        return len(self.train_images)

    @property
    def train_step_images(self) -> int:
        """Return the number of images in one training step, over all ranks."""
        return self.options.batch_size * self._rank_and_world_size[1]

    def start_at(self, epoch: int, image: int, step: int) -> None:
        """Skip the first `image` images of `epoch`, which were trained on in `step` steps. Call this method before the
        loaders are made."""
        self._start = (epoch, image, step)

    def train_dataloader(self) -> EpochLoader:
        images = self.train_images
        sampler = self._sampler(
            images,
            self.options.batch_size,
            shuffle=not self._overfit,
            fill_to=SMALLEST_TRAINING_BATCH,
            repeats=self.options.repeats,
            balance=images.targets if self.options.sampling == "balanced" else None,
        )
        self.train_sampler = sampler
        sampler.start_at(*self._start)
        return self._make_loader("train", images, self.train_transform, sampler)

    def plain_dataloader(self, split: str) -> EpochLoader:
        """Return a loader of the images of a split, train or val, as they are validated, each once, in the random order
        of an epoch."""
        images = self.train_images if split == "train" else self.val_images
        return self._validation_loader(f"plain {split}", images, shuffle=True)

    def val_dataloader(self) -> EpochLoader:
        return self._validation_loader("val", self.val_images, shuffle=False)

    def _validation_loader(self, name: str, images: Images, *, shuffle: bool) -> EpochLoader:
        sampler = self._sampler(
            images, self.options.val_batch_size or self.options.batch_size, shuffle=shuffle, fill_to=1
        )
        return self._make_loader(name, images, self.eval_transform, sampler)

    def _sampler(self, images: Images, batch_size: int, **options: Any) -> BatchSampler:
        rank, world_size = self._rank_and_world_size
        return BatchSampler(
            len(images),
            batch_size,
            world_size,
            rank,
            seed=self.seed,
            order_of=images.order,
            accumulate=lambda: self.trainer.accumulate_grad_batches if self.trainer else 1,
            # a function, because Lightning computes the value, which trainer.limit_train_batches may reduce, only after
            # it has the loader
            num_steps=lambda: self.trainer.num_training_batches if self.trainer else math.inf,
            **options,
        )

    @property
    def _rank_and_world_size(self) -> tuple[int, int]:
        return (self.trainer.global_rank, self.trainer.world_size) if self.trainer else (0, 1)

    def _make_loader(self, split: str, images: Images, transform: Transform, sampler: BatchSampler) -> EpochLoader:
        if split in self._loaders:  # trainer.reload_dataloaders_every_n_epochs replaces the loader
            self._loaders[split].close()
        on_cpu = self.trainer is None or self.trainer.strategy.root_device.type == "cpu"
        local_world_size = self._local_world_size or (self.trainer.num_devices if self.trainer else 1)
        pin_memory = self.options.pin_memory
        rank, world_size = self._rank_and_world_size

        def say(line: str) -> None:
            self._say(line)
            if rank:  # this rank logs only to a file, but the terminal shows that the other ranks wait for it
                print_message(line)

        who = f"Rank {rank}" if world_size > 1 else "The training"
        loader = self._loaders[split] = make_loader(
            images,
            transform,
            sampler,
            num_workers=choose_num_workers(self.options.num_workers, on_cpu, local_world_size)[0],
            replace=split == "train",
            seed=self.seed,
            pin_memory=torch.cuda.is_available() and not on_cpu if pin_memory == "auto" else pin_memory,
            on_bad_images=self.bad_images.on_bad_images,
            on_ignored=partial(self.ignored_parts.add, split.removeprefix("plain "), images),
            watchdog=partial(StallWatchdog, who=who, say=say, timeout_s=self.options.loader_timeout_s),
        )
        if not self._overfit:
            # Lightning reads `sampler` to check that the ranks get different batches and, with overfit_batches,
            # that the order is not random
            loader.__dict__["sampler"] = loader.batch_sampler
        return loader

    def ignored_lines(self, trainer: L.Trainer) -> list[str]:
        """Return sentences about the parts of images that were ignored. Call on all ranks."""
        strategy = trainer.strategy

        def merge(mine: torch.Tensor) -> Any:
            return strategy.reduce(mine.to(strategy.root_device), reduce_op="max")  # pyright: ignore[reportUnknownMemberType]

        return self.ignored_parts.lines(self.source.splits, merge)

    def transfer_batch_to_device(self, batch: Batch, device: torch.device, dataloader_idx: int) -> Batch:
        """Copy the tensors of a batch to a device. On a GPU, they are copied on a separate stream while the model
        computes on the previous batch. Lightning's own copies would wait for that computation, and its search for
        tensors in the batch takes 40 µs."""
        moved: Any = dict(batch)
        tensors = [name for name, value in batch.items() if torch.is_tensor(value)]
        if device.type != "cuda":
            return moved | {name: moved[name].to(device) for name in tensors}
        self._copy_stream = self._copy_stream or torch.cuda.Stream(device)
        compute = torch.cuda.current_stream(device)
        with torch.cuda.stream(self._copy_stream):
            for name in tensors:
                moved[name] = moved[name].to(device, non_blocking=True)
                moved[name].record_stream(compute)  # the next copy must not overwrite data still in use
        compute.wait_stream(self._copy_stream)
        return moved

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        return self.finish(batch, training=bool(getattr(self.trainer, "training", False)))

    def finish(self, batch: Batch, *, training: bool) -> Batch:
        """Flip and normalise a batch that was copied to the device, and return it as the input of the model. training:
        also add the weights of the images, and apply mixup or CutMix."""
        mean, std = self.eval_transform.mean, self.eval_transform.std
        batch["image"] = normalise(batch["image"], mean, std, self.channels_last, batch["flip"])
        weights = self.source.train.weights if training and self.source.train is not None else None
        if weights is not None:
            # looked up here, because Lightning rounds the numbers in a batch if trainer.precision is bf16-true or
            # 16-true, before it is copied
            device = batch["index"].device
            if self._image_weights is None or self._image_weights.device != device:
                self._image_weights = torch.tensor(weights, device=device)
            batch["weight"] = self._image_weights[batch["index"]]
        if training and self._mixing is not None:
            self._mixing.apply(batch)
        return batch

    def remap_targets(self, positions: np.ndarray, num_classes: int) -> None:
        """Renumber the validation targets for a checkpoint that orders the classes differently: target t becomes
        positions[t]. num_classes: those of the checkpoint."""
        if self.source.val is None:
            return
        targets = self.source.val.targets
        if targets.ndim == 1:
            self.source.val.targets = positions[targets]
        else:
            self.source.val.targets = np.zeros((len(targets), num_classes), targets.dtype)
            self.source.val.targets[:, positions] = targets
