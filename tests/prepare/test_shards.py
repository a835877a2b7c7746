from pathlib import Path

import numpy as np
import pytest

from imagenet_ddp.prepare import shards
from imagenet_ddp.prepare.encode import EncodedImage


def test_what_is_killed_between_two_files_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier run left an image out, this one reads it, and ends when its records are there and its images not."""
    (shard,) = shards.divide("train", np.zeros((2, 2)), 2, shuffle=False)
    (tmp_path / shards.WORK).mkdir()
    whole, bad = EncodedImage(b"whole", 1, 1, 7, 5), EncodedImage(b"", reason="EIO")
    shards.write(tmp_path, shard, [bad, whole], keep_bad=True)
    assert shards.find(tmp_path, shard)

    def killed(path: Path, target: Path) -> None:
        if target.suffix == ".bin":
            raise KeyboardInterrupt
        path.rename(target)

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        shards.write(tmp_path, shard, [whole, whole], keep_bad=False)
    assert shards.find(tmp_path, shard) is None
