"""Cores for one training on a machine that others use, too."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from imagenet_ddp.system import cpu_cores, idle_cores
from imagenet_ddp.system.idle_cores import Cores, CpuTimes, Other, Trainings, choose_cores

RUNNING, STARTING = Other(frozenset({0}), 2), Other(frozenset({0}), None)


@pytest.mark.parametrize(
    ("num", "idle", "others", "expected"),
    [
        (8, 8.0, [], Cores(8, "8 cores, idle")),
        (8, 7.6, [], Cores(8, "8 cores, idle")),
        (8, 5.4, [], Cores(5, "5.4 of 8 cores idle")),
        (2, -0.1, [], Cores(1, "0.0 of 2 cores idle")),
        (2, None, [], Cores(2, "2 cores, whose load cannot be measured here")),
        (8, 6.0, [RUNNING], Cores(6, "shares 8 cores with 1 other training of yours")),
        (8, 3.0, [RUNNING], Cores(3, "3.0 of 8 cores idle")),  # and other programs
        (8, 8.0, [RUNNING, STARTING], Cores(3, "shares 8 cores with 2 other trainings of yours")),
        (2, 2.0, [RUNNING, STARTING], Cores(1, "shares 2 cores with 2 other trainings of yours")),
        (1, 0.2, [STARTING], Cores(1, "0.2 of 1 core idle")),
    ],
)
def test_the_number_and_its_reason(num: int, idle: float | None, others: list[Other], expected: Cores):
    assert choose_cores(num, idle, others) == expected


@pytest.mark.parametrize("num_trainings", [1, 2, 3, 5])
@pytest.mark.parametrize("num_cores", [2, 16])
def test_trainings_that_start_together_share_all_cores(tmp_path: Path, num_cores: int, num_trainings: int):
    trainings = [Trainings(tmp_path / "own") for _ in range(num_trainings)]
    given: list[int] = []
    for training in trainings:  # all have started before the first one chooses, and none sees a load yet
        given.append(choose_cores(num_cores, float(num_cores), training.others()).num)
        training.take(given[-1])
    assert sum(given) == max(num_cores, num_trainings)
    assert max(given) - min(given) <= 1


def test_a_training_counts_until_its_process_ends_however_it_ends(tmp_path: Path):
    source = (
        "import sys, time; from pathlib import Path; from imagenet_ddp.system.idle_cores import Trainings\n"
        "trainings = Trainings(Path(sys.argv[1])); trainings.take(3); print('ready', flush=True); time.sleep(600)"
    )
    command = [sys.executable, "-c", source, str(tmp_path / "own")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout and process.stdout.readline() == "ready\n"
        here = Trainings(tmp_path / "own")
        assert here.others() == [Other(cpu_cores.visible_cores(), 3)]
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert here.others() == []
    assert len(list((tmp_path / "own").iterdir())) == 1  # its file is removed


def test_trainings_on_other_cores_do_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    here = Trainings(tmp_path / "own")
    monkeypatch.setattr(idle_cores, "visible_cores", lambda: frozenset({1000, 1001}))
    elsewhere = Trainings(tmp_path / "own")
    assert elsewhere.others() == []
    monkeypatch.undo()
    assert here.others() == []


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "own").mkdir()
    (tmp_path / "own").chmod(0o777)
    with pytest.raises(PermissionError):
        Trainings(tmp_path / "own")
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        Trainings(tmp_path / "link")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "file").touch()
    monkeypatch.setattr(idle_cores, "_trainings", None)
    idle_cores.register()  # the training starts anyway
    idle_cores.take(2)


# ---- the measurement -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quota", "container_s", "num_alike", "idle"),
    [
        (None, None, 1, 5.0),  # in ten seconds, others use 30 s of 8 cores, and this process 8 s
        (None, None, 4, 7.4),  # of the 38 s, this job's four processes use 32
        (4.0, 13.0, 1, 3.5),  # 5 s are used by other programs of the container
        (2.0, 10.0, 4, 2.0),
        (6.0, None, 1, 5.0),  # the container does not say what it uses
        (2.0, None, 1, 2.0),
    ],
)
def test_idle_cores(
    monkeypatch: pytest.MonkeyPatch, quota: float | None, container_s: float | None, num_alike: int, idle: float
):
    monkeypatch.setattr(idle_cores, "visible_cores", lambda: frozenset(range(8)))
    monkeypatch.setattr(idle_cores, "cpu_quota", lambda: quota)
    before = CpuTimes(100.0, 50.0, 1.0, None if container_s is None else 7.0)
    after = CpuTimes(110.0, 88.0, 9.0, None if container_s is None else 7.0 + container_s)
    assert idle_cores.idle_cores(before, after, num_alike) == pytest.approx(idle)


def test_a_system_that_does_not_show_its_load(monkeypatch: pytest.MonkeyPatch):
    def refuse(percpu: bool) -> None:
        raise PermissionError("/proc/stat")

    zeros = [psutil.cpu_times()._replace(**dict.fromkeys(psutil.cpu_times()._fields, 0.0))] * (os.cpu_count() or 1)
    for read in (refuse, lambda percpu: zeros):
        monkeypatch.setattr(psutil, "cpu_times", read)
        monkeypatch.setattr(idle_cores, "_measured", None)
        monkeypatch.setattr(idle_cores, "_counted", None)
        monkeypatch.setattr(idle_cores, "_trainings", None)
        cores = idle_cores.count_cores()
        assert cores.num == cpu_cores.num_cores() and "cannot be measured" in cores.reason


def test_only_cores_of_this_process_are_measured(monkeypatch: pytest.MonkeyPatch):
    zero = psutil.cpu_times()._replace(**dict.fromkeys(psutil.cpu_times()._fields, 0.0))
    times = [zero._replace(user=5.0, idle=3.0), zero._replace(user=100.0), zero._replace(system=2.0, idle=1.0)]
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: times)
    monkeypatch.setattr(idle_cores, "visible_cores", lambda: frozenset({0, 2, 7}))
    read = CpuTimes.read()
    assert read is not None and read.busy_s == 7.0


def test_the_jobs_of_a_sweep_get_one_number(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(idle_cores, "_counted", None)
    monkeypatch.setattr(idle_cores, "_trainings", None)
    first = idle_cores.count_cores()
    monkeypatch.setattr(idle_cores, "_measured", (CpuTimes(0.0, 0.0, 0.0), CpuTimes(1.0, 1000.0, 0.0)))
    assert idle_cores.count_cores() == first
