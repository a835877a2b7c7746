"""Tell images that are like the training images from others, by the features before a net's last layer.

The familiarity of an image is the sum of two scores. The first says how much more likely its features are among those
of its nearest class than among those of all training images: the log of the ratio of two normal distributions with the
same covariance, which is that of the differences from the class means (as the relative Mahalanobis distance of Ren et
al. 2021, arXiv:2106.09022). It is the largest of one linear function of the features for each class. The second, which
counts half, is the mean cosine to the three nearest training images, seen from the mean of all. The first tells more
where the images of a class are much alike, the second where a class has things of several kinds. Each is divided by its
standard deviation among images that were held out. The sum is scaled so that 1 is that of a typical one of them, and 0
that of features in the middle of all. An image is known if its familiarity is at least a threshold, which 95 % of the
held-out images reach.

The training images are stored in some of their principal axes, and at most 1,024 of them, so that this takes at most
0.5 MB, and 0.5 KB for each feature.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from imagenet_ddp.config.figures import UNLIKE
from imagenet_ddp.curation.array_file import read_arrays
from imagenet_ddp.curation.cross_validation import fold_of_each
from imagenet_ddp.curation.features import Features
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.curation.recognise import digest_of
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.transforms import EvalTransform
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error
from imagenet_ddp.runs.result_files import KNOWN, known_file
from imagenet_ddp.system.files import atomic_path, short_path
from imagenet_ddp.system.text import count_noun, first_line

ACCEPTED = 0.95  # share of known images that are to be accepted
MIN_HELD_OUT = 20  # images from which the threshold is chosen, the fewest of which one can be 5 %
SHRINKAGE = 0.9  # weight of a multiple of the identity in the covariance, which few images determine badly
NEIGHBOURS, SHARE = 3, 0.5  # nearest images whose cosines are averaged; how much they count beside the nearest class
MOST_IMAGES, MOST_AXES = 1024, 128  # that are stored
MOST_FILE_BYTES = 2**28
_BLOCK = 4096  # images that are compared with those that are stored at a time


@dataclass(frozen=True)
class Reference:
    """What the familiarity of an image is computed from.

    weight, bias: float32 (K, D) and (K,), a linear function of the features for each class that has training images.
    centre: float32 (D,), mean of the training images. axes: float32 (A, D). images: float32 (N, A), training images in
    these axes. threshold: familiarity from which an image is known. digest: of the net below its last layer, and of the
    preprocessing.
    """

    weight: np.ndarray
    bias: np.ndarray
    centre: np.ndarray
    axes: np.ndarray
    images: np.ndarray
    threshold: float
    digest: str


_ARRAYS = "weight", "bias", "centre", "axes", "images"


class Familiarity(nn.Module):
    """Maps features, float (B, D), to the familiarity of each image, float32 (B,)."""

    def __init__(self, reference: Reference):
        super().__init__()
        for name in _ARRAYS:
            self.register_buffer(name, torch.from_numpy(getattr(reference, name)), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        of_class, of_images = self.parts(features)
        return of_class + of_images

    def parts(self, features: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two scores of which the familiarity is the sum."""
        features, images = features.float(), self.get_buffer("images")
        of_classes = F.linear(features, self.get_buffer("weight"), self.get_buffer("bias"))
        turned = F.linear(F.normalize(features - self.get_buffer("centre")), self.get_buffer("axes"))
        nearest = F.linear(turned, images).topk(min(NEIGHBOURS, len(images))).values
        return of_classes.amax(1), nearest.mean(1)


def reference_of(features: Features, digest: str) -> Reference:
    """Fit a reference to the training images. Its threshold is that of the validation images; of fewer than 20, that
    of all images, by references to the other four fifths. digest: result of net_digest. Raises ConfigError for
    features that are NaN or inf, and for training images of fewer than two classes."""
    vectors, targets, is_val = features.vectors, features.targets, features.is_val
    if not np.isfinite(vectors).all():
        raise ConfigError("the features must be finite, but some are NaN or inf. Hint: use an earlier checkpoint.")
    if len(np.unique(targets[~is_val])) < 2:
        raise ConfigError("the features must be those of training images of at least two classes. Hint: add images.")
    fitted = _fit(vectors[~is_val], targets[~is_val])
    if is_val.sum() >= MIN_HELD_OUT:
        parts = _parts(fitted, vectors[is_val])
    else:
        folds = fold_of_each(targets)
        others = [(folds == fold, _fit(vectors[folds != fold], targets[folds != fold])) for fold in np.unique(folds)]
        parts = np.concatenate([_parts(each, vectors[rows]) for rows, each in others], axis=1)
    spread = parts.std(1)
    factors = np.array([1, SHARE]) / np.where(spread > 0, spread, 1)
    scores = factors @ parts
    if (typical := np.median(scores)) > 0:
        scores, factors = scores / typical, factors / typical
    of_class, of_images = factors.astype(np.float32)
    return replace(
        fitted, weight=fitted.weight * of_class, bias=fitted.bias * of_class, images=fitted.images * of_images,
        threshold=accepting(scores), digest=digest,
    )  # fmt: skip


