"""Find the nearest images by the cosine of their features, with blocked matrix products."""

import numpy as np
import torch
from torch import Tensor

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

    queries: float (N, D). references: float (M, D). exclude_self: query i is reference i, which does not count.
    """
    is_same = queries is references
    of_references = normalised(references)
    of_queries = of_references if is_same else normalised(queries)
    k = min(k, len(references) - exclude_self)
    cosines = torch.empty(len(queries), max(k, 0))
    positions = torch.empty(len(queries), max(k, 0), dtype=torch.int64)
    size = max(_BLOCK_BYTES // (4 * max(len(references), 1)), 1)
    for start in range(0, len(queries) if k > 0 else 0, size):
        block = of_queries[start : start + size] @ of_references.T
        if exclude_self:
            rows = torch.arange(len(block))
            block[rows, start + rows] = -torch.inf
        cosines[start : start + size], positions[start : start + size] = block.topk(k)
    return cosines.numpy(), positions.numpy()
