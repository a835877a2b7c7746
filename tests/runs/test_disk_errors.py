"""What a run says where the disk refuses to write."""

import errno
from pathlib import Path

import pytest

from imagenet_ddp.errors import RunError
from imagenet_ddp.runs.disk_errors import disk_errors_as_run_error


@pytest.mark.parametrize(
    ("saved", "said"),
    [(True, "Files saved earlier are intact. Hint: make room there, then set resume="),
     (False, "Hint: make room there, then run the same command again.")],
)  # fmt: skip
def test_a_disk_refuses_while_a_run_goes_on(tmp_path: Path, saved: bool, said: str) -> None:
    (tmp_path / "checkpoints").mkdir()
    if saved:
        (tmp_path / "checkpoints/last.ckpt").touch()
    with pytest.raises(RunError) as caught, disk_errors_as_run_error(tmp_path / "checkpoints/next.ckpt"):
        raise OSError(errno.ENOSPC, "No space left on device")
    refused = f"{tmp_path}/checkpoints/next.ckpt cannot be written: no space left on device."
    assert str(caught.value).startswith(f"{refused} {said}{tmp_path if saved else ''}")
