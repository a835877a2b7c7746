"""Find the nearest images by the cosine of their features, with blocked matrix products."""

import numpy as np
import torch
from torch import Tensor

MOST_EXACT = 2**15  # references that are searched in all dimensions; of more, candidates come from NUM_AXES of them
NUM_AXES = 128  # principal axes
_BLOCK_BYTES = 2**26  # of the cosines that are computed at a time


def normalised(vectors: np.ndarray) -> Tensor:
    """Return the vectors with length 1, float32 (N, D); a vector of zeros stays so."""
    found = torch.from_numpy(np.ascontiguousarray(vectors, np.float32))
    return found / found.norm(dim=1, keepdim=True).clamp_min(1e-12)


def nearest(
    queries: np.ndarray, references: np.ndarray, k: int, *, exclude_self: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Return (cosines, positions) of the k references nearest to each query, nearest first: float32 and int64 (N, k);
    fewer columns if there are fewer references.

    Of more than MOST_EXACT references, the nearest are those with the highest cosine among 4 k + 16 candidates, which
    are the nearest by the differences from the mean in NUM_AXES principal axes.

    queries: float (N, D). references: float (M, D). exclude_self: query i is reference i, which does not count.
    """
    is_same = queries is references
    of_references = normalised(references)
    of_queries = of_references if is_same else normalised(queries)
    k = min(k, len(references) - exclude_self)
    if k <= 0 or not len(queries):
        return np.empty((len(queries), 0), np.float32), np.empty((len(queries), 0), np.int64)
    if len(references) <= MOST_EXACT or references.shape[1] <= NUM_AXES:
        cosines, positions = _search(of_queries, of_references, k, exclude_self)
        return cosines.numpy(), positions.numpy()
    mean = of_references.mean(0)
    some = of_references[:: len(of_references) // MOST_EXACT] - mean
    axes = torch.linalg.eigh(some.T @ some)[1][:, -NUM_AXES:]  # pyright: ignore[reportUnknownMemberType]
    in_axes = (of_references - mean) @ axes
    queries_in_axes = in_axes if is_same else (of_queries - mean) @ axes
    # |q - r|² is smallest where q · r - |r|² / 2 is largest
    lengths = in_axes.square().sum(1, keepdim=True)
    ones = queries_in_axes.new_ones(len(queries_in_axes), 1)
    extended = torch.cat([queries_in_axes, ones], 1), torch.cat([in_axes, -lengths / 2], 1)
    found = _search(*extended, min(4 * k + 16, len(references) - exclude_self), exclude_self)[1]
    cosines = torch.empty(found.shape)
    size = max(_BLOCK_BYTES // (4 * found.shape[1] * references.shape[1]), 1)
    for start in range(0, len(found), size):
        rows = slice(start, start + size)
        cosines[rows] = (of_references[found[rows]] @ of_queries[rows, :, None])[..., 0]
    cosines, order = cosines.topk(k)
    return cosines.numpy(), found.gather(1, order).numpy()


def _search(queries: Tensor, references: Tensor, k: int, exclude_self: bool) -> tuple[Tensor, Tensor]:
    """Return (products, positions) of the k references with the largest product with each query, (N, k)."""
    products, positions = torch.empty(len(queries), k), torch.empty(len(queries), k, dtype=torch.int64)
    size = max(_BLOCK_BYTES // (4 * len(references)), 1)
    for start in range(0, len(queries), size):
        block = queries[start : start + size] @ references.T
        if exclude_self:
            rows = torch.arange(len(block))
            block[rows, start + rows] = -torch.inf
        products[start : start + size], positions[start : start + size] = block.topk(k)
    return products, positions
