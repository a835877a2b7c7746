"""What must be the same in every command of one run, and the GPU that each rank must have for itself."""

import json
from pathlib import Path
from typing import Any

import pytest

from imagenet_ddp.config.schema.distributed import NcclConfig
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.distributed import compare_members
from imagenet_ddp.distributed.compare_members import code_digest, differences, shared_gpus
from imagenet_ddp.launch.processes import compared_options


def facts(**changed: Any) -> dict[str, Any]:
    config = RunConfig(nccl=NcclConfig(env={}))
    for key, value in changed.items():
        node, _, name = key.rpartition("__")
        setattr(getattr(config, node) if node else config, name, value)
    found = compared_options(config, "train")
    assert json.loads(json.dumps(found)) == found
    return found


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"seed": 1},
            "the nodes disagree on seed: 0 on node 0; 1 on node 1. Hint: use the same options, code, images ",
        ),
        ({"nccl__env": {"NCCL_NET": "IB"}}, "nccl.env.NCCL_NET: not set on node 0; IB on node 1."),
        # a node's own
        ({"cluster__rank": 1}, None),
        ({"cluster__address": "a:5"}, None),
        ({"nccl__env": {"NCCL_SOCKET_IFNAME": "eth0"}}, None),
        ({"data__root": "elsewhere"}, None),
        ({"data__val_dir": "other"}, None),
        ({"resume": "x.ckpt"}, None),
    ],
)
def test_options_that_differ(changed: dict[str, Any], said: str | None):
    found = differences({0: facts(), 1: facts(**changed)}, "node")
    assert any(said in text for text in found) if said else found == []


def test_paths_of_the_host_may_differ():
    """Wherever they stand: a disk may be mounted elsewhere."""
    assert differences(dict(enumerate([{"trainer.x": "/a"}, {"trainer.x": "/b"}])), "rank") == []
    assert len(differences(dict(enumerate([{"trainer.x": "/a"}, {"trainer.x": "b"}])), "rank")) == 1


def test_the_code_s_digest_sees_every_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    package = tmp_path / "package"
    (package / "distributed").mkdir(parents=True)
    (package / "a.py").write_text("1")
    monkeypatch.setattr(compare_members, "__file__", str(package / "distributed" / "facts.py"))
    seen = {code_digest.__wrapped__()}
    (package / "a.py").write_text("2")
    seen.add(code_digest.__wrapped__())
    (package / "a.py").rename(package / "b.py")
    assert len(seen | {code_digest.__wrapped__()}) == 3


def test_a_gpu_that_two_ranks_share_is_named() -> None:
    assert shared_gpus(["GPU-a", "GPU-b", None, None], str) == []
    (text,) = shared_gpus(["GPU-a", "GPU-b", "GPU-c", "GPU-c"], lambda rank: f"rank {rank}")
    assert "rank 2 and rank 3 share GPU-c. Hint: set" in text
