"""The frozen table: what surrounds a command and what is typed -> what its process is, or the sentence."""

from dataclasses import replace
from typing import Any

import pytest

from imagenet_ddp.cli.check_launch import find_place
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.schema.trainer import TrainerConfig
from imagenet_ddp.distributed.launchers.detect import restarted
from imagenet_ddp.distributed.place import Address, Place
from imagenet_ddp.errors import ConfigError

# ---- surroundings, as they were seen ---------------------------------------------------------------------------------

# torchrun --nproc_per_node=2 [--nnodes=2 --node_rank=1 --master_addr=node-a --master_port=29511], the last of its ranks
TORCHRUN_1 = {
    "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0",
    "GROUP_WORLD_SIZE": "1", "ROLE_RANK": "1", "ROLE_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
    "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0", "OMP_NUM_THREADS": "1",
}  # fmt: skip
TORCHRUN_2 = TORCHRUN_1 | {
    "RANK": "3", "WORLD_SIZE": "4", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "node-a",
    "MASTER_PORT": "29511",
}  # fmt: skip
BY_HAND = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29501"}
KUBEFLOW = {"RANK": "1", "WORLD_SIZE": "4", "MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}

# sbatch --nodes=2 --ntasks-per-node=4: the batch script itself, and task 5 of an srun in it
BATCH = {
    "SLURM_JOB_ID": "4711", "SLURM_JOB_NUM_NODES": "2", "SLURM_NNODES": "2", "SLURM_NTASKS": "8",
    "SLURM_NTASKS_PER_NODE": "4", "SLURM_TASKS_PER_NODE": "4(x2)", "SLURM_JOB_NODELIST": "node[03-04]",
    "SLURM_NODELIST": "node[03-04]", "SLURM_JOB_NAME": "train", "SLURM_NODEID": "0", "SLURM_PROCID": "0",
    "SLURM_LOCALID": "0",
}  # fmt: skip
STEP = BATCH | {
    "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "2", "SLURM_STEP_NUM_TASKS": "8",
     "SLURM_STEP_NODELIST": "node[03-04]",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)", "SLURM_PROCID": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1",
}  # fmt: skip
PER_NODE = STEP | {
    "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "SLURM_PROCID": "1", "SLURM_LOCALID": "0",
}  # fmt: skip
ON_ONE = STEP | {
    "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_STEP_NODELIST": "node03", "SLURM_NODEID": "0", "SLURM_PROCID": "1",
}  # fmt: skip
ONE_TASK = STEP | {
    "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_STEP_NODELIST": "node03", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0",
}  # fmt: skip
BATCH_1 = BATCH | {"SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1", "SLURM_NTASKS": "4"}


def mpi(rank: int, size: int, local_rank: int, local_size: int, **more: str) -> dict[str, str]:
    numbers = {"RANK": rank, "SIZE": size, "LOCAL_RANK": local_rank, "LOCAL_SIZE": local_size}
    return {f"OMPI_COMM_WORLD_{name}": str(number) for name, number in numbers.items()} | more


def typed(line: str) -> CommonConfig:
    """ "num_nodes=2 devices=8 cluster.rank=1": keys of the trainer, unless they say otherwise."""
    config = CommonConfig(trainer=TrainerConfig("gpu"))
    for option in line.split():
        key, value = option.split("=", 1)
        key = {"cluster": "cluster.name", "strategy": "strategy.name"}.get(key, key)
        node, _, name = key.rpartition(".")
        setattr(getattr(config, node or "trainer"), name, int(value) if value.isdecimal() else value)
    return config


def find(environ: dict[str, str], line: str = "", **more: Any) -> Place:
    return find_place(typed(line), environ, typed=line.split(), **more)


