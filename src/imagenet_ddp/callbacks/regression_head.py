"""Start the last layer from a logistic regression on the features that the loaded weights give."""

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.config.schema.data import FilesData
from imagenet_ddp.curation import unknown
from imagenet_ddp.curation.cross_validation import Estimate, estimate, why_no_estimate
from imagenet_ddp.curation.features import Features, read_features
from imagenet_ddp.curation.recognise import digest_of, stamps_of
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.groups import first_of_each, read_groups
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.head import compute_features, evaluating
from imagenet_ddp.models.regression import Regression, fit_regression
from imagenet_ddp.runs.result_files import known_file
from imagenet_ddp.runs.signals import SignalExit, raise_on_signal
from imagenet_ddp.strategies.process_group import gather_on_first
from imagenet_ddp.system.console import Progress
from imagenet_ddp.system.text import count_noun, duration

MAX_IMAGES = 20_000  # over all ranks, drawn at random if there are more; 2,048 features of each are 160 MB
FIT = 0.25  # time of the regression, as a share of that of the features
Columns = tuple[Tensor, Tensor, Tensor]  # index, int64 (N,); features, float32 (N, D); targets, int64 (N,)


class RegressionHead(L.Callback):
    """Before the first step, fit a logistic regression to the features of the training images, without augmentation,
    and start the last layer with its weights. The net with this layer is validated as epoch 0, so best.ckpt is never
    worse than the regression. Leave this callback out on resume.

    head: name of the layer in `pl_module.net`. seed: chooses the held-out images. say: writes a line to the log.
    until_s: the time.monotonic() by which this validation should end. Images are read as long as the rate so far leaves
    time for the regression and the validation. stored: file of a pass over the images, which is used if its net,
    preprocessing, precision and images are those of the run. estimates: the net stays as it is, so also say what
    accuracy to expect on new images, which `estimate` then has on rank 0, and write known.npz into the run folder.
    """

    def __init__(
        self,
        head: str,
        seed: int,
        say: Callable[[str], None],
        until_s: float = math.inf,
        *,
        stored: Path | None = None,
        precision: str = "32-true",
        estimates: bool = False,
    ):
        self.head, self._seed, self._say, self._until_s = head, seed, say, until_s
        self._stored, self._precision, self._estimates = stored, precision, estimates
        self.estimate: Estimate | None = None
        self._digest = self._net_digest = ""  # of the pass that can be used, and for known.npz; on rank 0
        self._out_of_time = False
        self._pass: Features | None = (
            None  # what is stored, if it can be used; on rank 0 until the reference is written
        )

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        trainer.num_sanity_val_steps = math.inf  # type: ignore[attr-defined]
        if trainer.is_global_zero:  # now, because the strategy converts the net for bf16-true
            data: ImageDataModule = cast("Any", trainer).datamodule
            what = pl_module.net, (self.head,), data.eval_transform, Reading.of(data.options)
            if self._stored is not None and self._stored.is_file():
                self._digest = digest_of(*what, self._precision)
            if self._estimates:
                self._net_digest = unknown.net_digest(*what)

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        begin_s = time.monotonic()
        data: ImageDataModule = cast("Any", trainer).datamodule
        try:
            with raise_on_signal(), evaluating(pl_module.net):  # nothing is trained yet that could be saved
                columns = self._read_or_compute(trainer, pl_module, data)
                regression, num_read = self._fit(trainer, pl_module, data, columns)
        except SignalExit as left:
            self._say(str(left))
            raise
        head = pl_module.net.get_submodule(self.head)
        with torch.no_grad():
            head.weight.copy_(regression.weight)
            head.bias.copy_(regression.bias)
        limit = f"the features of {num_read}, all that the time allows"
        these = limit if self._out_of_time else "these features"
        took = duration(time.monotonic() - begin_s)
        self._say(f"The last layer starts from logistic regression on {these} ({took}).")
        for line in self.estimate.lines if self.estimate else ():
            self._say(line)
        if self._estimates and columns is not None:
            self._say(self._write_reference(trainer, data, columns))

    def _write_reference(self, trainer: L.Trainer, data: ImageDataModule, columns: Columns) -> str:
        """Write what tells images that are like the training images from others. Return a sentence. columns: of the
        training images."""
        found, self._pass = self._pass, None
        held_out = None if found is None else of_images(found, data.val_images, data.source.digest, "val", self._seed)
        splits = [columns] if held_out is None else [columns, held_out]
        _, vectors, targets = (torch.cat(column).numpy() for column in zip(*splits, strict=True))
        is_val = np.arange(len(vectors)) >= len(columns[0])
        features = replace(
            Features.bare(vectors, np.zeros(len(vectors), np.uint64), self._net_digest), targets=targets, is_val=is_val
        )
        return unknown.write_reference(known_file(Path(trainer.default_root_dir)), features, self._net_digest)

    def _read_or_compute(self, trainer: L.Trainer, pl_module: Any, data: ImageDataModule) -> Columns | None:
        """Return the features of the training images on rank 0, in their order, and None on other ranks."""
        width = pl_module.net.get_submodule(self.head).in_features
        found = self._stored_features(width) if trainer.is_global_zero else None
        self._pass = found if self._estimates else None
        stored = None if found is None else of_images(found, data.train_images, data.source.digest, "train", self._seed)
        if trainer.strategy.broadcast(stored is not None):
            self._say(f"The features of the training images are read from {self._stored}.")
            return stored
        num_images = count_noun(min(len(data.train_images), MAX_IMAGES), "training image")
        self._say(f"Computing the features of {num_images} for the last layer.")
        mine = self._compute(trainer, pl_module, data)
        ranks = gather_on_first(mine, trainer.world_size)
        if ranks is None:
            return None
        index, features, targets = (torch.cat(column) for column in zip(*ranks, strict=True))
        order = index.argsort()  # the same on any number of ranks
        return index[order], features[order], targets[order]

    def _stored_features(self, width: int) -> Features | None:
        """Return what a pass has stored; None if it is of another net. width: number of features of this net."""
        try:
            found = None if self._stored is None or not self._stored.is_file() else read_features(self._stored)
        except ConfigError as error:
            self._say(str(error))
            return None
        return found if found is not None and found.is_of(self._digest, width) else None

    def _fit(
        self, trainer: L.Trainer, pl_module: Any, data: ImageDataModule, columns: Columns | None
    ) -> tuple[Regression, int]:
        """Return (the regression, the number of images that it is fitted to), the same on all ranks."""
        found = None
        if columns is not None:  # rank 0
            index, features, targets = columns
            classes = pl_module.net.get_submodule(self.head).out_features
            regression = fit_regression(features.to(pl_module.device), targets, classes, self._seed)
            found = regression, len(features)
            if self._estimates:
                groups = _groups(data, index.numpy(), features.numpy())
                self._estimate(features.numpy(), targets.numpy(), classes, regression.l2, groups, pl_module.device)
        return trainer.strategy.broadcast(found)  # type: ignore[return-value]

    def _estimate(
        self, features: np.ndarray, targets: np.ndarray, classes: int, l2: float, groups: np.ndarray,
        device: torch.device,
    ) -> None:  # fmt: skip
        if reason := why_no_estimate(targets, classes, groups):
            return self._say(reason)
        self.estimate = estimate(features, targets, classes, l2, self._seed, groups, device)

    def _compute(self, trainer: L.Trainer, pl_module: Any, data: ImageDataModule) -> Columns:
        """Return the columns of this rank's share of the images, on the CPU."""
        columns: list[tuple[Tensor, ...]] = []
        progress = Progress("features", min(len(data.train_images), MAX_IMAGES), "images")
        precision: Any = trainer.precision_plugin
        loader, num_done, num_first, first_s = data.plain_train_dataloader(), 0, 0, 0.0
        for batch in loader:
            counted = batch["num_counted"]
            batch = data.finish(data.transfer_batch_to_device(batch, pl_module.device, 0), training=False)
            with precision.forward_context():  # as in a validation
                features = compute_features(pl_module.net, self.head, batch["image"].to(pl_module.dtype))[0]
            rows = batch["index"], features.float(), batch["target"]
            columns.append(tuple(each[:counted].cpu() for each in rows))
            num_done += batch["step_images"]
            if trainer.is_global_zero:
                progress.add(batch["step_images"])
            now_s, num_next = time.monotonic(), batch["step_images"]
            if not num_first:  # the first batch is slower, so it says nothing about the others
                num_first, first_s = num_done, now_s
            # the next batch and all validation images pass through the net, too
            num_left = num_next + len(data.val_images) + FIT * (num_done + num_next)
            rest_s = (now_s - first_s) / max(num_done - num_first, 1) * num_left
            is_late = now_s + rest_s > self._until_s and num_done < min(len(data.train_images), MAX_IMAGES)
            is_over, self._out_of_time = trainer.strategy.broadcast((is_late or num_done >= MAX_IMAGES, is_late))
            if is_over:  # at the same step on all ranks
                break
        loader.close()
        if trainer.is_global_zero:
            progress.close()
        index, features, targets = (torch.cat(column) for column in zip(*columns, strict=True))
        return index, features, targets


