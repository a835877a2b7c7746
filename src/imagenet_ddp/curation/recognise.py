"""Recognise what features were computed from: the net with its preprocessing, and each image."""

import hashlib
import os
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from torch import nn

from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.image_files import FileImages
from imagenet_ddp.data.transforms import EvalTransform
from imagenet_ddp.models.head import is_in_head


def digest_of(net: nn.Module, heads: tuple[str, ...], transform: EvalTransform, reading: Reading, how: Any) -> str:
    """Return a digest of all weights but those of the heads, of the preprocessing, and of `how` the net computes."""
    found = hashlib.sha256(repr((astuple(transform), astuple(reading), how)).encode())
    for name, tensor in sorted(net.state_dict().items()):
        if not is_in_head(name, heads):
            found.update(f"{name} {tuple(tensor.shape)}".encode())
            found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())  # numpy has no bf16
    return found.hexdigest()[:16]


def stamps_of(images: Images, source_digest: str, split: str) -> np.ndarray:
    """Return a hash of each image, uint64 (N,), by which an unchanged image is recognised, as make does: of its path,
    its size and the time of its last change; if it is no file, of its name and split, the source's digest, and the size
    and last change of the file or folder that has them all. Without one, no image is recognised later.
    """
    found = np.empty(len(images), np.uint64)
    if isinstance(images, FileImages):
        folder, place = os.path.realpath(images.folder), ""  # train and val may have the same names below it
    else:
        folder, place = "", f"{split}\0{getattr(images, 'folder', '')}\0{_state_of(images.location)}\0{source_digest}"
    for index in range(len(images)):
        path = images.path(index)
        text = f"{path}\0{place}"
        if isinstance(images, FileImages):
            try:
                status = os.stat(path)  # noqa: PTH116 (hot loop)
                text = f"{os.path.join(folder, images.name(index))}\0{status.st_size}\0{status.st_mtime_ns}"  # noqa: PTH118
            except (OSError, ValueError):
                text = f"{path}\0missing"
        digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=8).digest()
        found[index] = int.from_bytes(digest, "little")
    return found


def _state_of(location: str) -> str:
    """Return what changes when the images there change. location: a file, a folder, an address, or ""."""
    if "://" in location:
        return location  # of a packed folder, whose content chooses the local folder
    try:
        status = os.stat(location)  # noqa: PTH116 (also of "")
        return f"{location}\0{status.st_size}\0{status.st_mtime_ns}"
    except (OSError, ValueError):
        return os.urandom(8).hex()
