"""Divide GPUs, cores and steps among trials that run at the same time."""

import re
from typing import Any

import pytest

from imagenet_ddp.config.schema.commands import TrainConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.tune import trials
from imagenet_ddp.tune.trials import make_slots, uses_srun


def slots_for(num: int, environ: dict[str, str] | None = None, launcher: str = "auto", **trainer: Any):  # type: ignore[no-untyped-def]
    whole = {"accelerator": "auto", "devices": "auto", "num_nodes": "auto", **trainer}
    return make_slots(
        to_config({"trainer": whole}, TrainConfig), {"num_at_once": num, "launcher": launcher}, environ or {}
    )


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four cards."""
    four = [(f"GPU-{number}", "A100") for number in range(4)]
    monkeypatch.setattr(trials.nvidia_gpus, "query_gpus", lambda: four)
    monkeypatch.setattr(trials, "no_gpu_reason", lambda trainer: "cpu" if trainer["accelerator"] == "cpu" else None)


def seen(num: int, environ: dict[str, str] | None = None, **trainer: Any) -> list[str]:
    slots = slots_for(num, environ, **trainer)
    return [slot.environ["CUDA_VISIBLE_DEVICES"] for slot in slots]


@pytest.mark.usefixtures("gpus")
def test_visible_gpus_are_dealt_round_robin():
    assert seen(2) == ["GPU-0,GPU-1", "GPU-2,GPU-3"]
    assert seen(2, devices=-1) == ["GPU-0,GPU-1", "GPU-2,GPU-3"]
    assert seen(3, devices=1) == ["GPU-0", "GPU-1", "GPU-2"]
    assert seen(6) == ["GPU-0", "GPU-1", "GPU-2", "GPU-3", "GPU-0", "GPU-1"]
    assert seen(3, devices=2) == ["GPU-0,GPU-1", "GPU-2,GPU-3", "GPU-0,GPU-1"]
    assert seen(2, devices=8) == ["GPU-0,GPU-1,GPU-2,GPU-3"] * 2, "train itself refuses the eight"
    assert seen(2, {"CUDA_VISIBLE_DEVICES": "3, 1"}) == ["3", "1"]
    assert seen(2, {"CUDA_VISIBLE_DEVICES": "MIG-a"}) == ["MIG-a", "MIG-a"]
    assert slots_for(1) == [trials.Slot()]
    for trainer, environ in (({"accelerator": "cpu"}, {}), ({}, {"CUDA_VISIBLE_DEVICES": ""})):
        assert [slot.environ for slot in slots_for(2, environ, **trainer)] == [{}, {}]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(
    ("num", "trainer", "environ", "message"),
    [
        (
            2,
            {"devices": [0, 3]},
            {},
            "must be a number with tune.num_at_once=2, got [0,3]. Hint: set trainer.devices=2",
        ),
        (2, {"devices": "0,3"}, {}, "must be a number with tune.num_at_once=2, got 0,3. Hint: set trainer.devices=2"),
        (1, {"num_nodes": 2}, {}, "trainer.num_nodes must be 1 outside of a SLURM allocation, got 2"),
        (1, {}, {"RANK": "0"}, "start tune only once"),
    ],
)
def test_what_cannot_be_divided_is_refused(num: int, trainer: dict, environ: dict, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        slots_for(num, environ, **trainer)


def test_cpu_trials_share_the_cores(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trials.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    slots = slots_for(3, accelerator="cpu")
    assert [slot.cores for slot in slots] == [(0, 1), (2, 3), (4, 5)]
    monkeypatch.setattr(trials.os, "sched_getaffinity", lambda _: {5, 7})
    assert [slot.cores for slot in slots_for(3, accelerator="cpu")] == [(5,), (7,), (5,)]


JOB = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_CPUS_PER_NODE": "16(x2)"}


@pytest.mark.parametrize(
    ("num", "trainer", "environ", "message"),
    [
        (1, {"accelerator": "cpu"}, {}, "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=16"),
        (4, {"accelerator": "cpu"}, {}, "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=8"),
        (2, {"accelerator": "cpu", "num_nodes": 2, "devices": 2}, {},
         "--nodes=2 --ntasks=4 --ntasks-per-node=2 --cpus-per-task=4"),
        (4, {}, {"SLURM_GPUS_ON_NODE": "8"},
         "--nodes=1 --ntasks=4 --ntasks-per-node=4 --cpus-per-task=2 --gpus-per-node=4 --gpu-bind=none"),
        (4, {"devices": 1}, {"SLURM_GPUS_PER_NODE": "a100:8", "SLURM_MEM_PER_NODE": "4096"},
         "--nodes=1 --ntasks=1 --ntasks-per-node=1 --cpus-per-task=8 --gpus-per-node=1 --gpu-bind=none --mem=2048M"),
    ],
)  # fmt: skip
def test_a_step_has_its_share_of_the_allocation(num: int, trainer: dict, environ: dict, message: str):
    slots = slots_for(num, {**JOB, **environ}, "srun", **trainer)
    assert len({id(slot) for slot in slots}) == num
    assert all(" ".join(slot.prefix) == f"srun --exact {message}" for slot in slots)


@pytest.mark.parametrize(
    ("num", "trainer", "environ", "message"),
    [
        (1, {"num_nodes": 3}, JOB, "at most 2, the nodes of SLURM job 7, got 3. Hint: set #SBATCH --nodes=3"),
        (40, {"accelerator": "cpu"}, JOB, "needs 20 × 1 CPUs on a node, but SLURM job 7 has 16. Hint: set tune.num_at"),
        (4, {"devices": 3}, {**JOB, "SLURM_GPUS_ON_NODE": "4"}, "needs 2 × 3 GPUs on a node"),
        (1, {}, {}, "starts steps in an allocation, but there is none"),
    ],
)
def test_steps_that_do_not_fit_are_refused(num: int, trainer: dict, environ: dict, message: str):
    with pytest.raises(ConfigError, match=re.escape(message)):
        slots_for(num, environ, "srun", **trainer)


def test_auto_starts_steps_in_an_allocation_only(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(trials.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert uses_srun("auto", JOB)
    assert not uses_srun("auto", {**JOB, "SLURM_STEP_ID": "0"})
    assert not uses_srun("auto", {})
    assert not uses_srun("local", JOB)
