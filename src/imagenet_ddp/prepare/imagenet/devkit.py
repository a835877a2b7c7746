"""ILSVRC2012_devkit_t12.tar.gz: which number is which WordNet id, and the classes of the validation images."""

import gzip
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.imagenet import mat_file

META = "data/meta.mat"
TRUTH = "data/ILSVRC2012_validation_ground_truth.txt"
_MAX_BYTES = 2**28  # of one of them; the real ones have a few MiB


@dataclass(frozen=True)
class Devkit:
    num_train_images: dict[str, int]  # WordNet id of each class -> training images
    val_classes: list[str]  # WordNet id of ILSVRC2012_val_00000001, ..._00000002, ...


def read(path: Path) -> Devkit:
    """Raises ConfigError, naming the file."""
    files = _files(path)
    anew = f"Hint: delete {path}, and download it again."
    if missing := [name for name in (META, TRUTH) if name not in files]:
        raise ConfigError(f"{path} must hold {' and '.join(missing)}, but does not. {anew}")
    try:
        synsets = mat_file.read(files[META])["synsets"]
        # what is above the classes in WordNet's tree has children
        leaves = {int(one["ILSVRC2012_ID"][0]): one for one in synsets if int(one["num_children"][0]) == 0}
        counts = {one["WNID"]: int(one["num_train_images"][0]) for one in leaves.values()}
        if not all(isinstance(name, str) for name in counts):
            raise TypeError("WNID is no text")
    except (mat_file.MatlabError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(f"{META} in {path} must list ImageNet's classes, but {error}. {anew}") from error
    numbers = files[TRUTH].split()
    wrong = next((number for number in numbers if not number.isdigit() or int(number) not in leaves), None)
    if wrong is not None or not numbers:
        what = "is empty" if wrong is None else f"holds {wrong.decode(errors='replace')}"
        raise ConfigError(
            f"{TRUTH} in {path} must hold a number from 1 to {len(leaves)} for each validation image, but "
            f"{what}. {anew}"
        )
    return Devkit(counts, [leaves[int(number)]["WNID"] for number in numbers])


def _files(path: Path) -> dict[str, bytes]:
    found = {}
    try:
        with gzip.open(path) as unzipped, tarfile.open(fileobj=unzipped, mode="r|") as tar:
            for member in tar:
                name = "/".join(member.name.split("/")[-2:])
                if name in (META, TRUTH) and member.isreg() and member.size <= _MAX_BYTES:
                    content = tar.extractfile(member)
                    found[name] = content.read() if content else b""
                    if len(found[name]) < member.size:
                        raise EOFError
            while unzipped.read(2**20):  # to its end, where gzip has a checksum of all of it
                pass
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        if isinstance(error, PermissionError):
            raise ConfigError(f"{path} must be readable, but is not. Hint: chmod u+r {path}.") from error
        broken = isinstance(error, EOFError | tarfile.ReadError)
        why = "it breaks off" if broken else f"it cannot be read: {str(error).rstrip('.')}"
        raise ConfigError(
            f"{path} ({path.stat().st_size:,} bytes) must be a whole gzipped tar archive, but {why}. "
            "Hint: delete it, and download it again."
        ) from error
    return found
