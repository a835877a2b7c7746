"""SLURM's commands, faked at the boundary; tests/slurm/ has them of a real SLURM."""

import os
from pathlib import Path
from typing import Any

import pytest

from imagenet_ddp.distributed.launchers import slurm_requeue

JOB = "JobId=7 JobState=RUNNING Reason=None BatchFlag=1 Requeue=1 Restarts=0 Name=a=b"
TASK = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.fixture
def answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """answers(of show, code of requeue): an scontrol of that kind; the words it was called with are in `called`."""

    def answer(shown: str, code: int = 0, error: str = "") -> Path:
        (tmp_path / "shown").write_text(shown)
        program = tmp_path / "scontrol"
        program.write_text(
            f'#!/bin/sh\necho "$@" >>{tmp_path}/called\n'
            f'if [ "$1" = show ]; then cat {tmp_path}/shown; [ -s {tmp_path}/shown ]; exit $?; fi\n'
            f'echo "{error}" >&2; exit {code}\n'
        )
        program.chmod(0o755)
        return tmp_path / "called"

    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return answer


def test_a_running_job_starts_again(answers: Any, capsys: Any):
    called = answers(JOB)
    assert slurm_requeue.requeue_and_print({"SLURM_JOB_ID": "7"})
    assert called.read_text() == "show job 7 --oneliner\nrequeue 7\n"
    assert capsys.readouterr() == ("Asking SLURM to requeue job 7 (scontrol requeue).\n", "")


def test_a_task_of_an_array_by_its_name(answers: Any):
    called = answers(JOB)
    assert slurm_requeue.requeue_and_print(TASK)
    assert called.read_text().endswith("requeue 7_3\n")


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (JOB.replace("RUNNING", "COMPLETING"), "its state is COMPLETING, from which a job cannot be requeued"),
        (JOB.replace("BatchFlag=1", "BatchFlag=0"), "only jobs submitted with sbatch can be requeued"),
        (JOB.replace("Requeue=1", "Requeue=0"), "the job was submitted with --no-requeue"),
        ("", "scontrol does not answer"),
    ],
)
def test_a_job_that_does_not_come_back(answers: Any, capsys: Any, shown: str, why: str):
    """scancel leaves a job COMPLETING while its processes end."""
    called = answers(shown)
    assert not slurm_requeue.requeue_and_print({"SLURM_JOB_ID": "7"})
    assert "requeue" not in called.read_text()
    assert f"SLURM does not requeue job 7: {why}" in capsys.readouterr().err


def test_at_the_time_limit_it_comes_back(answers: Any):
    called = answers(JOB.replace("RUNNING Reason=None", "COMPLETING Reason=TimeLimit"))
    assert slurm_requeue.requeue("7") is None
    assert "requeue 7" in called.read_text()


def test_what_slurm_says_is_passed_on(answers: Any):
    answers(JOB, 1, "Requested operation is presently disabled for job 7")
    assert slurm_requeue.requeue("7") == "Requested operation is presently disabled for job 7"


def test_a_node_without_scontrol(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    assert slurm_requeue.requeue("7") == "there is no scontrol on this node"
    assert slurm_requeue.node_address("n1") is None


def test_no_command_is_waited_for_without_a_bound(answers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    answers(JOB)
    (tmp_path / "scontrol").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(slurm_requeue, "TIMEOUT_S", 0.2)
    assert slurm_requeue.requeue("7") == "scontrol does not answer within 0 s"


def test_the_address_of_a_node(answers: Any):
    answers("NodeName=n1 Arch=x86_64\n   NodeAddr=10.0.0.3 NodeHostName=vm Port=1 Version=22.05")
    assert slurm_requeue.node_address("n1") == "10.0.0.3"
    answers("NodeName=n1 NodeAddr=n1 NodeHostName=n1")
    assert slurm_requeue.node_address("n1") is None
