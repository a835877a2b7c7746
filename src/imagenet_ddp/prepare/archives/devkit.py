"""Read the classes of ImageNet's validation images from the devkit. Does not import torch."""

import gzip
import io
import tarfile
from pathlib import Path

from imagenet_ddp.data.sources.imagenet import class_table

DEVKIT = "ILSVRC2012_devkit_t12.tar.gz"
GROUND_TRUTH = "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt"
MAX_BYTES = 2**28  # of the unpacked devkit, which has some MB


def val_classes(path: Path) -> list[str]:
    """Return the WordNet ID of each validation image, in the order of the images' numbers. Raises OSError,
    EOFError, zlib.error, tarfile.TarError, KeyError or ValueError for another file."""
    if not path.is_file():
        raise OSError("it is not a file")
    with gzip.open(path) as packed:
        content = packed.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise ValueError("it is too large")
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        member = tar.getmember(GROUND_TRUTH)
        file = tar.extractfile(member) if member.isreg() else None
        if file is None:
            raise ValueError(f"{GROUND_TRUTH} is not a file")
        numbers = file.read().split()
    wordnet_ids = {int(ilsvrc_id): wordnet_id for wordnet_id, _, ilsvrc_id in class_table()}
    return [wordnet_ids[int(number)] for number in numbers]
