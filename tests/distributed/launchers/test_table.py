"""One rule for all launchers: N commands never train N separate models, and one command is never held up."""

import re
from pathlib import Path

import pytest

from imagenet_ddp.cli.check_launch import find_place
from imagenet_ddp.distributed.launchers import table
from imagenet_ddp.distributed.launchers.table import PLATFORMS, PROCESS_LAUNCHERS, Platform
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError

from .test_detect import BATCH_1, ONE_TASK, typed

# The variables of each launcher as it sets them, for the last of 4 processes on 2 machines.
RANK_3 = {
    "OpenMPI": "OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=3 OMPI_COMM_WORLD_LOCAL_RANK=1 "
    "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=3",
    "MVAPICH2": "MV2_COMM_WORLD_SIZE=4 MV2_COMM_WORLD_RANK=3 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2",
    "jsrun": "JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_RANK=3 JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=2 "
    "PMIX_RANK=3",
    "Flux": "FLUX_JOB_SIZE=4 FLUX_TASK_RANK=3 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_NNODES=2 PMI_SIZE=4 PMI_RANK=3",
    "PALS": "PALS_RANKID=3 PALS_LOCAL_RANKID=1 PALS_NODEID=1 PMI_SIZE=4 PMI_RANK=3 PMI_LOCAL_RANK=1 PMI_LOCAL_SIZE=2",
    "Horovod": "HOROVOD_SIZE=4 HOROVOD_RANK=3 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2",
    "Intel MPI or MPICH": "PMI_SIZE=4 PMI_RANK=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2",
}
# The variables of each platform for the second of two machines.
SPEC = '{{"cluster":{{"{0}":["node-a:2222"],"{1}":["node-b:2222"]}},"task":{{"type":"{1}","index":0}}}}'
MACHINE_1 = {
    "Kubeflow": {
        "PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "node-a",
        "PET_MASTER_PORT": "29400",
    },
    "SageMaker": {"SM_HOSTS": '["node-a","node-b"]', "SM_CURRENT_HOST": "node-b", "SM_NUM_GPUS": "8"},
    "SkyPilot": {"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "node-a\nnode-b"},
    "Azure ML": {"AZUREML_NODE_COUNT": "2", "NODE_RANK": "1", "AZ_BATCH_MASTER_NODE": "node-a:6000"},
    "AWS Batch": {
        "AWS_BATCH_JOB_NUM_NODES": "2", "AWS_BATCH_JOB_NODE_INDEX": "1",
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "node-a",
    },
    "dstack": {"DSTACK_NODES_NUM": "2", "DSTACK_NODE_RANK": "1", "DSTACK_MASTER_NODE_IP": "node-a"},
    "Beaker": {
        "BEAKER_REPLICA_COUNT": "2", "BEAKER_REPLICA_RANK": "1", "BEAKER_LEADER_REPLICA_HOSTNAME": "node-a",
    },
    "Volcengine": {"MLP_WORKER_NUM": "2", "MLP_ROLE_INDEX": "1", "MLP_WORKER_0_HOST": "node-a"},
    "Vertex AI": {
        "CLUSTER_SPEC": SPEC.format("workerpool0", "workerpool1"), "RANK": "1", "WORLD_SIZE": "2",
        "MASTER_ADDR": "node-a",
    },
    "TF_CONFIG": {"TF_CONFIG": SPEC.format("chief", "worker")},
}  # fmt: skip
PYTORCHJOB = {
    "PET_NNODES": "2", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "1", "MASTER_ADDR": "node-a", "MASTER_PORT": "23456",
    "RANK": "1", "WORLD_SIZE": "16",
}  # fmt: skip


def pairs(line: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in line.split())


def find(environ: dict[str, str], line: str = "") -> Place:
    return find_place(typed(line), environ, typed=line.split())


def test_every_launcher_has_an_example():
    assert set(RANK_3) == {row.name for row in PROCESS_LAUNCHERS}
    assert set(MACHINE_1) == {row.name for row in PLATFORMS if row.is_started}
    assert all(row.source for row in (*PROCESS_LAUNCHERS, *PLATFORMS))


def test_the_page_has_the_variables_of_the_table():
    page = (Path(__file__).parents[3] / "docs/launching.md").read_text(encoding="utf-8")
    listed = page.partition("\n## Other launchers and platforms\n")[2].partition("\n## ")[0]
    names = {"PMIX_RANK", "MASTER_ADDR"}
    for row in PROCESS_LAUNCHERS:
        names |= {row.size, row.rank, row.local_rank[0]}
    for row in PLATFORMS:
        names |= {row.num, row.node_rank} if row.is_started else {row.num}
    assert set(re.findall(r"\b[A-Z0-9]+_[A-Z0-9_]+\b", listed)) == names


@pytest.mark.parametrize("name", RANK_3)
# Hydra starts its helpers as a step of one task per node, and jobs of PBS, SLURM and clouds have variables of their own
@pytest.mark.parametrize("around", [{}, BATCH_1, ONE_TASK, MACHINE_1["SkyPilot"], {"MASTER_PORT": "29500"}])
def test_a_process_has_its_rank(name: str, around: dict[str, str]):
    if name == "Intel MPI or MPICH" or "SLURM_STEP_ID" not in around or "PMI_SIZE" not in RANK_3[name]:
        found = find({**around, **pairs(RANK_3[name])}, "cluster.address=node-a")
        assert found.launcher == name
        assert (found.rank, found.local_rank, found.world_size, found.local_world_size) == (3, 1, 4, 2)
        assert (found.node_rank, found.num_nodes, found.host) == (1, 2, "node-a")


@pytest.mark.parametrize(("line", "workers"), [("", False), ("devices=4", True)])
def test_the_typed_number_of_nodes_places_a_rank_without_local_variables(line: str, workers: bool):
    """As the error about the missing local rank says."""
    found = find({"PMI_SIZE": "2", "PMI_RANK": "1"}, f"num_nodes=2 cluster.address=node-a {line}")
    assert (found.node_rank, found.num_nodes, found.is_node) == (1, 2, workers)
    assert workers or found.local_rank == 0


@pytest.mark.parametrize("environ", [*MACHINE_1.values(), PYTORCHJOB])
@pytest.mark.parametrize("line", ["", "num_nodes=2 devices=8 cluster.node_rank=1"])
def test_a_machine_starts_workers(environ: dict[str, str], line: str):
    found = find(environ, line)
    assert (found.is_node, found.num_nodes, found.node_rank, found.host) == (True, 2, 1, "node-a")
    assert found.address and found.address.port == int(
        environ.get("PET_MASTER_PORT", environ.get("MASTER_PORT", 29500))
    )


@pytest.mark.parametrize("environ", [*map(pairs, RANK_3.values()), *MACHINE_1.values(), PYTORCHJOB])
@pytest.mark.parametrize("left_out", range(8))
def test_several_commands_are_never_taken_for_one(environ: dict[str, str], left_out: int):
    """Even if a wrapper or a container has dropped one of the variables, they meet, or an error names the number."""
    number = [
        name for name in environ if name in {row.size for row in PROCESS_LAUNCHERS} | {row.num for row in PLATFORMS}
    ]
    number += [name for name in environ if name == "WORLD_SIZE"]
    others = [name for name in environ if name not in number]
    environ = {key: value for key, value in environ.items() if key not in others[left_out : left_out + 1]}
    try:
        found, said = find(environ), ""
    except ConfigError as error:
        found, said = None, str(error)
    assert not found.is_alone if found else any(name in said for name in number) and "Hint: " in said


@pytest.mark.parametrize(
    ("environ", "line", "said"),
    [
        (PYTORCHJOB, "num_nodes=4", "Kubeflow has 2 machines (PET_NNODES), but trainer.num_nodes is 4. Hint: leave "
         "trainer.num_nodes out"),
        ({"PET_NNODES": "1:4"}, "", "Kubeflow has 4 machines (PET_NNODES): trainer.num_nodes=4 needs a rendezvous"),
        ({"FLUX_JOB_SIZE": "2"}, "", "FLUX_JOB_SIZE=2 mean one command per process, but these values are not set: "
         "FLUX_TASK_RANK, LOCAL_RANK, MASTER_ADDR"),
        (MACHINE_1["SageMaker"] | {"SM_CURRENT_HOST": "node-c"}, "", "SageMaker has 2 machines (SM_HOSTS): NODE_RANK "
         "must be from 0 to 1 (trainer.num_nodes=2), got node-c"),
    ],
)  # fmt: skip
def test_what_is_missing_or_differs_is_named(environ: dict[str, str], line: str, said: str):
    with pytest.raises(ConfigError) as caught:
        find(environ, line)
    assert said in str(caught.value)


@pytest.mark.parametrize("name", [*table.RANKS, *table.NODE_RANKS])
def test_a_rank_above_0_without_their_number_is_refused(name: str):
    with pytest.raises(ConfigError) as caught:
        find({name: "1"})
    assert str(caught.value).startswith(f"{name}=1 means that ") and "is left over." in str(caught.value)
    assert find({name: "0"}).is_alone


@pytest.mark.parametrize("row", [row for row in PLATFORMS if not row.is_started], ids=lambda row: row.name)
def test_a_batch_script_is_refused_on_several_machines(row: Platform, tmp_path: Path):
    nodes = tmp_path / "nodes"
    nodes.write_text("node-a 2 all.q\nnode-a 2 all.q\nnode-b 2 all.q\n")  # all but Grid Engine list only names
    environ = {row.num: str(nodes), row.node_rank: "0"}
    with pytest.raises(ConfigError, match=rf"has 2 machines \({row.num}\), but starts a batch script only on"):
        find(environ)
    assert find(environ, "num_nodes=1").is_alone
    assert find(environ, "num_nodes=2 cluster.address=node-a").num_nodes == 2
    nodes.write_text("node-a\nnode-a\n")
    assert find(environ).is_alone


ONE = {
    **{row.size: "1" for row in PROCESS_LAUNCHERS},
    **{row.rank: "0" for row in PROCESS_LAUNCHERS},
    "PMIX_RANK": "0", "PET_NNODES": "1", "PET_NPROC_PER_NODE": "8", "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "node-a",
    "SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1", "SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_RANK": "0",
    "SKYPILOT_NODE_IPS": "10.0.0.1", "AZUREML_NODE_COUNT": "1", "PBS_NODEFILE": "/none", "PBS_NODENUM": "0",
    "CLUSTER_SPEC": '{"cluster":{"workerpool0":["a:1"]},"task":{"type":"workerpool0","index":0}}', "TF_CONFIG": "{}",
}  # fmt: skip


def test_one_command_on_one_machine_is_not_held_up(tmp_path: Path):
    """As in a notebook's container, or a shell inside a job."""
    assert find(ONE).is_alone
    hosts = tmp_path / "hosts"
    hosts.write_text("batch1\nnode1\nnode1\n")  # LSF lists the host of the batch script, too
    assert find({"LSB_DJOB_HOSTFILE": str(hosts), "JSM_NAMESPACE_SIZE": "1", "JSM_NAMESPACE_RANK": "0"}).is_alone
    for machine in MACHINE_1.values():
        assert find({k: v for k, v in machine.items() if k not in ("RANK", "WORLD_SIZE")}, "num_nodes=1").is_alone
