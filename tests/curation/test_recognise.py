"""What makes a stored pass count for a net and for an image."""

import os
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from imagenet_ddp.curation.recognise import digest_of, stamps_of
from imagenet_ddp.data.decoding.decode import Reading
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.image_files import list_images
from imagenet_ddp.data.transforms import EvalTransform


class Plain(Images):
    """Images without names, as a source of one's own may have them."""

    def __init__(self, location: str):
        self.targets, self.location = np.zeros(3, np.int64), location

    def read(self, index: int) -> Tensor:
        return torch.zeros(3, 8, 8, dtype=torch.uint8)


def test_no_two_images_have_one_stamp_although_names_sizes_and_times_are_equal(tmp_path: Path):
    for split in ("train", "val"):
        for name in ("0.bmp", "1.bmp"):
            file = tmp_path / split / "cat" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8)).save(file)
            os.utime(file, (10**9, 10**9))
    files = [list_images(tmp_path / split, ["cat"], Reading()) for split in ("train", "val")]
    plain = [Plain(str(tmp_path)) for _ in range(2)]
    found = [
        stamps_of(images, "", split)
        for pair in (files, plain)
        for split, images in zip(("train", "val"), pair, strict=True)
    ]
    assert len(np.unique(np.concatenate(found))) == 2 + 2 + 3 + 3
    assert (stamps_of(files[0], "", "val") == found[0]).all()  # an image keeps its stamp in another split
    assert (stamps_of(plain[0], "", "train") == found[2]).all()


def test_images_in_one_file_are_others_once_the_file_has_changed(tmp_path: Path):
    file = tmp_path / "images.npz"
    file.write_bytes(b"1")
    before = stamps_of(Plain(str(file)), "", "train")
    file.write_bytes(b"22")
    assert not np.isin(stamps_of(Plain(str(file)), "", "train"), before).any()
    nowhere = stamps_of(Plain(""), "", "train")  # whether these have changed cannot be told
    assert not np.isin(stamps_of(Plain(""), "", "train"), nowhere).any()


def test_the_digest_depends_on_each_weight_below_the_head_in_any_type():
    transform = EvalTransform(32, 36, (0.5,) * 3, (0.2,) * 3, "bilinear", "crop", 0.0, 0.0, False)
    net = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))

    def digest() -> str:
        return digest_of(net, ("2",), transform, Reading(), "32-true")

    for kind in (torch.float32, torch.bfloat16):
        net.to(kind)
        first = digest()
        with torch.no_grad():
            net.get_submodule("2").weight.add_(1)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
        assert digest() == first
        with torch.no_grad():
            net.get_submodule("0").weight.add_(1)  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
        assert digest() != first
