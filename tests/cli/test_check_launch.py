from collections.abc import Sequence
from typing import Any

import pytest

from imagenet_ddp.cli import check_launch
from imagenet_ddp.config.schema.distributed import NcclConfig
from imagenet_ddp.config.schema.run import RunConfig
from imagenet_ddp.config.schema.trainer import num_devices
from imagenet_ddp.system import nvidia_gpus

TORCHRUN = {
    "RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29500",
}  # fmt: skip
STEP = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "n[1-2]",
}  # fmt: skip


def validate(config: RunConfig, environ: dict[str, str], typed: Sequence[str] = (), **options: Any) -> list[str]:
    _, found = check_launch.check(config, environ, verb="train", typed=typed, **{"multirun": False, **options})
    return list(map(str, found))


def config(**typed: Any) -> RunConfig:
    """The defaults with trainer__devices=... laid over."""
    config = RunConfig(nccl=NcclConfig(env={}))
    for key, value in typed.items():
        node, _, name = key.partition("__")
        setattr(getattr(config, node), name, value)
    return config


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch):
    """No GPU."""
    monkeypatch.setattr(nvidia_gpus, "GPU_PATHS", ())
    monkeypatch.setattr(nvidia_gpus.sys, "platform", "linux")


@pytest.mark.parametrize(
    ("typed", "environ"),
    [
        ({"trainer__devices": 8}, {}),
        ({}, TORCHRUN),
        ({}, STEP),
        ({"trainer__devices": 1, "trainer__val_check_interval": "00:00:10:00", "trainer__sync_batchnorm": True}, {}),
        ({"strategy__name": "balanced_dp", "trainer__devices": 2, "strategy__first_device_batch": 2}, {}),
        ({"trainer__devices": 1, "strategy__static_graph": True, "trainer__accumulate_grad_batches": 2}, {}),
        ({"trainer__devices": 2, "strategy__static_graph": True, "model__unfreeze_epoch": 0}, {}),
    ],
)
def test_well(typed: dict[str, Any], environ: dict[str, str]):
    assert validate(config(**typed), environ) == []


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"trainer__precision": "bf16", "data__image_size": 16}, "must be 32-true on a CPU for images of less than"),
        ({"strategy__name": "bp"}, "strategy.name must be auto, ddp, dp or balanced_dp, got bp."),
        ({"trainer__devices": [0, 3]}, "means GPUs, but this machine has no GPU. Hint: set trainer.devices=2"),
        ({"trainer__devices": [0], "trainer__accelerator": "cpu"}, "but trainer.accelerator is cpu."),
        ({"trainer__devices": 2, "trainer__val_check_interval": "00:00:10:00"},
         "trainer.val_check_interval must be a number of batches or a fraction of an epoch with several processes"),
        ({"trainer__devices": 2, "strategy__static_graph": True, "trainer__accumulate_grad_batches": 2},
         "strategy.static_graph=true needs the same graph in every step, but trainer.accumulate_grad_batches=2"),
        ({"trainer__devices": 2, "strategy__static_graph": True, "model__unfreeze_epoch": 1},
         "strategy.static_graph=true needs the same graph in every step, but model.unfreeze_epoch=1 changes it. Hint:"),
        ({"strategy__name": "dp", "trainer__num_nodes": 2}, "strategy=dp runs in one process, but"),
        ({"strategy__name": "dp", "trainer__sync_batchnorm": True}, "trainer.sync_batchnorm=true is for strategy=ddp"),
        ({"trainer__num_nodes": 2, "cluster__address": "file:///gone/job"}, "but does not on this node. Hint: mount"),
        ({"cluster__rank": -1}, "cluster.rank must be an integer ≥ 0 or null, got -1."),
        ({"nccl__env": {"NCCL_DEBUG": [1]}, "trainer__devices": 2}, "nccl.env.NCCL_DEBUG must be"),
    ],
)  # fmt: skip
def test_one_mistake(typed: dict[str, Any], said: str):
    (text,) = validate(config(**typed), {})
    assert said in text
    assert "Hint: " in text


@pytest.mark.parametrize(
    ("typed", "environ", "said"),
    [
        ({}, TORCHRUN, "on one node, but 16 ranks take part (torchrun). Hint: run the same job on each rank: `python "
         "-m imagenet_ddp.train -m seed=1,2 hydra.sweep.dir=runs/SWEEP sweep.job=0`, then the same line with "
         "sweep.job=1."),
        ({}, STEP, "but 2 ranks take part (SLURM job 7)."),
        ({"trainer__devices": 2}, STEP, "but 2 nodes take part (SLURM job 7)."),
    ],
)  # fmt: skip
def test_a_sweep_among_others(typed: dict[str, Any], environ: dict[str, str], said: str):
    if "torchrun" in said:
        environ = {**environ, "TORCHELASTIC_RUN_ID": "none"}
    (text,) = validate(config(**typed), environ, typed=["seed=1,2"], multirun=True)
    assert said in text
    assert validate(config(**typed), environ, typed=["seed=1,2"]) == []


def test_a_sweep_alone():
    for environ in ({}, {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "none"}):
        assert validate(config(trainer__devices=1), environ, multirun=True) == []


def test_a_machine_that_may_have_gpus_is_left_to_torch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(nvidia_gpus, "GPU_PATHS", ("/",))
    assert validate(config(trainer__devices=[0, 3]), {}) == []


@pytest.mark.parametrize(
    ("devices", "count"),
    [("auto", None), (-1, None), ("-1", None), (2, 2), ("2", 2), ("0,3", 2), ("0,", 1), ([0, 3, 4], 3)],
)
def test_num_devices(devices: int | str | Sequence[int], count: int | None):
    assert num_devices(devices) == count