def of_images(found: Features, images: Images, source_digest: str, split: str, seed: int) -> Columns | None:
    """Return the stored features of the images of a split, of MAX_IMAGES drawn at random if there are more; None if
    those of an image that can be read are missing."""
    row_of = {stamp: row for row, stamp in enumerate(found.stamps.tolist())}
    rows = np.array([row_of.get(stamp, -1) for stamp in stamps_of(images, source_digest, split).tolist()])
    unreadable = {path for path, _ in found.unreadable}
    if any(images.path(index) not in unreadable for index in np.flatnonzero(rows < 0).tolist()):
        return None
    index = np.flatnonzero(rows >= 0)
    if len(index) > MAX_IMAGES:
        index = np.sort(np.random.default_rng(seed).permutation(index)[:MAX_IMAGES])
    if not len(index):
        return None
    return torch.as_tensor(index), torch.as_tensor(found.vectors[rows[index]]), torch.as_tensor(images.targets[index])


def _groups(data: ImageDataModule, index: np.ndarray, features: np.ndarray) -> np.ndarray:
    """Return the group of each image, int64 (N,), which folds keep together: that of data.groups, and of images with
    equal features, which are copies. index: int64 (N,), of the images. features: float32 (N, D)."""
    images, first = data.train_images, dict[bytes, int]()
    pairs = [(at, first.setdefault(vector.tobytes(), at)) for at, vector in zip(index.tolist(), features, strict=True)]
    together = np.array(pairs, np.int64)
    if isinstance(images, FileImages) and isinstance(data.options, FilesData):
        together = np.concatenate([together, read_groups(data.options.groups, images, whole=False)])
    return first_of_each(len(images), together)[index]
