"""SLURM's variables and shorthands."""

import os
import re
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagenet_ddp.distributed.launchers import slurm
from imagenet_ddp.distributed.launchers.slurm import (
    array_name,
    expand_counts,
    first_host,
    num_job_nodes,
    read_step,
    run_key,
    sweep_key,
)

STEP = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}
ARRAY = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node03", "node03"),
        ("node03,node7", "node03"),
        ("node[01-03,7],gpu1", "node01"),
        ("rack[1-2]n[3-4]", "rack1n3"),
        ("a[1]-ib0,b", "a1-ib0"),
        ("gpu-a-1.cluster.local", "gpu-a-1.cluster.local"),
        *((text, None) for text in ("", "n[a-b]", "n[-1]", "n[01-2x]", "n[1-2", "a b", "n[]")),
    ],
)
def test_first_host(text: str, host: str | None):
    assert first_host(text) == host


@given(st.lists(st.tuples(st.integers(1, 999), st.integers(1, 50)), max_size=6))
def test_expand_counts(groups: list[tuple[int, int]]):
    text = ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in groups)
    assert expand_counts(text) == tuple(count for count, times in groups for _ in range(times))


# what stands in brackets begins with the first node's number
PARTS = st.from_regex(r"[A-Za-z0-9_.-]{1,8}", fullmatch=True).map(lambda text: (text, text)) | st.tuples(
    st.from_regex(r"[0-9]{1,4}", fullmatch=True),
    st.from_regex(r"(-[0-9]{1,4})?(,[0-9]{1,4}(-[0-9]{1,4})?){0,2}", fullmatch=True),
).map(lambda pair: (f"[{pair[0]}{pair[1]}]", pair[0]))


@given(st.lists(PARTS, min_size=1, max_size=4), st.text())
def test_the_first_of_any_list_of_nodes(parts: list[tuple[str, str]], rest: str):
    written, host = ("".join(words) for words in zip(*parts, strict=True))
    assert first_host(written) == first_host(f"{written},{rest}") == host
    assert re.fullmatch(r"[\w.-]+", first_host(rest) or "x")


def test_a_step():
    environ = STEP | {
        "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "2",
    }  # fmt: skip
    step = read_step(environ)
    assert step is not None
    assert (step.num_tasks, step.num_nodes, step.local_task, step.node) == (4, 2, 1, 1)
    assert (step.tasks_per_node, step.first_host, step.gpus_per_node) == ((2, 2), "n1", 2)
    assert step.name == "SLURM job 4711"


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"SLURM_JOB_ID": "1", "SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # the batch shell
        {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "8"},  # srun -n1 in a job of 8
        {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "x"},
    ],
)
def test_no_step_of_several(environ: dict[str, str]):
    assert read_step(environ) is None


def test_tasks_are_spread_evenly_if_slurm_does_not_say_how():
    step = read_step({**STEP, "SLURM_STEP_NUM_TASKS": "3"})
    assert step is not None and step.tasks_per_node == (2, 1)


def test_steps_and_jobs_on_one_machine_have_ports_of_their_own():
    def port(job: str, step: str) -> int:
        found = read_step({**STEP, "SLURM_JOB_ID": job, "SLURM_STEP_ID": step})
        assert found is not None
        return found.port

    assert port("4711", "0") == 29500 + 711
    assert len({port("4711", str(step)) for step in range(10)}) == 10
    assert len({port(str(job), "0") for job in range(4700, 4800)}) == 100
    assert 29500 <= port("4_[7]", "x") < 30500


def test_names():
    assert num_job_nodes({}) == num_job_nodes({"SLURM_JOB_NUM_NODES": "x"}) == 1
    assert num_job_nodes({"SLURM_JOB_NUM_NODES": "2"}) == 2
    assert run_key({}) is sweep_key({}) is array_name({"SLURM_JOB_ID": "9"}) is None
    assert run_key({"SLURM_JOB_ID": "7"}) == "slurm_7"
    assert run_key({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}) == "slurm_7_2"
    assert run_key(ARRAY | {"SLURM_STEP_ID": "0"}) == "slurm_7_3_0"
    # a sweep's is the same in every task and step
    assert sweep_key({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}) == sweep_key(ARRAY) == "slurm_7"
    assert array_name(ARRAY) == "7_3"


@pytest.mark.parametrize(("pty", "new_group"), [(True, True), (True, False), (False, True)])
def test_a_command_in_the_shell_of_srun_pty(new_group: bool, pty: bool):
    """An interactive shell gives its commands a process group; a wrapper script (bash -c) does not."""
    environ = {"SLURM_TASK_PID": str(os.getpid())} | ({"SLURM_PTY_PORT": "41785"} if pty else {})
    line = f"from {slurm.__name__} import _is_typed_in_shell; print(_is_typed_in_shell({environ}))"
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True, process_group=0 if new_group else None
    )
    assert done.stdout.strip() == str(new_group and pty)
