"""Make features as a net would give them, without a net."""

import numpy as np

from imagenet_ddp.curation.features import Features


def blobs(num: int, num_classes: int = 3, size: int = 16, spread: float = 0.3, seed: int = 0) -> Features:
    """Return features of classes around random centres. Every fifth image is a validation image."""
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(num_classes, size))
    targets = np.arange(num) % num_classes
    vectors = (centres[targets] + spread * generator.normal(size=(num, size))).astype(np.float32)
    is_val = np.arange(num) % 5 == 4
    order = np.argsort(is_val, kind="stable")  # the training images first
    is_val = is_val[order]
    index = np.concatenate([np.arange((~is_val).sum()), np.arange(is_val.sum())])
    names = [f"class{number}" for number in range(num_classes)]
    paths = [f"{names[targets[row]]}/{row:05}.jpg" for row in order]
    return Features(
        vectors[order], targets[order], is_val, index, np.arange(num, dtype=np.uint64)[order], paths, names,
        list(names), [], "a net", "digest",
    )  # fmt: skip
