"""SLURM's variables and shorthands."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.slurm import expand_counts, first_host, step_numbers

STEP = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}
ARRAY = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node03,node7", "node03"),
        ("node[01-03,7],gpu1", "node01"),
        ("rack[1-2]n[3-4]", "rack1n3"),
        ("a[1]-ib0,b", "a1-ib0"),
        *((text, None) for text in ("", "n[a-b]", "n[1-2", "a b")),
    ],
)
def test_first_host(text: str, host: str | None):
    assert first_host(text) == host


@given(st.lists(st.tuples(st.integers(1, 999), st.integers(1, 50)), max_size=6))
def test_expand_counts(groups: list[tuple[int, int]]):
    text = ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in groups)
    assert expand_counts(text) == tuple(count for count, times in groups for _ in range(times))


def test_steps_and_jobs_on_one_machine_have_ports_of_their_own():
    def port(job: str, step: str) -> int:
        return int(step_numbers({**STEP, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step})["MASTER_PORT"])

    assert port("4711", "0") == 29500 + 711
    assert len({port("4711", str(step)) for step in range(10)}) == 10
    assert len({port(str(job), "0") for job in range(4700, 4800)}) == 100
    assert 29500 <= port("4_[7]", "x") < 30500


def test_names_of_runs_and_sweeps():
    assert slurm.run_key({}) is slurm.sweep_key({}) is slurm.array_name({"SLURM_JOB_ID": "9"}) is None
    assert slurm.run_key({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}) == "slurm_7_2"
    assert slurm.run_key(ARRAY | {"SLURM_STEP_ID": "0"}) == "slurm_7_3_0"
    # a sweep's is the same in every task and step
    assert slurm.sweep_key({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}) == slurm.sweep_key(ARRAY) == "slurm_7"


@pytest.mark.parametrize(("pty", "new_group"), [(True, True), (True, False), (False, True)])
def test_a_command_in_the_shell_of_srun_pty(new_group: bool, pty: bool):
    """An interactive shell gives its commands a process group; a wrapper script (bash -c) does not."""
    environ = {"SLURM_TASK_PID": str(os.getpid())} | ({"SLURM_PTY_PORT": "41785"} if pty else {})
    line = f"from {slurm.__name__} import _is_typed_in_shell; print(_is_typed_in_shell({environ}))"
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True, process_group=0 if new_group else None
    )
    assert done.stdout.strip() == str(new_group and pty)


# ---- requeue: scontrol faked; tests/slurm/ has that of a real SLURM -------------------------------------------------

JOB = "JobId=7 JobState=RUNNING Reason=None Restarts=0 Name=a=b"


def test_a_task_of_an_array_starts_again_by_its_name(scontrol: Any, capsys: Any):
    called = scontrol(JOB)
    assert slurm.requeue_and_print(ARRAY)
    assert called.read_text() == "show job 7_3 --oneliner\nrequeue 7_3\n"
    assert capsys.readouterr() == ("Asking SLURM to requeue job 7_3 (scontrol requeue).\n", "")


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (JOB.replace("RUNNING", "COMPLETING"), "its state is COMPLETING, from which a job cannot be requeued"),
        ("", "scontrol does not answer"),
    ],
)
def test_a_job_that_does_not_come_back(scontrol: Any, capsys: Any, shown: str, why: str):
    """scancel leaves a job COMPLETING while its processes end."""
    called = scontrol(shown)
    assert not slurm.requeue_and_print({"SLURM_JOB_ID": "7"})
    assert "requeue" not in called.read_text()
    assert f"SLURM does not requeue job 7: {why}" in capsys.readouterr().err


def test_at_the_time_limit_it_comes_back(scontrol: Any):
    called = scontrol(JOB.replace("RUNNING Reason=None", "COMPLETING Reason=TimeLimit"))
    assert slurm.requeue("7") is None
    assert "requeue 7" in called.read_text()


@pytest.mark.parametrize(
    ("limit", "script", "signal"),
    [
        ("00:02:00", "#SBATCH --signal=USR2@120", "--signal=USR2@120"),
        ("3", "#SBATCH --time=3 --signal B:10@120 # early", "--signal B:10@120"),  # a minute early
        ("3:01", "#SBATCH --signal=USR2@120", None),
        ("2", "#SBATCH --signal=USR1", "--signal=USR1"),  # 60 s
        ("1-00:02:00", "#SBATCH --signal=USR2@120", None),
        ("1-0", "#SBATCH --signal=USR2@86400", "--signal=USR2@86400"),
        ("UNLIMITED", "#SBATCH --signal=USR2@120", None),
        ("2", "#SBATCH --signal=USR2@120\n#SBATCH --mem=1 --signal=USR2@30", None),
        ("2", "##SBATCH --signal=USR2@120", None),
        ("", "", None),
    ],
)
def test_a_time_limit_before_which_nothing_is_trained(limit: str, script: str, signal: str | None):
    found = slurm.validate_time_limit(limit, f"#!/bin/bash\n{script}\ntrue", "it")
    assert (found and found.what.partition(": ")[0]) == (signal and f"it leaves a minute or less before {signal}")


def test_a_node_without_scontrol(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert slurm.requeue("7") == "there is no scontrol on this node"
    assert slurm.node_address("n1") is None


def test_no_command_is_waited_for_without_a_bound(scontrol: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    scontrol(JOB)
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(slurm, "TIMEOUT_S", 0.2)
    assert slurm.requeue("7") == "scontrol does not answer within 0 s"


def test_the_address_of_a_node(scontrol: Any):
    scontrol("NodeName=n1 Arch=x86_64\n   NodeAddr=10.0.0.3 NodeHostName=vm Port=1 Version=22.05")
    assert slurm.node_address("n1") == "10.0.0.3"
    scontrol("NodeName=n1 NodeAddr=n1 NodeHostName=n1")
    assert slurm.node_address("n1") is None
