import time
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import distributed

from imagenet_ddp.distributed.strategies import process_group


@pytest.mark.parametrize(("rendezvous_s", "timeout_s"), [(0.2, 1.0), (20.0, 0.5)])
def test_a_group_has_its_own_time_limit(monkeypatch: pytest.MonkeyPatch, rendezvous_s: float, timeout_s: float):
    """NCCL reads its unique ID from the store that init_process_group receives, and torch does not set its limit."""
    limit = timedelta(seconds=rendezvous_s)
    store = distributed.TCPStore("127.0.0.1", 0, None, is_master=True, wait_for_workers=False, timeout=limit)
    prefixed = distributed.PrefixStore("group", store)

    def as_nccl(backend: str, *, store: distributed.Store, timeout: timedelta, **_: Any) -> None:
        assert backend == "gloo" and timeout.total_seconds() == timeout_s
        store.get("the unique ID of a rank 0 that does not come")

    monkeypatch.setattr(distributed, "init_process_group", as_nccl)
    begin_s = time.monotonic()
    with pytest.raises(distributed.DistStoreError):
        process_group.init_process_group(1, 2, prefixed, torch.device("cpu"), None, timeout_s)
    assert abs(time.monotonic() - begin_s - timeout_s) < 0.5
    assert getattr(store, "timeout") == limit  # noqa: B009 (torch declares no such attribute)
