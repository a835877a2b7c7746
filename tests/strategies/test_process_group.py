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
from imagenet_ddp.mistakes import Fix, setting
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


BACKEND = "strategy.process_group_backend"


@pytest.mark.parametrize(
    ("backend", "kind", "sync", "key", "fixes"),
    [
        (None, "cpu", False, "", []),
        (None, "cuda", True, "", []),
        ("gloo", "cuda", False, "", []),
        ("nccl", "cpu", False, BACKEND, [setting(f"{BACKEND}=null")]),
        (None, "cpu", True, "trainer.sync_batchnorm", [setting("trainer.sync_batchnorm=false")]),
        ("gloo", "mps", False, "trainer.accelerator",
         [setting("trainer.devices=1", "trainer.num_nodes=1"), setting("trainer.accelerator=cpu")]),
    ],
)  # fmt: skip
def test_what_several_processes_need(backend: str | None, kind: str, sync: bool, key: str, fixes: list[Fix]) -> None:
    found = process_group.validate(StrategyConfig(process_group_backend=backend), kind, sync_batchnorm=sync)
    assert [(each.keys, [*each.fixes]) for each in found] == ([((key,), fixes)] if key else [])


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
