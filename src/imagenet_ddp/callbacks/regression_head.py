"""Start the last layer from a logistic regression on the features that the loaded weights give."""

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor

from imagenet_ddp.callbacks.image_features import MAX_IMAGES, Columns, compute_columns
from imagenet_ddp.curation.cross_validation import Estimate, estimate, fold_of_each, out_of_fold, why_no_estimate
from imagenet_ddp.curation.features import Features, read_features
from imagenet_ddp.curation.recognise import digest_of, stamps_of
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.groups import first_of_each, groups_of, pairs_of
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.head import evaluating
from imagenet_ddp.models.regression import PrincipalAxes, Regression, fit_regression
from imagenet_ddp.runs.signals import SignalExit, raise_on_signal
from imagenet_ddp.system.text import count_noun, duration


class RegressionHead(L.Callback):
    """Before the first step, fit a logistic regression to the features of the training images, without augmentation,
    and start the last layer with its weights. The net with this layer is validated as epoch 0, so best.ckpt is never
    worse than the regression. Leave this callback out on resume.

    head: name of the layer in `pl_module.net`. seed: chooses the held-out images. say: writes a line to the log.
    until_s: the time.monotonic() by which this validation should end. Images are read as long as the rate so far leaves
    time for the regression and the validation. stored: file of a pass over the images, which is used if its net,
    preprocessing, precision and images are those of the run. estimates: the net stays as it is, so also find
    what accuracy to expect on new images, which `estimate` then has on rank 0.
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
        self.columns: Columns | None = None  # of the training images, on rank 0
        self._l2, self._groups = 0.0, np.empty(0, np.int64)  # of the regression, on rank 0
        self._device = torch.device("cpu")  # that it was fitted on
        self._digest = ""  # of the pass that can be used; on rank 0
        self._out_of_time = False

    def setup(self, trainer: L.Trainer, pl_module: Any, stage: str) -> None:
        trainer.num_sanity_val_steps = math.inf  # type: ignore[attr-defined]
        if self._stored is not None and self._stored.is_file() and trainer.is_global_zero:
            # now, because the strategy converts the net for bf16-true
            data: ImageDataModule = cast("Any", trainer).datamodule
            what = pl_module.net, (self.head,), data.eval_transform, Reading.of(data.options)
            self._digest = digest_of(*what, self._precision)

    def on_fit_start(self, trainer: L.Trainer, pl_module: Any) -> None:
        begin_s = time.monotonic()
        data: ImageDataModule = cast("Any", trainer).datamodule
        try:
            with raise_on_signal(), evaluating(pl_module.net):  # nothing is trained yet that could be saved
                self.columns = self._read_or_compute(trainer, pl_module, data)
                regression, num_read = self._fit(trainer, pl_module, data, self.columns)
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

    def _read_or_compute(self, trainer: L.Trainer, pl_module: Any, data: ImageDataModule) -> Columns | None:
        """Return the features of the training images on rank 0, in their order, and None on other ranks."""
        width = pl_module.net.get_submodule(self.head).in_features
        found = self._stored_features(width) if trainer.is_global_zero else None
        stored = None if found is None else of_training(found, data.train_images, data.source.digest, self._seed)
        if trainer.strategy.broadcast(stored is not None):
            self._say(f"The features of the training images are read from {self._stored}.")
            return stored
        num_images = count_noun(min(len(data.train_images), MAX_IMAGES), "training image")
        self._say(f"Computing the features of {num_images} for the last layer.")
        columns, self._out_of_time = compute_columns(
            trainer, pl_module, data, "train", self.head, until_s=self._until_s, num_after=len(data.val_images)
        )
        return columns

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
            self._l2, self._groups = regression.l2, _groups(data, index.numpy(), features.numpy())
            self._device = pl_module.device
            if self._estimates:
                self._estimate(features.numpy(), targets.numpy(), classes, pl_module.device)
        return trainer.strategy.broadcast(found)  # type: ignore[return-value]

    def _estimate(self, features: np.ndarray, targets: np.ndarray, classes: int, device: torch.device) -> None:
        if reason := why_no_estimate(targets, classes, self._groups):
            return self._say(reason)
        self.estimate = estimate(features, targets, classes, self._l2, self._seed, self._groups, device)

    def held_out_logits(self, num_classes: int) -> Tensor | None:
        """Return the logits of the training images, in the order of `columns`, each by a regression to the images of
        other folds, float32 (N, num_classes); None if folds say nothing. Call on rank 0."""
        if self.estimate is not None:
            return torch.as_tensor(self.estimate.shares).clamp_min(1e-12).log()
        if self.columns is None or why_no_estimate(self.columns[2].numpy(), num_classes, self._groups):
            return None
        features, targets = self.columns[1], self.columns[2].numpy()
        folds = fold_of_each(targets, seed=self._seed, groups=self._groups)
        axes = PrincipalAxes(features.to(self._device))
        shares = out_of_fold(features.numpy(), targets, num_classes, folds, self._l2, axes)
        return torch.as_tensor(shares).clamp_min(1e-12).log()


def of_training(found: Features, images: Images, source_digest: str, seed: int) -> Columns | None:
    """Return the stored features of the training images, of MAX_IMAGES drawn at random if there are more; None if
    those of an image that can be read are missing."""
    row_of = {stamp: row for row, stamp in enumerate(found.stamps.tolist())}
    rows = np.array([row_of.get(stamp, -1) for stamp in stamps_of(images, source_digest, "train").tolist()])
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
    """Return the group of each image, int64 (N,), which folds keep together: that of its source, and of images with
    equal features, which are copies. index: int64 (N,), of the images. features: float32 (N, D)."""
    images, first = data.train_images, dict[bytes, int]()
    pairs = [(at, first.setdefault(vector.tobytes(), at)) for at, vector in zip(index.tolist(), features, strict=True)]
    together = np.array(pairs, np.int64)
    if (groups := groups_of(images)) is not None:
        together = np.concatenate([together, pairs_of(groups)])
    return first_of_each(len(images), together)[index]