def _parts(reference: Reference, vectors: np.ndarray) -> np.ndarray:
    """Return the two scores of each image, float64 (2, N). vectors: float32 (N, D)."""
    model = Familiarity(reference)
    blocks = [torch.stack(model.parts(each)) for each in torch.from_numpy(vectors).split(_BLOCK)]
    return torch.cat(blocks, dim=1).double().numpy()


def _fit(vectors: np.ndarray, targets: np.ndarray) -> Reference:
    """Return a reference whose scores have no scale and no threshold yet."""
    centre = vectors.mean(0)
    is_stored = fold_of_each(targets, -(-len(vectors) // MOST_IMAGES)) == 0  # each class has the same share of them
    images = F.normalize(torch.from_numpy(vectors[is_stored] - centre)).numpy()
    axes = np.ascontiguousarray(np.linalg.svd(images, full_matrices=False)[2][:MOST_AXES])
    return Reference(*_class_functions(vectors, targets), centre, axes, images @ axes.T, 0.0, "")


def _class_functions(vectors: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
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


def find(checkpoint: Path, width: int, digest: Callable[[], str]) -> tuple[Reference | None, str]:
    """Return (the reference of a checkpoint's run, ""), or (None, why there is none). checkpoint: a file of this
    project. width: number of features of its net. digest: returns that of the net, which takes time."""
    path = known_file(checkpoint)
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
        np.savez(file, **vars(reference))


def write_reference(path: Path, features: Features, digest: str) -> str:
    """Fit a reference to features, and write it. Return a sentence for the log. digest: result of net_digest."""
    try:
        reference = reference_of(features, digest)
    except ConfigError as error:
        return f"No {KNOWN} is written: {error}"
    with disk_errors_as_run_error(path):
        write(path, reference)
    num_held_out = num if (num := int(features.is_val.sum())) >= MIN_HELD_OUT else len(features)
    num_reached = num_held_out - max(_place(num_held_out) - 1, 0)
    return (
        f"Written to {short_path(path)}, by which predict tells images {UNLIKE}. Of new images of the classes, "
        f"{interval_words(num_reached, num_held_out)} will be like them (95 % interval), because the threshold is that "
        f"of {count_noun(num_held_out, 'image')}."
    )


def read(path: Path) -> Reference:
    """Read a reference without running code from the file. Raises ConfigError for any other file."""
    try:
        *arrays, threshold, digest = read_arrays(path, (*_ARRAYS, "threshold", "digest"), MOST_FILE_BYTES).values()
        weight, bias, centre, axes, images = arrays
        if any(each.dtype != np.float32 or not np.isfinite(each).all() for each in arrays):
            raise ValueError("weight, bias, centre, axes and images must be finite float32")
        if any(each.ndim != 2 or not len(each) for each in (weight, axes, images)):
            raise ValueError("weight, axes and images must have two dimensions, and at least one row")
        shapes = bias.shape, centre.shape, axes.shape[1:], images.shape[1:]
        if shapes != (weight.shape[:1], weight.shape[1:], weight.shape[1:], axes.shape[:1]):
            raise ValueError("weight, bias, centre, axes and images must be (K, D), (K,), (D,), (A, D) and (N, A)")
        if threshold.dtype != np.float64 or threshold.shape or not np.isfinite(threshold):
            raise ValueError("threshold must be a number")
        if digest.dtype.kind != "U" or digest.shape:
            raise ValueError("digest must be text")
    except Exception as error:  # zip, memory, key or value errors, depending on the contents of the file
        reason = f"{type(error).__name__}: {first_line(error).rstrip('.')}"
        raise ConfigError(f"{path} must be what the command features writes, but is not ({reason}).") from error
    return Reference(weight, bias, centre, axes, images, float(threshold), str(digest))
