"""Tell images that are like the training images from others, by the features before a net's last layer.

The familiarity of an image says how much more likely its features are among those of its nearest class than among those
of all training images: the log of the ratio of two normal distributions with the same covariance, which is that of the
differences from the class means (as the relative Mahalanobis distance of Ren et al. 2021, arXiv:2106.09022). It is the
largest of one linear function of the features for each class, so what is stored is as large as the last layer. It is
scaled so that 1 is that of a typical image that was held out, and 0 that of features in the middle of all classes. An
image is known if its familiarity is at least a threshold, which 95 % of the held-out images reach.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from imagenet_ddp.curation.array_file import read_arrays
from imagenet_ddp.curation.cross_validation import fold_of_each
from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.curation.recognise import digest_of
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.transforms import EvalTransform
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.system.files import atomic_path
from imagenet_ddp.system.text import count_noun, first_line

FILE = "known.npz"  # in the run folder
ACCEPTED = 0.95  # share of known images that are to be accepted
MIN_HELD_OUT = 20  # images from which the threshold is chosen, the fewest of which one can be 5 %
SHRINKAGE = 0.9  # weight of a multiple of the identity in the covariance, which few images determine badly
MOST_FILE_BYTES = 2**28


@dataclass(frozen=True)
class Reference:
    """What the familiarity of an image is computed from.

    weight, bias: float32 (K, D) and (K,), a linear function of the features for each class that has training images.
    threshold: familiarity from which an image is known. digest: of the net below its last layer, and of the
    preprocessing.
    """

    weight: np.ndarray
    bias: np.ndarray
    threshold: float
    digest: str


def familiarity(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return the familiarity of each image, float32 (B,). features: float (B, D). weight, bias: of a Reference, on the
    same device."""
    return F.linear(features.float(), weight, bias).amax(1)


def reference_of(features: Features, digest: str) -> Reference:
    """Fit a reference to the training images. Its threshold is that of the validation images; of fewer than 20, that
    of all images, by references to the other four fifths. digest: result of net_digest. Raises ConfigError for
    training images of fewer than two classes."""
    vectors, targets, is_val = features.vectors, features.targets, features.is_val
    if len(np.unique(targets[~is_val])) < 2:
        raise ConfigError("the features must be those of training images of at least two classes. Hint: add images.")
    weight, bias = _fit(vectors[~is_val], targets[~is_val])
    scores = (vectors[is_val] @ weight.T + bias).max(1) if is_val.any() else np.empty(0)
    if len(scores) < MIN_HELD_OUT:
        folds = fold_of_each(targets)
        parts = [(folds == fold, *_fit(vectors[folds != fold], targets[folds != fold])) for fold in np.unique(folds)]
        scores = np.concatenate([(vectors[rows] @ each.T + constant).max(1) for rows, each, constant in parts])
    typical = float(np.median(scores))
    scale = typical if typical > 0 else 1.0
    return Reference(weight / np.float32(scale), bias / np.float32(scale), accepting(scores) / scale, digest)


