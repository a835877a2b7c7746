"""Choose the images of a folder without labels that are worth labelling next: images of which the net is uncertain, and
which are unlike each other."""

import numpy as np
import torch

from imagenet_ddp.curation.neighbours import normalised

NEAR_COPY = 0.95  # cosine of centred features from which two images are too alike to label both
_ROUNDS = 10  # of k-means
_BLOCK = 4096  # images


def choose(vectors: np.ndarray, margins: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the images to label, int64 (at most count,).

    The images are grouped by k-means, each weighted by its uncertainty, 1 - margin, and the image at the centre of each
    group is chosen, as in Zhdanov 2019 (arXiv:1901.05954). The group with the largest weight comes first. An image with
    a cosine of 0.95 or more to a chosen one is left out.

    vectors: float (N, D). margins: float (N,), the probability of the first class minus that of the second.
    """
    count = min(count, len(vectors))
    if not count:
        return np.empty(0, np.int64)
    units = normalised(vectors - vectors.mean(0))
    weights = torch.from_numpy(1 - margins).float().clamp_min(1e-6)
    centres = _spread(units, weights, count)
    nearest = _nearest(units, centres)
    for _ in range(_ROUNDS):
        sums = torch.zeros_like(centres).index_add_(0, nearest, units * weights[:, None])
        lengths = sums.norm(dim=1, keepdim=True)
        centres = torch.where(lengths > 0, sums / lengths.clamp_min(1e-12), centres)
        nearest = _nearest(units, centres)
    mass = torch.zeros(count).index_add_(0, nearest, weights)
    is_free, found = torch.ones(len(units), dtype=torch.bool), list[int]()
    for centre in centres[mass.argsort(descending=True, stable=True)]:
        best = int((units @ centre).masked_fill(~is_free, -2).argmax())
        if not is_free[best]:
            break
        found.append(best)
        is_free &= units @ units[best] < NEAR_COPY
        is_free[best] = False  # also a vector of zeros
    return np.array(found, np.int64)


def place(vectors: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (how many of the images that are not chosen are nearest to each chosen one, int64 (C,); the cosine of each
    chosen one to the nearest one before it, float32 (C,), NaN for the first). vectors: as for choose. chosen: its
    result."""
    units = normalised(vectors - vectors.mean(0))
    others = torch.ones(len(units), dtype=torch.bool)
    others[torch.from_numpy(chosen)] = False
    listed = units[torch.from_numpy(chosen)]
    counts = torch.bincount(_nearest(units[others], listed), minlength=len(listed))
    before = (listed @ listed.T).masked_fill(torch.ones(len(listed), len(listed)).triu() > 0, -2).amax(1)
    before[0] = torch.nan
    return counts.numpy(), before.numpy()


def _spread(units: torch.Tensor, weights: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first centres, drawn as in k-means++: by weight times the distance to the nearest one before."""
    generator, distances = torch.Generator().manual_seed(0), torch.ones(len(units))
    chosen = list[int]()
    for _ in range(count):
        shares = weights * distances
        shares = shares if shares.sum() > 0 else weights  # all images are equal to one that was drawn
        chosen.append(int(torch.multinomial(shares, 1, generator=generator)))
        distances = torch.minimum(distances, (1 - units @ units[chosen[-1]]).clamp_min(0))
    return units[chosen]


def _nearest(units: torch.Tensor, centres: torch.Tensor) -> torch.Tensor:
    """Return the position of the nearest centre, int64 (N,)."""
    return torch.cat([(block @ centres.T).argmax(1) for block in units.split(_BLOCK)])
