import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import SMALL, Run
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
    assert timeout_s - 0.1 < time.monotonic() - begin_s < 15
    assert getattr(store, "timeout") == limit  # noqa: B009 (torch declares no such attribute)


@pytest.mark.parametrize(
    ("backend", "kind", "built", "message"),
    [
        (None, "cpu", {"gloo"}, None),
        (None, "cuda", {"nccl", "gloo"}, None),
        ("gloo", "cuda", {"nccl", "gloo"}, None),
        ("nccl", "cpu", {"nccl", "gloo"}, "nccl is for GPUs, but this run uses CPUs. Hint: set "),
        ("nccl", "cuda", {"gloo"}, "nccl needs a torch that was built with NCCL"),
        (None, "cuda", {"gloo"}, "nccl (the default for cuda) needs a torch that was built with NCCL"),
        (None, "cpu", set(), "gloo (the default for cpu) needs a torch that was built with GLOO"),
        ("gloo", "mps", {"gloo"}, "DistributedDataParallel on MPS, got mps. Hint: set trainer.devices=1"),
    ],
)
def test_backends_that_torch_does_not_have(
    monkeypatch: pytest.MonkeyPatch, backend: str | None, kind: str, built: set[str], message: str | None
) -> None:
    for name in ("nccl", "gloo"):
        monkeypatch.setattr(distributed, f"is_{name}_available", lambda name=name: name in built)
    errors = process_group.validate({"process_group_backend": backend, "comm_hook": None}, kind)
    assert (message is None and errors == []) or (message and message in errors[0]), errors


def test_batch_norm_over_all_ranks_needs_gpus(run: Run, tree: Path, tmp_path: Path) -> None:
    done = run("train", *SMALL, f"data.root={tree}", "trainer.devices=2", "trainer.sync_batchnorm=true")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "trainer.sync_batchnorm=true needs GPUs" in said and "Hint: set trainer.sync_batchnorm=false." in said
    assert "Traceback" not in said and not list(tmp_path.glob("runs/*/*"))
