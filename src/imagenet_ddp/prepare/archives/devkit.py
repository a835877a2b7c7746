"""Read the classes of ImageNet's validation images from the devkit. Does not import torch."""

import tarfile
from pathlib import Path

from imagenet_ddp.data.sources.imagenet import class_table

DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
GROUND_TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
MAX_BYTES = 2**24  # of that file, which has 200 kB


def val_classes(path: Path) -> list[str]:
    """Return the WordNet ID of each validation image, in the order of the images' numbers. Raises OSError,
    tarfile.TarError, KeyError or ValueError for another file."""
    with tarfile.open(path) as tar:
        file = tar.extractfile(GROUND_TRUTH)
        assert file is not None
        numbers = file.read(MAX_BYTES).split()
    wordnet_ids = {int(ilsvrc_id): wordnet_id for wordnet_id, _, ilsvrc_id in class_table()}
    return [wordnet_ids[int(number)] for number in numbers]
