from pathlib import Path
from types import SimpleNamespace

import pytest

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.prepare import disk_space


@pytest.mark.parametrize(
    ("need", "free", "said"),
    [(1000, 999, "must have 1 MiB free, got 0 MiB"), (2**31 + 1, 2**31, "must have 2,049 MiB free, got 2,048 MiB")],
)
def test_the_figures_differ(need: int, free: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(disk_space.shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    with pytest.raises(ConfigError, match=said):
        disk_space.require_free_space(tmp_path, need, "")
    disk_space.require_free_space(tmp_path, free, "")
