from pathlib import Path

import pytest
import torch

from imagenet_ddp.export import torch_export_format
from imagenet_ddp.runs.checkpoint_file import KEY


def test_the_file_and_a_full_disk(tmp_path: Path):
    program = torch.export.export(torch.nn.Linear(2, 3), (torch.zeros(1, 2),))
    torch_export_format.save(program, tmp_path / "m.pt2", "words")
    extra = {KEY: ""}
    found = torch.export.load(tmp_path / "m.pt2", extra_files=extra)
    assert found.module()(torch.zeros(1, 2)).shape == (1, 3) and extra[KEY] == "words"
    with pytest.raises(OSError, match="No space left on device"):
        torch_export_format.save(program, Path("/dev/full"), "words")
