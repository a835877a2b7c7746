"""Cores of one process, as SLURM and others hand them out."""

from pathlib import Path

import pytest

from imagenet_ddp.system import cpu_cores
from imagenet_ddp.system.cpu_cores import cores_per_process

EIGHT_TASKS = {"SLURM_STEP_TASKS_PER_NODE": "8(x2)", "SLURM_CPUS_ON_NODE": "64"}


@pytest.mark.parametrize(
    ("may_use", "local", "environ", "expected"),
    [
        (64, 8, {}, 8),
        (8, 8, EIGHT_TASKS | {"SLURM_CPUS_PER_TASK": "8"}, 8),  # bound to their own
        (64, 8, EIGHT_TASKS | {"SLURM_CPUS_PER_TASK": "8"}, 8),  # not bound, TaskPlugin=task/none
        (8, 8, EIGHT_TASKS, 8),  # bound, without --cpus-per-task
        (64, 8, {"SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_CPUS_PER_TASK": "64"}, 8),  # torchrun in one task
    ],
)
def test_cores_per_process(
    monkeypatch: pytest.MonkeyPatch, may_use: int, local: int, environ: dict[str, str], expected: int
):
    monkeypatch.setattr(cpu_cores, "num_cores", lambda: may_use)
    assert cores_per_process(local, environ) == expected


V2 = "sys/fs/cgroup"
V1 = f"{V2}/cpu,cpuacct"


@pytest.mark.parametrize(
    ("files", "quota", "cores"),
    [
        ({}, None, 8),
        ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "150000 100000"}, 1.5, 1),
        # the parent has less than the own group, and the path of a host does not exist within the container
        ({"proc/self/cgroup": "0::/pod/run", f"{V2}/pod/run/cpu.max": "max 100000",
          f"{V2}/pod/cpu.max": "300000 100000"}, 3.0, 3),
        ({"proc/self/cgroup": "0::/kubepods/pod1", f"{V2}/cpu.max": "250000 50000"}, 5.0, 5),
        ({"proc/self/cgroup": "4:memory:/\n3:cpu,cpuacct:/docker/1\n0::/", f"{V1}/cpu.cfs_quota_us": "250000",
          f"{V1}/cpu.cfs_period_us": "100000"}, 2.5, 2),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/a", f"{V1}/a/cpu.cfs_quota_us": "400000",
          f"{V1}/a/cpu.cfs_period_us": "100000", f"{V1}/cpu.cfs_quota_us": "-1",
          f"{V1}/cpu.cfs_period_us": "100000"}, 4.0, 4),
        # hybrid: version 2 without the cpu controller
        ({"proc/self/cgroup": "1:cpu:/\n0::/", f"{V2}/cpu/cpu.cfs_quota_us": "100000",
          f"{V2}/cpu/cpu.cfs_period_us": "100000"}, 1.0, 1),
        ({"proc/self/cgroup": "0::/", f"{V2}/cpu.max": "broken"}, None, 8),
    ],
)  # fmt: skip
def test_a_quota_counts_as_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, str], quota: float | None, cores: int
):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    found = cpu_cores.cpu_quota(tmp_path)
    assert found == quota
    monkeypatch.setattr(cpu_cores.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(cpu_cores, "cpu_quota", lambda: found)
    assert cpu_cores.num_cores() == cores == cores_per_process(1, {})
    assert cores_per_process(4, {}) == max(1, cores // 4)


@pytest.mark.parametrize(
    ("files", "used_s"),
    [
        ({f"{V2}/cpu.stat": "usage_usec 2500000\nuser_usec 1"}, None),  # without a quota
        ({f"{V2}/cpu.max": "150000 100000", f"{V2}/cpu.stat": "usage_usec 2500000\nuser_usec 1"}, 2.5),
        ({f"{V2}/cpu.max": "150000 100000"}, None),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/a", f"{V1}/a/cpu.cfs_quota_us": "400000",
          f"{V1}/a/cpu.cfs_period_us": "100000", f"{V1}/a/cpuacct.usage": "3500000000"}, 3.5),
    ],
)  # fmt: skip
def test_the_seconds_that_a_container_has_used(tmp_path: Path, files: dict[str, str], used_s: float | None):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    assert cpu_cores.container_cpu_s(tmp_path) == used_s
