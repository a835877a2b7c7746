from pathlib import Path

import pytest

from imagenet_ddp.data import files
from imagenet_ddp.data.decode import UnreadableImage
from imagenet_ddp.data.files import walk


def test_a_file_that_is_far_too_large_is_not_read(tmp_path: Path):
    (tmp_path / "cat").mkdir()
    with (tmp_path / "cat" / "huge.jpg").open("wb") as file:
        file.truncate(files.MAX_FILE_BYTES + 2**30)  # takes no room on the disk
    with pytest.raises(UnreadableImage, match=r"huge\.jpg .* the file has 2\.0 GiB"):
        walk(tmp_path, ["cat"]).open(0)
