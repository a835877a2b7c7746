from dataclasses import asdict
from typing import Any

import pytest

from imagenet_ddp.config.schema.distributed import ClusterConfig, StrategyConfig
from imagenet_ddp.distributed.elastic_nodes import is_wanted, node_range, validate

TYPED = ["hydra.run.dir=r"]


def config(num_nodes: object = "1:2", **cluster: object) -> dict[str, Any]:
    return {
        "trainer": {"num_nodes": num_nodes},
        "strategy": asdict(StrategyConfig()),
        "cluster": {**asdict(ClusterConfig()), "address": "10.0.0.11", "max_restarts": 3, **cluster},
    }


def mistakes(found: dict[str, Any], typed: list[str] = TYPED, verb: str = "train", multirun: bool = False) -> list[str]:
    return validate(found, {}, verb=verb, typed=typed, multirun=multirun)


def test_a_range_of_nodes() -> None:
    assert node_range("2:16") == (2, 16)
    assert [node_range(value) for value in ("auto", 2, "2", "0:2", "1:", "1:2:3")] == [None] * 6
    assert is_wanted(config(), {})
    assert not is_wanted(config(2), {})
    assert not is_wanted(config(), {"TORCHELASTIC_RUN_ID": "none"}), "a rank of it"


def test_what_it_needs() -> None:
    assert mistakes(config()) == []
    assert mistakes(config(address=None), ["hydra.run.dir=r", "resume=auto"]) == [
        "trainer.num_nodes=1:2 needs the address of the node that serves the rendezvous during the whole run. "
        "Hint: set cluster.address=HOST:29500 on every node, or set trainer.num_nodes=1."
    ]
    assert validate(config(address=None), {"MASTER_ADDR": "a"}, verb="train", typed=TYPED, multirun=False) == []


@pytest.mark.parametrize(
    ("found", "typed", "sentence"),
    [
        (config("3:2"), TYPED, "must be LEAST:MOST, got 3:2. Hint: set trainer.num_nodes=2:3."),
        (config(), [], "needs one run folder, on a disk that all nodes share."),
        (config(max_restarts=0), TYPED, "but cluster.max_restarts is 0. Hint: set cluster.max_restarts=10"),
        (config(address="file:///mnt/x"), TYPED, "needs the address of the node that serves the rendezvous"),
        (config(node_rank=0), TYPED, "cluster.node_rank must be null with trainer.num_nodes=1:2"),
        (config(), [*TYPED, "resume=old"], "resume must be auto with trainer.num_nodes=1:2, got old."),
        ({**config(), "strategy": {"name": "dp"}}, TYPED, "strategy=dp runs in one process"),
    ],
)
def test_what_is_refused(found: dict[str, Any], typed: list[str], sentence: str) -> None:
    (mistake,) = mistakes(found, typed)
    assert sentence in mistake


@pytest.mark.parametrize(("verb", "multirun"), [("evaluate", False), ("train", True)])
def test_only_a_training_has_it(verb: str, multirun: bool) -> None:
    (mistake,) = mistakes(config(), verb=verb, multirun=multirun)
    assert "trainer.num_nodes must be a single number for" in mistake
