from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from imagenet_ddp.engine.resume import require_same_data
from imagenet_ddp.errors import ConfigError


def test_a_resumed_run_needs_what_reads_its_position(tmp_path: Path) -> None:
    """With callbacks.checkpoint=null the rest of the epoch would be trained on its first images again."""
    parts = cast(Any, SimpleNamespace(checkpoint_callback=None))
    with pytest.raises(ConfigError, match=r"callbacks.checkpoint must be set to resume .*last.ckpt"):
        require_same_data(parts, tmp_path / "last.ckpt", 3, tmp_path)
