"""Cores of one process, as SLURM and others hand them out."""

import pytest

from imagenet_ddp.system import cpu_cores
from imagenet_ddp.system.cpu_cores import cores_per_process

EIGHT_TASKS = {"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_CPUS_ON_NODE": "64"}


@pytest.mark.parametrize(
    ("may_use", "local", "environ", "expected"),
    [
        (64, 8, {}, 8),
        (2, 8, {}, 1),
        (64, 1, {}, 64),
        (8, 8, EIGHT_TASKS | {"SLURM_CPUS_PER_TASK": "8"}, 8),  # bound to their own
        (64, 8, EIGHT_TASKS | {"SLURM_CPUS_PER_TASK": "8"}, 8),  # not bound, TaskPlugin=task/none
        (8, 8, EIGHT_TASKS, 8),  # bound, without --cpus-per-task
        (64, 8, EIGHT_TASKS, 8),
        (64, 8, {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_CPUS_PER_TASK": "64"}, 8),  # torchrun in one task
        (4, 1, {"SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_CPUS_PER_TASK": "2"}, 4),
        (8, 8, EIGHT_TASKS | {"SLURM_CPUS_PER_TASK": "0"}, 1),
    ],
)
def test_cores_per_process(
    monkeypatch: pytest.MonkeyPatch, may_use: int, local: int, environ: dict[str, str], expected: int
):
    monkeypatch.setattr(cpu_cores, "num_cores", lambda: may_use)
    assert cores_per_process(local, environ) == expected
