"""Measure the list of wrong labels: swap 5 % of the labels of a file of features with other classes, and count how many
of the n swapped ones stand among the first n and 2n of the list. Several seeds; the labels should be right.

    python -m imagenet_ddp.features experiment=finetune data.root=FOLDER
    python scripts/benchmarks/swapped_labels.py runs/features/NAME/features.npz
"""

import sys
import time
from pathlib import Path

import numpy as np

from imagenet_ddp.curation.cross_validation import fold_of_each, out_of_fold
from imagenet_ddp.curation.features import read_features
from imagenet_ddp.curation.wrong_labels import of_probabilities

NUM_SEEDS = 5
SHARE = 0.05


def main(file: str) -> None:
    features = read_features(Path(file))
    right, num_classes = features.targets, len(features.classes)
    print(f"{file}: {len(right):,} images of {num_classes:,} classes; share of the n swapped labels in the list")
    for seed in range(NUM_SEEDS):
        generator = np.random.default_rng(seed)
        swapped = generator.choice(len(right), round(SHARE * len(right)), replace=False)
        given = right.copy()
        given[swapped] = (given[swapped] + generator.integers(1, num_classes, len(swapped))) % num_classes
        begin_s = time.process_time()
        probabilities = out_of_fold(features.vectors, given, num_classes, fold_of_each(given, seed=seed))
        rows = of_probabilities(given, probabilities).rows
        first, second = (np.isin(rows[: k * len(swapped)], swapped).sum() / len(swapped) for k in (1, 2))
        accuracy, took_s = (probabilities.argmax(1) == right).mean(), time.process_time() - begin_s
        print(f"seed {seed}: first n {first:.3f}, first 2n {second:.3f}, whole list {len(rows):,} images, "
              f"accuracy {accuracy:.3f}, {took_s:.1f} CPU-seconds")  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1])