def _fit(vectors: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (weight, bias) of a linear discriminant analysis, whose largest output is the log likelihood ratio of the
    nearest class to the middle of all."""
    classes, targets = np.unique(targets, return_inverse=True)
    centre = vectors.mean(0)
    means = np.zeros((len(classes), vectors.shape[1]), np.float32)
    np.add.at(means, targets, vectors - centre)
    means /= np.bincount(targets)[:, None]
    rest = vectors - centre - means[targets]
    covariance = rest.T @ rest / max(len(rest) - len(classes), 1)
    variance = max(float(np.trace(covariance)) / len(covariance), 1e-3 * float(np.square(means).mean()), 1e-12)
    covariance *= 1 - SHRINKAGE
    covariance[np.diag_indices_from(covariance)] += SHRINKAGE * variance
    weight = np.ascontiguousarray(np.linalg.solve(covariance, means.T).T)
    return weight, -weight @ centre - (weight * means).sum(1) / 2


def accepting(scores: np.ndarray) -> float:
    """Return the threshold that a further image of the same kind reaches with a probability of at least 95 %, as in
    split conformal prediction; of fewer than 19 images, the lowest score. scores: float (N,), N > 0."""
    return float(np.sort(scores)[max(_place(len(scores)) - 1, 0)])


def _place(number: int) -> int:
    """Return the place, from 1, of the threshold among `number` ascending scores; 0: they are too few."""
    return int((number + 1) * (1 - ACCEPTED) + 1e-9)


# ---- the net and the file -------------------------------------------------------------------------------------------


def net_digest(net: nn.Module, heads: tuple[str, ...], transform: EvalTransform, reading: Reading) -> str:
    """Return a digest of what the features depend on, except for rounding, by which precisions and decoders differ.
    heads: names of the layers that compute the logits."""
    reading = replace(reading, decoder="auto")  # a training has the name of the one that it uses
    return digest_of(net, heads, replace(transform, val_mirror=False), reading, "")


def file_of(checkpoint: Path) -> Path:
    """Return the path of known.npz in the run folder of a checkpoint, or beside a checkpoint that is in none."""
    return (CheckpointStore.run_dir_of(checkpoint) or checkpoint.parent) / FILE


def find(checkpoint: Path, width: int, digest: Callable[[], str]) -> tuple[Reference | None, str]:
    """Return (the reference of a checkpoint's run, ""), or (None, why there is none). checkpoint: a file of this
    project. width: number of features of its net. digest: returns that of the net, which takes time."""
    path = file_of(checkpoint)
    if not path.exists():
        return None, f"there is no {path}"
    try:
        found = read(path)
    except ConfigError as error:
        return None, str(error).rstrip(".")
    if found.weight.shape[1] != width or found.digest != digest():
        return None, f"{path} is of other weights, or of another preprocessing"
    return found, ""


def write(path: Path, reference: Reference) -> None:
    """Write a reference, for `read`."""
    with atomic_path(path) as draft, draft.open("wb") as file:
        np.savez(
            file, weight=reference.weight, bias=reference.bias, threshold=reference.threshold, digest=reference.digest
        )


def write_reference(path: Path, features: Features, digest: str) -> str:
    """Fit a reference to features, and write it. Return a sentence for the log. digest: result of net_digest."""
    try:
        reference = reference_of(features, digest)
    except ConfigError as error:
        return f"No {FILE} is written: {error}"
    with disk_errors_as_run_error(path):
        write(path, reference)
    num_held_out = num if (num := int(features.is_val.sum())) >= MIN_HELD_OUT else len(features)
    num_reached = num_held_out - max(_place(num_held_out) - 1, 0)
    return (
        f"Written to {path}, by which predict tells unknown images. Of new images of the classes, "
        f"{interval_words(num_reached, num_held_out)} will be known (95 % interval), because the threshold is that of "
        f"{count_noun(num_held_out, 'image')}."
    )


def read(path: Path) -> Reference:
    """Read a reference without running code from the file. Raises ConfigError for any other file."""
    try:
        names = "weight", "bias", "threshold", "digest"
        weight, bias, threshold, digest = read_arrays(path, names, MOST_FILE_BYTES).values()
        if weight.ndim != 2 or not len(weight) or bias.shape != weight.shape[:1]:
            raise ValueError("weight and bias must be (K, D) and (K,)")
        if any(each.dtype != np.float32 or not np.isfinite(each).all() for each in (weight, bias)):
            raise ValueError("weight and bias must be finite float32")
        if threshold.dtype != np.float64 or threshold.shape or not np.isfinite(threshold):
            raise ValueError("threshold must be a number")
        if digest.dtype.kind != "U" or digest.shape:
            raise ValueError("digest must be text")
    except Exception as error:  # zip, memory, key or value errors, depending on the contents of the file
        reason = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        raise ConfigError(f"{path} must be what the command features writes, but is not ({reason}).") from error
    return Reference(np.ascontiguousarray(weight), bias, float(threshold), str(digest))
