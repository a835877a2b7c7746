"""Read ILSVRC2012_devkit_t12.tar.gz: the class of each validation image."""

import gzip
import hashlib
import tarfile
import zlib
from pathlib import Path

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare.imagenet.archives import Edition, describe_wrong_md5

GROUND_TRUTH = "data/ILSVRC2012_validation_ground_truth.txt"
_MAX_BYTES = 2**24  # of that file; the real one has 194,650


def read_val_classes(path: Path, edition: Edition, verify: bool) -> list[str]:
    """Return the WordNet ids of ILSVRC2012_val_00000001, ..._00000002 and so on. Raises ConfigError. verify: the MD5
    must be that of the edition."""
    if verify and (md5 := hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()) != edition.devkit.md5:
        raise ConfigError(describe_wrong_md5(path, edition.devkit, md5))
    ids = _ground_truth(path).split()
    is_known = [text.isdigit() and int(text) in edition.classes for text in ids]
    if not ids or not all(is_known):
        found = ids[is_known.index(False)].decode(errors="replace") if ids else "no line"
        raise ConfigError(
            f"each line of {GROUND_TRUTH} in {path} must be a number from 1 to {len(edition.classes)}, got {found}. "
            "Hint: download it again."
        )
    return [edition.classes[int(text)] for text in ids]


def _ground_truth(path: Path) -> bytes:
    content = None
    try:
        with gzip.open(path) as unzipped, tarfile.open(fileobj=unzipped, mode="r|") as tar:
            for member in tar:
                if member.name.endswith(GROUND_TRUTH) and member.isreg() and member.size <= _MAX_BYTES:
                    file = tar.extractfile(member)
                    content = file.read() if file is not None else b""
            while unzipped.read(2**20):  # up to the checksum at the end
                pass
    except (OSError, EOFError, zlib.error, tarfile.TarError) as error:
        raise ConfigError(
            f"{path} ({path.stat().st_size:,} bytes) must be a complete gzipped tar archive, but cannot be read: "
            f"{str(error).rstrip('.') or 'it ends early'}. Hint: download it again."
        ) from error
    if content is None:
        raise ConfigError(f"{path} must contain {GROUND_TRUTH}, but does not. Hint: download it again.")
    return content