# ---- one process -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "line"),
    [
        ({}, ""),
        ({"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "29500"}, "num_nodes=1"),
        ({"MASTER_ADDR": "localhost"}, ""),
        (BATCH_1 | {"MASTER_ADDR": "node-a"}, ""),  # a script for any number of nodes
        ({"LOCAL_RANK": "1"}, "devices=2"),  # left over from a job before: says nothing by itself
        ({"NODE_RANK": "3"}, "num_nodes=1"),  # left over too
        ({}, "strategy=dp devices=4"),
        (BATCH_1, ""),
        (BATCH, "num_nodes=1"),
        (ONE_TASK, "devices=8"),  # of several such steps in one job of two nodes
        (mpi(0, 1, 0, 1), ""),
        ({"WORLD_SIZE": "1", "RANK": "0"}, "num_nodes=1 devices=8 cluster.node_rank=0"),
    ],
)
def test_alone(environ: dict[str, str], line: str):
    found = find(environ, line)
    assert found.is_alone and found.is_node
    assert (found.num_nodes, found.node_rank) == (1, 0)


# ---- a rank ----------------------------------------------------------------------------------------------------------
# Place: rank, local rank, node rank, world size, local world size, number of nodes, address, served, launcher


@pytest.mark.parametrize(
    ("environ", "line", "place"),
    [
        # torchrun, torch.distributed.launch
        (TORCHRUN_2, "", Place(3, 1, 1, 4, 2, 2, Address("node-a", 29511), True, "torchrun")),
        (TORCHRUN_1 | {"TORCHELASTIC_RESTART_COUNT": "2"}, "",
         Place(1, 1, 0, 2, 2, 1, Address("127.0.0.1", 29500), True, "torchrun", 2)),
        # a store of rank 0's own: each attempt has a new one, and agents that came later count other attempts
        (TORCHRUN_1 | {"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_RESTART_COUNT": "2"}, "",
         Place(1, 1, 0, 2, 2, 1, Address("127.0.0.1", 29500), False, "torchrun")),
        (TORCHRUN_1 | {"WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "RANK": "0", "LOCAL_RANK": "0"}, "",
         Place(launcher="a launcher's single process")),
        # in a step: torchrun's world is meant. A step inside of torchrun looks the same, and its ranks come twice
        (PER_NODE | TORCHRUN_2, "", Place(3, 1, 1, 4, 2, 2, Address("node-a", 29511), True, "torchrun")),
        # set by hand, or by a platform
        (BY_HAND, "devices=2", Place(3, 1, 1, 4, 2, 2, Address("10.0.0.1", 29501), False, "environment variables")),
        # how many there are per node is counted when all have come
        (BY_HAND, "", Place(3, 1, 0, 4, 0, 1, Address("10.0.0.1", 29501), False, "environment variables")),
        # without LOCAL_RANK where it follows
        ({k: v for k, v in BY_HAND.items() if k != "LOCAL_RANK"}, "num_nodes=2",
         Place(3, 1, 1, 4, 2, 2, Address("10.0.0.1", 29501), False, "environment variables")),
        (KUBEFLOW, "devices=2 num_nodes=2",
         Place(1, 1, 0, 4, 2, 2, Address("job-master-0", 23456), False, "environment variables")),
        # explicit: cluster.rank wins over the variables
        ({}, "cluster.rank=3 cluster.local_rank=1 cluster.world_size=4 cluster.address=tcp://10.1.1.20:23456",
         Place(3, 1, 0, 4, 0, 1, Address("10.1.1.20", 23456), False, "cluster.rank")),
        (BY_HAND, "cluster.rank=2 cluster.local_rank=0 devices=2",  # the rest from the variables
         Place(2, 0, 1, 4, 2, 2, Address("10.0.0.1", 29501), False, "cluster.rank")),
        ({}, "cluster.rank=0 cluster.world_size=1 cluster.address=tcp://a", Place(launcher="cluster.rank")),
        ({"MASTER_ADDR": "a"}, "cluster=env cluster.rank=1 cluster.world_size=2 devices=2",
         Place(1, 1, 0, 2, 2, 1, Address("a", 29500), False, "cluster.rank")),
        # a step of nodes × devices tasks
        (STEP, "", Place(5, 1, 1, 8, 4, 2, Address("node03", 29500 + 711), False, "SLURM job 4711")),
        # srun --mpi=pmi2, with an address of one's own
        (STEP | {"PMI_SIZE": "8", "PMI_RANK": "5", "MASTER_ADDR": "10.0.0.3", "MASTER_PORT": "1234"}, "",
         Place(5, 1, 1, 8, 4, 2, Address("10.0.0.3", 1234), False, "SLURM job 4711")),
        # srun --distribution=cyclic: SLURM's own rank 1 is on the second node
        (STEP | {"SLURM_PROCID": "1", "SLURM_LOCALID": "0"}, "",
         Place(4, 0, 1, 8, 4, 2, Address("node03", 30211), False, "SLURM job 4711")),
        (ON_ONE, "", Place(1, 1, 0, 4, 4, 1, Address("127.0.0.1", 30211), False, "SLURM job 4711")),
        (PER_NODE | {"SLURM_GPUS_ON_NODE": "8"}, "devices=1",
         Place(1, 0, 1, 2, 1, 2, Address("node03", 30211), False, "SLURM job 4711")),
        # OpenMPI
        (mpi(1, 2, 1, 2), "", Place(1, 1, 0, 2, 2, 1, Address("127.0.0.1", 29500), False, "OpenMPI")),
    ],
)  # fmt: skip
def test_a_rank(environ: dict[str, str], line: str, place: Place):
    found = find(environ, line)
    assert replace(found, is_typed=False, job_id=None, run_key=None) == place
    assert found.is_alone == (place.world_size == 1)
    assert found.is_typed == (not found.is_alone and place.launcher in ("cluster.rank", "environment variables"))


# ---- a node ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "line", "expected"),
    [
        ({"MASTER_ADDR": "a"}, "num_nodes=2 devices=8", ("MASTER_ADDR", "a:29500", 2, None)),
        ({"MASTER_ADDR": "a", "NODE_RANK": "1"}, "num_nodes=2 cluster.node_rank=0", ("MASTER_ADDR", "a:29500", 2, 0)),
        ({"MASTER_ADDR": "a", "NODE_RANK": "1", "WORLD_SIZE": "4"}, "num_nodes=2 devices=2",
         ("MASTER_ADDR", "a:29500", 2, 1)),
        ({"MASTER_ADDR": "a"}, "num_nodes=3 cluster.address=b:5 cluster.node_rank=2",
         ("cluster.address", "b:5", 3, 2)),
        # Kubeflow, told that RANK counts machines
        (KUBEFLOW, "cluster.node_rank=1 num_nodes=4 devices=8", ("MASTER_ADDR", "job-master-0:23456", 4, 1)),
        # one task per node
        (PER_NODE, "devices=8", ("SLURM job 4711", "node03:30211", 2, 1)),
        (PER_NODE | {"WORLD_SIZE": "16", "MASTER_ADDR": "a", "MASTER_PORT": "5"}, "devices=8",
         ("SLURM job 4711", "a:5", 2, 1)),
        # one process per node of another launcher
        (mpi(1, 2, 0, 1), "cluster.address=a devices=8", ("OpenMPI", "a:29500", 2, 1)),
        # in a batch shell, where it is plain that the other nodes are started in another way
        (BATCH, "num_nodes=2 cluster.address=node03", ("cluster.address", "node03:29500", 2, None)),
    ],
)  # fmt: skip
def test_a_node(environ: dict[str, str], line: str, expected: tuple[str, str, int, int | None]):
    found = find(environ, line)
    assert found.is_node
    assert (found.launcher, str(found.address), found.num_nodes, found.node_rank) == expected


def test_a_node_without_gpus_has_one_process():
    assert not find(PER_NODE | {"SLURM_GPUS_ON_NODE": "8"}, "accelerator=cpu").is_node


# ---- the sentences ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "line", "said"),
    [
        # several nodes, and nowhere to meet
        ({"MASTER_ADDR": "10.0.0.1"}, "", "MASTER_ADDR=10.0.0.1 means that several nodes take part, but "
         "trainer.num_nodes is not set, so that each of them would train alone. Hint: for example, set "
         "trainer.num_nodes=2 if there are two, or trainer.num_nodes=1 to use this machine only."),
        ({}, "num_nodes=2 devices=8", "needs a rendezvous address...Hint: on every node, type `MASTER_ADDR=<address of "
         "node 0> python -m imagenet_ddp.train num_nodes=2 devices=8`"),
        # a node taken for a rank
        ({}, "cluster.rank=1 cluster.world_size=2 devices=8 cluster.address=a", "mean one command per process, but "
         "these values are not set: cluster.local_rank. Hint: ...or if each machine runs one command, set "
         "only trainer.num_nodes=2 cluster.node_rank=1."),
        (KUBEFLOW, "devices=4", "not set: LOCAL_RANK. Hint: ...if each machine runs one command, set "
         "only trainer.num_nodes=4 cluster.node_rank=$RANK."),
        ({}, "cluster=env", "not set: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR (or cluster.address). Hint: "),
        (mpi(3, 4, 1, 2), "", "OMPI_COMM_WORLD_SIZE=4...not set: MASTER_ADDR (or cluster.address). Hint: add "
         "cluster.address=tcp://HOST:29500 with the host of rank 0, or set MASTER_ADDR"),
        # numbers that contradict each other
        (BY_HAND | {"RANK": "x"}, "", "RANK must be an integer, got x (environment). Hint:"),
        ({}, "cluster.rank=2 cluster.world_size=2 cluster.local_rank=0 cluster.address=a",
         "cluster.rank must be below cluster.world_size (2), got 2. Hint: number the ranks from 0."),
        ({}, "cluster.rank=3 cluster.world_size=4 cluster.local_rank=2 devices=2 cluster.address=a",
         "cluster.rank must be node rank × 2 (processes per node) + local rank, got 3 with"),
        ({}, "cluster.rank=3 cluster.world_size=4 num_nodes=3 devices=2 cluster.address=a",
         "must equal cluster.world_size (4), got 2 × 3 = 6. Hint: leave trainer."),
        (TORCHRUN_2 | {"WORLD_SIZE": "5"}, "", "must equal WORLD_SIZE (5), got 2 × 2 = 4 (LOCAL_WORLD_SIZE is 2)."),
        # a launcher's world stands
        (TORCHRUN_2, "cluster.rank=2 cluster.world_size=4", "torchrun assigns the ranks. Hint: leave cluster.rank and "
         "cluster.world_size out."),
        (STEP, "cluster.node_rank=0", "SLURM job 4711 assigns the ranks. Hint: leave cluster.node_rank out."),
        (TORCHRUN_2, "cluster.address=b:29511", "torchrun determines the rendezvous address, but "),
        (STEP, "strategy=dp devices=4", "strategy=dp runs in one process, but SLURM job 4711 requests several. Hint:"),
        # SLURM
        (STEP, "devices=2", "trainer.devices × trainer.num_nodes must equal SLURM_STEP_NUM_TASKS (8), got 2 × 2 = 4 "
         "(LOCAL_WORLD_SIZE is 4). Hint: use #SBATCH --nodes=2 --ntasks-per-node=2, or leave "),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "5,3"}, "devices=4", "different numbers per node. Hint: use #SBATCH "
         "--ntasks-per-node=4."),
        (BATCH, "", "SLURM job 4711 has 2 nodes, but srun did not start this command...Hint: type `srun --nodes=2 "
         "python -m imagenet_ddp.train ...`...or set trainer.num_nodes=1"),
        (BATCH_1, "num_nodes=2 devices=4", "has 1 node...Hint: type `srun --nodes=2 --ntasks-per-node=4 python"),
        (ONE_TASK, "num_nodes=2", "would run on only one node instead of 2. Hint: type `srun "),
        # cluster=tcp, file, env, and what they need
        ({}, "cluster=file num_nodes=2", "cluster=file needs cluster.address=file:///PATH, got no address. Hint: set"),
        ({}, "cluster=tcp", "cluster=tcp needs cluster.address=tcp://HOST:29500, got no address. Hint: set"),
        ({}, "cluster=tcp num_nodes=2 cluster.address=file:///x", "cluster=tcp needs cluster.address=tcp://HOST:29500"),
        ({"MASTER_ADDR": "a"}, "cluster=env num_nodes=2 cluster.address=b cluster.node_rank=0",
         "cluster=env reads the address from MASTER_ADDR, but cluster.address is b. Hint: leave cluster=env out."),
        ({}, "cluster.address=a", "is for runs on several nodes, but trainer.num_nodes is not set. Hint:"),
        # node ranks
        ({"NODE_RANK": "1"}, "", "NODE_RANK=1 means that there are several nodes, but trainer.num_nodes is not set. "
         "Hint: set trainer.num_nodes=<number of nodes> and cluster.address=tcp://HOST:29500...or remove NODE_RANK if"),
        ({"MASTER_ADDR": "a"}, "cluster.node_rank=0", "cluster.node_rank=0 means that there are several nodes"),
        ({}, "cluster.node_rank=1 num_nodes=1", "must be from 0 to 0 (trainer.num_nodes=1), got 1. Hint: set"),
        ({"WORLD_SIZE": "2", "NODE_RANK": "1"}, "num_nodes=1", "WORLD_SIZE=2 mean one command per process, but "),
        ({"MASTER_ADDR": "a", "NODE_RANK": ""}, "num_nodes=2", "from 0 to 1...got an empty value. Hint:"),
    ],
)  # fmt: skip
def test_refused(environ: dict[str, str], line: str, said: str):
    with pytest.raises(ConfigError) as caught:
        find(environ, line)
    (text,) = map(str, caught.value.mistakes)
    text = text.replace("train trainer.num_nodes=auto`", "train ...`")
    position = 0
    for part in said.split("..."):
        assert part in text[position:], text
        position = text.index(part, position) + len(part)
    assert "Hint: " in text and text.endswith(".")


