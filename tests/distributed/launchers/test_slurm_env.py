"""SLURM's variables and shorthands."""

import pytest

from imagenet_ddp.distributed.launchers.slurm_env import (
    array_name,
    expand_counts,
    first_host,
    num_job_nodes,
    read_step,
    run_key,
    sweep_key,
)

STEP = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_NUM_NODES": "2"}


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("node03", "node03"),
        ("node03,node7", "node03"),
        ("node[01-03,7],gpu1", "node01"),
        ("node[098-101]", "node098"),
        ("rack[1-2]n[3-4]", "rack1n3"),
        ("a[1]-ib0,b", "a1-ib0"),
        ("gpu-a-1.cluster.local", "gpu-a-1.cluster.local"),
        *((text, None) for text in ("", "n[a-b]", "n[-1]", "n[01-2x]", "n[", "n[1-2", "a b", "n[]")),
    ],
)
def test_first_host(text: str, host: str | None):
    assert first_host(text) == host


@pytest.mark.parametrize(
    ("text", "counts"),
    [("", ()), ("4", (4,)), ("2(x3),1", (2, 2, 2, 1)), ("1(x2),3,2(x2)", (1, 1, 3, 2, 2)), ("8(x12)", (8,) * 12)],
)
def test_expand_counts(text: str, counts: tuple[int, ...]):
    assert expand_counts(text) == counts


def test_a_step():
    environ = STEP | {
        "SLURM_PROCID": "3", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
        "SLURM_STEP_NODELIST": "n[1-2]", "SLURM_GPUS_ON_NODE": "2",
    }  # fmt: skip
    step = read_step(environ)
    assert step is not None
    assert (step.num_tasks, step.num_nodes, step.task, step.local_task, step.node) == (4, 2, 3, 1, 1)
    assert (step.tasks_per_node, step.first_host, step.gpus_per_node) == ((2, 2), "n1", 2)
    assert step.name == "slurm job 4711"


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


def test_the_job_s_own_counts_are_not_the_step_s():
    """sbatch --ntasks=8 --nodes=2; srun --ntasks=4: SLURM_TASKS_PER_NODE is the job's."""
    step = read_step(STEP | {"SLURM_TASKS_PER_NODE": "4(x2)"})
    assert step is not None and step.tasks_per_node == (2, 2)
    step = read_step({**STEP, "SLURM_STEP_NUM_TASKS": "3"})
    assert step is not None and step.tasks_per_node == (2, 1), "uneven"


def test_ports_of_steps_that_run_at_once_differ():
    """Steps of one job, and jobs that follow one another: all on one machine, perhaps."""

    def port(job: int, step: str) -> int:
        found = read_step({**STEP, "SLURM_JOB_ID": str(job), "SLURM_STEP_ID": step})
        assert found is not None
        return found.ports[0]

    assert port(4711, "0") == 29500 + 711
    assert len({port(4711, str(step)) for step in range(10)}) == 10
    assert len({port(job, "0") for job in range(4700, 4800)}) == 100
    assert all(29500 <= port(job, step) < 30500 for job in (0, 999, 10**9) for step in ("0", "5", "4294967290", "x"))


def test_where_a_port_is_taken_the_next_one_is_far_from_other_steps():
    found = read_step(STEP | {"SLURM_JOB_ID": "4711"})
    assert found is not None
    assert found.ports == (30211, 30336, 30461, 29586, 29711, 29836, 29961, 30086)


def test_num_job_nodes():
    assert num_job_nodes({}) == 1
    assert num_job_nodes({"SLURM_NNODES": "3"}) == 3
    assert num_job_nodes({"SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "3"}) == 2
    assert num_job_nodes({"SLURM_JOB_NUM_NODES": "x"}) == 1


def test_run_key():
    assert run_key({}) is None
    assert run_key({"SLURM_JOB_ID": "7"}) == "slurm_7"
    assert run_key({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}) == "slurm_7_2"
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    assert run_key(array) == "slurm_7_3"
    assert run_key(array | {"SLURM_STEP_ID": "0"}) == "slurm_7_3_0"


def test_sweep_key_is_the_same_in_every_task_and_step():
    assert sweep_key({}) is None
    assert sweep_key({"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "2"}) == "slurm_7"
    assert sweep_key({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}) == "slurm_7"


def test_array_name():
    assert array_name({"SLURM_JOB_ID": "9"}) is None
    assert array_name({"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}) == "7_3"
