import atexit
import inspect
import re
import time
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

from imagenet_ddp.config.schema.distributed import StrategyConfig
from imagenet_ddp.strategies import process_group


def test_a_group_has_its_own_time_limit(monkeypatch: pytest.MonkeyPatch):
    """NCCL reads its unique ID from the store that init_process_group receives, and torch does not set its limit."""
    limit, timeout_s = timedelta(seconds=20), 0.5
    store = distributed.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=limit)
    prefixed = distributed.PrefixStore("group", store)

    def as_nccl(backend: str, *, store: distributed.Store, timeout: timedelta, **_: Any) -> None:
        assert backend == "gloo" and timeout.total_seconds() == timeout_s
        store.get("the unique ID of a rank 0 that does not come")

    monkeypatch.setattr(distributed, "init_process_group", as_nccl)
    begin_s = time.monotonic()
    with pytest.raises(distributed.DistStoreError):
        process_group.init_process_group(1, 2, prefixed, torch.device("cpu"), None, timeout_s)
    assert timeout_s - 0.1 < time.monotonic() - begin_s < 15
    assert getattr(store, "timeout") == limit  # noqa: B009 (torch declares no such attribute)


def test_batch_norm_over_all_ranks_needs_gpus():
    (text,) = process_group.validate(StrategyConfig(), "cpu", sync_batchnorm=True)
    assert "trainer.sync_batchnorm=true needs GPUs" in text and "Hint: set trainer.sync_batchnorm=false." in text


@pytest.mark.parametrize(
    ("backend", "kind", "message"),
    [
        (None, "cpu", None),
        (None, "cuda", None),
        ("gloo", "cuda", None),
        ("nccl", "cpu", "nccl is for GPUs, but this run uses CPUs. Hint: set "),
        ("gloo", "mps", "DistributedDataParallel on MPS, got mps. Hint: set trainer.devices=1"),
    ],
)
def test_backends(backend: str | None, kind: str, message: str | None) -> None:
    errors = process_group.validate(StrategyConfig(process_group_backend=backend), kind)
    assert (message is None and errors == []) or (message and message in errors[0]), errors


def test_the_page_explains_every_argument() -> None:
    """The error for an unknown strategy.* key refers to it."""
    page = (Path(__file__).parents[2] / "docs" / "strategies.md").read_text()
    named = set(re.findall(r"`(\w+)`", "".join(line for line in page.splitlines() if line.startswith("| `"))))
    assert inspect.signature(DistributedDataParallel).parameters.keys() <= named


def test_a_group_of_gpus_is_told_which_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL would otherwise guess it from the rank, which is wrong for trainer.devices=[2,3]."""
    asked, store = list[Any](), MagicMock()
    monkeypatch.setattr(distributed, "init_process_group", lambda backend, **more: asked.append((backend, more)))
    monkeypatch.setattr(atexit, "register", lambda *_: None)
    process_group.init_process_group(1, 2, store, torch.device("cuda", 3), None, 5.0)
    ((backend, more),) = asked
    assert (backend, more["device_id"]) == ("nccl", torch.device("cuda", 3))
