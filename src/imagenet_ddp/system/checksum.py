"""Compute checksums of files block by block, and verify the checksums stored in a zip file."""

import hashlib
import zipfile
from pathlib import Path

from imagenet_ddp.system.text import first_line


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def zip_damage(path: Path) -> str:
    """Return how a zip file is damaged, "" if it is not. torch.save writes a zip file with a CRC-32 of each part, which
    torch.load does not verify."""
    try:
        with zipfile.ZipFile(path) as file:
            part = file.testzip()
    except Exception as error:  # zipfile raises many kinds of exceptions for wrong headers
        return first_line(error).rstrip(".")
    return f"its part {part} has another checksum" if part else ""


def begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"
