from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest

from imagenet_ddp.distributed import check
from imagenet_ddp.distributed.check import mistakes, num_devices
from imagenet_ddp.schema import ClusterConfig, StrategyConfig

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8"} | {
    "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
}


def config(**typed: Any) -> dict[str, Any]:
    """The defaults with trainer__devices=... laid over."""
    nodes: dict[str, Any] = {
        "trainer": {"accelerator": "auto", "devices": "auto", "num_nodes": "auto"},
        "strategy": asdict(StrategyConfig()),
        "cluster": asdict(ClusterConfig()),
    }
    for key, value in typed.items():
        node, _, name = key.partition("__")
        nodes[node][name] = value
    return nodes


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch):
    """Two cores, no GPU."""
    monkeypatch.setattr(check, "GPU_PATHS", ())
    monkeypatch.setattr(check.sys, "platform", "linux")
    monkeypatch.setattr(check.os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)


@pytest.mark.parametrize(
    ("typed", "environ"),
    [
        ({}, {}),
        ({"trainer__devices": 8}, {}),
        ({"trainer__devices": "2"}, {}),
        ({"trainer__num_nodes": 1}, {}),
        ({"trainer__num_nodes": 2, "cluster__address": "a:29500", "cluster__node_rank": 1}, {}),
        ({"trainer__num_nodes": 2}, {"MASTER_ADDR": "a", "NODE_RANK": "0"}),
        ({"trainer__num_nodes": 2}, {"MASTER_ADDR": "a", "GROUP_RANK": "1"}),
        ({}, TORCHRUN),
        ({"trainer__devices": 8, "trainer__num_nodes": 2}, TORCHRUN),
        ({"trainer__num_nodes": 2}, TORCHRUN),
        ({}, {"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"}),
        ({}, TORCHRUN | {"SLURM_STEP_NUM_TASKS": "2"}),
        ({"trainer__num_nodes": 2}, {"MASTER_ADDR": "a", "NODE_RANK": "0", "SLURM_STEP_NUM_TASKS": "2"}),
    ],
)
def test_well(typed: dict[str, Any], environ: dict[str, str]):
    assert mistakes(config(**typed), environ) == []


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in TORCHRUN.items() if name not in names}


@pytest.mark.parametrize(
    ("typed", "environ", "said"),
    [
        ({"strategy__name": "dp"}, {}, "strategy.name is expected to be auto or ddp, but is dp."),
        ({"strategy__timeout_s": 0.0}, {}, "strategy.timeout_s is expected"),
        ({"strategy__process_group_backend": "nccl"}, {}, "nccl is for GPUs, but this machine has no GPU."),
        ({"cluster__timeout_s": -1.0}, {}, "cluster.timeout_s is expected"),
        ({"cluster__num_threads": 0}, {}, "cluster.num_threads is expected to be auto or a whole number of 1 or more"),
        (
            {"trainer__devices": 99},
            {},
            "trainer.devices is expected to be at most 8 (4 processes for each of 2 CPU cores",
        ),
        ({"trainer__devices": [0, 3]}, {}, "names GPUs, but this machine has no GPU. HINT: set trainer.devices=2"),
        ({"trainer__devices": "0,3"}, {}, "names GPUs"),
        ({"trainer__devices": -1}, {}, "means all GPUs"),
        ({"trainer__devices": [0], "trainer__accelerator": "cpu"}, {}, "but trainer.accelerator is cpu."),
        (
            {"trainer__num_nodes": 2, "cluster__address": "a"},
            {},
            "which node is this? HINT: cluster.node_rank=<0 to 1>",
        ),
        (
            {"trainer__num_nodes": 2},
            {"MASTER_ADDR": "a", "NODE_RANK": "2"},
            "NODE_RANK is expected to be a whole number from",
        ),
        ({"trainer__num_nodes": 2, "cluster__node_rank": 0, "cluster__address": "a:b"}, {}, "a port from 1 to 65535"),
        ({}, without("MASTER_ADDR", "LOCAL_RANK"), "but not set: LOCAL_RANK, MASTER_ADDR."),
        ({}, without("MASTER_PORT"), "but not set: MASTER_PORT."),
        ({}, without("WORLD_SIZE"), "RANK=3 in the environment says that a launcher"),
        ({}, TORCHRUN | {"RANK": "x"}, "RANK is expected to be a whole number, but is x (environment)."),
        ({}, TORCHRUN | {"RANK": "16"}, "RANK is expected to be below WORLD_SIZE (16), but is 16"),
        ({}, TORCHRUN | {"MASTER_PORT": "0"}, "MASTER_PORT is expected to be a port"),
        (
            {"trainer__devices": 4},
            TORCHRUN,
            "trainer.devices is expected to equal LOCAL_WORLD_SIZE (8, from the launcher)",
        ),
        ({"trainer__num_nodes": 3}, TORCHRUN, "but is 8 × 3 = 24. HINT: set trainer.num_nodes=2."),
        ({"trainer__devices": 5}, without("LOCAL_WORLD_SIZE"), "trainer.devices is expected to divide WORLD_SIZE (16)"),
        ({}, TORCHRUN | {"LOCAL_WORLD_SIZE": "16"}, "but is 16 (LOCAL_WORLD_SIZE, from the launcher)"),
        ({}, {"SLURM_STEP_NUM_TASKS": "4"}, "srun started 4 tasks (SLURM_STEP_NUM_TASKS), but none has a RANK"),
    ],
)
def test_one_mistake(typed: dict[str, Any], environ: dict[str, str], said: str):
    (text,) = mistakes(config(**typed), environ)
    assert said in text
    assert "HINT: " in text


def test_the_sentence_of_the_house():
    assert mistakes(config(trainer__devices=8, trainer__num_nodes=1), TORCHRUN) == [
        "trainer.devices × trainer.num_nodes is expected to equal WORLD_SIZE (16), but is 8 × 1 = 8. "
        "HINT: set trainer.num_nodes=2."
    ]


def test_no_meeting_place_shows_the_line_to_type():
    typed = ["trainer.num_nodes=2", "data.root=/a b"]
    (text,) = mistakes(config(trainer__num_nodes=2), {}, typed=typed)
    variables = "MASTER_ADDR=<address of node 0> NODE_RANK=<0 to 1>"
    line = f"{variables} python -m imagenet_ddp.train trainer.num_nodes=2 'data.root=/a b'"
    assert f"`{line}`" in text


def test_a_sweep_inside_a_launched_world():
    (text,) = mistakes(config(), TORCHRUN, typed=["seed=1,2"], multirun=True)
    assert "HINT: without the launcher: `python -m imagenet_ddp.train -m seed=1,2`." in text


def test_a_machine_that_may_have_gpus_is_left_to_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(check, "GPU_PATHS", ("/",))
    assert mistakes(config(trainer__devices=99), {}) == []
    assert mistakes(config(trainer__devices=[0, 3]), {}) == []
    assert len(mistakes(config(trainer__devices=99, trainer__accelerator="cpu"), {})) == 1


@pytest.mark.parametrize(
    ("devices", "count"),
    [("auto", None), (-1, None), ("-1", None), (2, 2), ("2", 2), ("0,3", 2), ("0,", 1), ([0, 3, 4], 3)],
)
def test_num_devices(devices: int | str | Sequence[int], count: int | None):
    assert num_devices(devices) == count
