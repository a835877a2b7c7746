"""Read two torch Datasets of (image, label) pairs, for training and validation, as a source of images."""

from typing import Any

import numpy as np

from imagenet_ddp.data.sources.base import Images, Source
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import count_noun


class DatasetImages(Images):
    """The images of a Dataset. dataset: has __len__ and __getitem__, which returns (image, label). image: a PIL image,
    or uint8 (H, W, 3) as an array or (3, H, W) as a tensor, before any augmentation and normalisation. label: int.

    Labels are taken from its attribute `targets` or `labels`, if there is one, as torchvision's datasets have; else
    each pair is read once. An augmentation of the Dataset's own draws from the run's seed, like those of data.*.
    labels: value of data.labels; for several, the label of a pair is 0 or 1 for each class.
    """

    draws = True

    def __init__(self, dataset: Any, owner: str, labels: str = "one"):
        self._dataset, self._owner = dataset, owner
        known = _labels(dataset)
        self.is_read = known is None
        as_label: Any = np.asarray if labels == "several" else int
        self.targets = np.asarray([as_label(dataset[i][1]) for i in range(len(dataset))] if known is None else known)
        self.location = str(getattr(dataset, "root", None) or "")  # the folder of torchvision's datasets

    def read(self, index: int) -> Any:
        import torch  # not at the top: a command checks its data before

        image = self._dataset[index][0]
        if isinstance(image, torch.Tensor):
            shape, pixels = "(3, H, W)", image
        else:
            image = np.asarray(image.convert("RGB") if hasattr(image, "convert") else image)
            shape, pixels = "(H, W, 3)", torch.from_numpy(image.copy())
            pixels = pixels.permute(2, 0, 1) if pixels.dim() == 3 else pixels
        if pixels.dim() == 3 and len(pixels) == 3 and pixels.dtype == torch.uint8:
            return pixels
        got = f"{image.dtype} {tuple(image.shape)}"
        raise ConfigError(
            f"{self._owner}: image {index} must be a PIL image or uint8 {shape}, got {got}. "
            "Hint: leave the transforms out, because data.* resizes, augments and normalises."
        )


def is_pair(found: Any) -> bool:
    """Return whether a value is (training, validation) Datasets."""
    return isinstance(found, tuple | list) and len(found) == 2 and all(hasattr(each, "__getitem__") for each in found)


def open_datasets(pair: Any, owner: str, labels: str = "one") -> Source:
    """Return the source of (training, validation) Datasets. owner: the option that made them. labels: value of
    data.labels."""
    train, val = (DatasetImages(dataset, owner, labels) for dataset in pair)
    names = None if _changes_labels(pair[0]) else getattr(pair[0], "classes", None)
    if labels == "several":
        names = names or range(train.targets.shape[-1])
    names = names or range(max([*train.targets, *val.targets], default=-1) + 1)
    notes = []
    if train.is_read:
        count = count_noun(len(train) + len(val), "image")
        notes = [f"The labels of {count} were read one by one. A dataset with an attribute `targets` starts sooner."]
    train.read(0) if len(train) else None  # a wrong form is refused before the training
    return Source(list(map(str, names)), train, val, notes=notes)


def _labels(dataset: Any) -> Any:
    """Return the labels that a dataset, or that of which it is a Subset, has as an attribute; None if it has none."""
    if (indices := getattr(dataset, "indices", None)) is not None and hasattr(dataset, "dataset"):
        whole = _labels(dataset.dataset)
        return None if whole is None else np.asarray(whole)[np.asarray(indices)]
    if _changes_labels(dataset):
        return None
    for name in ("targets", "labels"):
        labels = getattr(dataset, name, None)
        if labels is not None and not callable(labels) and len(labels) == len(dataset):
            return labels
    return None


def _changes_labels(dataset: Any) -> bool:
    """Return whether the labels of the pairs are others than those of the attributes, as torchvision allows."""
    return getattr(dataset, "target_transform", None) is not None
