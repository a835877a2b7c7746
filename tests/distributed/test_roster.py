"""What must be the same in every command of one run."""

import json
from pathlib import Path
from typing import Any

import pytest

from imagenet_ddp.config.schema.commands import RunConfig
from imagenet_ddp.config.schema.distributed import NcclConfig
from imagenet_ddp.distributed import roster
from imagenet_ddp.distributed.roster import code_digest, differences, facts_of_command


def config(**changed: Any) -> RunConfig:
    config = RunConfig(nccl=NcclConfig(env={}))
    for key, value in changed.items():
        node, _, name = key.rpartition("__")
        setattr(getattr(config, node) if node else config, name, value)
    return config


def differing(**changed: Any) -> list[str]:
    return differences([facts_of_command(config(), 2), facts_of_command(config(**changed), 2)], "node")


@pytest.mark.parametrize(
    "own",
    [
        {"cluster__rank": 1}, {"cluster__address": "a:5"}, {"nccl__env": {"NCCL_SOCKET_IFNAME": "eth0"}},
        {"data__root": "elsewhere"}, {"data__val_dir": "other"}, {"resume": "x.ckpt"},
    ],
)  # fmt: skip
def test_a_node_s_own_may_differ(own: dict[str, Any]):
    assert differing(**own) == []
    assert json.loads(json.dumps(facts_of_command(config(**own), 2))) == facts_of_command(config(**own), 2)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"seed": 1}, "the nodes disagree on seed: 0 on node 0; 1 on node 1. Hint: use the same options, images and "),
        ({"nccl__env": {"NCCL_NET": "IB"}}, "nccl.env.NCCL_NET: not set on node 0; IB on node 1."),
    ],
)
def test_other_options_may_not(changed: dict[str, Any], said: str):
    assert any(said in text for text in differing(**changed))


def test_paths_of_the_host_may_differ():
    """Wherever they stand: a disk may be mounted elsewhere."""
    assert differences([{"trainer.x": "/a"}, {"trainer.x": "/b"}], "rank") == []
    assert len(differences([{"trainer.x": "/a"}, {"trainer.x": "b"}], "rank")) == 1


def test_the_code_s_digest_sees_every_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    package = tmp_path / "package"
    (package / "distributed").mkdir(parents=True)
    (package / "a.py").write_text("1")
    monkeypatch.setattr(roster, "__file__", str(package / "distributed" / "facts.py"))
    seen = {code_digest.__wrapped__()}
    (package / "a.py").write_text("2")
    seen.add(code_digest.__wrapped__())
    (package / "a.py").rename(package / "b.py")
    assert len(seen | {code_digest.__wrapped__()}) == 3