# ---- names that stay -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "key"),
    [
        ({}, None),
        (TORCHRUN_2, None),  # none for every static torchrun (E9)
        (TORCHRUN_1 | {"TORCHELASTIC_RUN_ID": "a/b c"}, "torchrun_a_b_c"),
        (TORCHRUN_2 | {"TORCHELASTIC_RUN_ID": "05e8f6ab-6133-464b-954d-28b7ec8ad6df"}, None),  # made up by torch
        (BATCH_1, "slurm_4711"),
        (STEP | {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}, "slurm_4700_3_0"),
        (STEP | TORCHRUN_2, "slurm_4711_0"),
    ],
)
def test_run_key(environ: dict[str, str], key: str | None):
    assert find(environ).run_key == key


def test_job_id():
    """Two steps of a job are two jobs, should they ever meet."""
    assert find(STEP).job_id == find(PER_NODE, "devices=8").job_id == "SLURM job 4711.0"
    assert find(STEP | {"SLURM_STEP_ID": "1"}).job_id == "SLURM job 4711.1"
    assert find(STEP, "cluster.job_id=mine").job_id == "mine"


def test_restarted():
    assert restarted({"SLURM_RESTART_COUNT": "2"}) and restarted({"TORCHELASTIC_RESTART_COUNT": "1"})
    assert not restarted(TORCHRUN_1) and not restarted({"SLURM_RESTART_COUNT": "x"})
