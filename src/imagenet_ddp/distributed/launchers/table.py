"""List the launchers and platforms that start several commands, with the variables that tell a command which one it is.

A launcher of processes starts one command per process. A platform starts one command per machine, which then starts its
own workers. torchrun, SLURM and RANK with WORLD_SIZE have modules of their own. This module does not import torch.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class ProcessLauncher:
    """Launcher of one command per process. Of several variables for a value, the first that is set counts.

    size: number of processes. source: where the variables are documented or set. nodes: number of machines, from which
    the number of processes per machine follows if no variable contains it. unless: variable of a launcher that sets
    more reliable ones.
    """

    name: str
    size: str
    rank: str
    local_rank: tuple[str, ...]
    local_size: tuple[str, ...]
    source: str
    nodes: str = ""
    unless: str = ""


@dataclass(frozen=True)
class Platform:
    """Platform that starts one command per machine.

    num: number of machines, or the list of their names. node_rank: number of this machine, or its name in that list.
    address: address of the first machine, or a list that begins with it. is_started: whether the platform starts the
    command on every machine, not only on the first one. source: where the variables are documented or set.
    """

    name: str
    num: str
    node_rank: str
    address: str
    source: str
    port: str = "MASTER_PORT"
    is_started: bool = True


def _named(prefix: str) -> tuple[str, str, tuple[str, ...], tuple[str, ...]]:
    return f"{prefix}SIZE", f"{prefix}RANK", (f"{prefix}LOCAL_RANK",), (f"{prefix}LOCAL_SIZE",)


PROCESS_LAUNCHERS = (
    # an MPI's launcher may start its own helpers through srun, so its variables come before those of the SLURM step
    ProcessLauncher("OpenMPI", *_named("OMPI_COMM_WORLD_"), source="Open MPI, mpirun(1), ENVIRONMENT VARIABLES"),
    ProcessLauncher("MVAPICH2", *_named("MV2_COMM_WORLD_"), source="MVAPICH2, src/pm/mpirun (mpirun_rsh, mpispawn)"),
    ProcessLauncher("Horovod", *_named("HOROVOD_"), source="horovod, runner/gloo_run.py (horovodrun without MPI)"),
    ProcessLauncher("jsrun", *_named("JSM_NAMESPACE_"), source="IBM Job Step Manager, jsrun; OpenPOWER's ompi"),
    ProcessLauncher(
        "Flux", "FLUX_JOB_SIZE", "FLUX_TASK_RANK", ("FLUX_TASK_LOCAL_ID",), (),
        source="flux-core, src/shell/task.c; flux-environment(7)", nodes="FLUX_JOB_NNODES",
    ),
    ProcessLauncher(
        "PALS", "PMI_SIZE", "PALS_RANKID", ("PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"),
        ("PMI_LOCAL_SIZE", "PALS_LOCAL_SIZE"), source="HPE Cray PALS, palsd.h and mpiexec(1)",
        unless="SLURM_STEP_ID",
    ),
    ProcessLauncher(
        "Intel MPI or MPICH", "PMI_SIZE", "PMI_RANK", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"),
        ("MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"), source="MPICH's Hydra, src/pm/hydra (pmip); srun --mpi=pmi2 without it",
        unless="SLURM_STEP_ID",
    ),
)  # fmt: skip
PLATFORMS = (
    Platform(
        "Kubeflow", "PET_NNODES", "PET_NODE_RANK", "PET_MASTER_ADDR", port="PET_MASTER_PORT",
        source="kubeflow/trainer, pkg/runtime/framework/plugins/torch; kubeflow/training-operator, pytorch/envvar.go",
    ),
    Platform("SageMaker", "SM_HOSTS", "SM_CURRENT_HOST", "SM_HOSTS", source="aws/sagemaker-training-toolkit, README"),
    Platform(
        "SkyPilot", "SKYPILOT_NUM_NODES", "SKYPILOT_NODE_RANK", "SKYPILOT_NODE_IPS",
        source="SkyPilot, sky/skylet/constants.py; docs, running-jobs/environment-variables",
    ),
    Platform(
        "Azure ML", "AZUREML_NODE_COUNT", "NODE_RANK", "AZ_BATCH_MASTER_NODE",
        source="Azure Batch, compute node environment variables; Azure ML, how-to-train-distributed-gpu",
    ),
    Platform(
        "AWS Batch", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_NODE_INDEX",
        "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS",  # which the main node itself does not have
        source="AWS Batch, userguide/mnp-env-vars",
    ),
    Platform(
        "dstack", "DSTACK_NODES_NUM", "DSTACK_NODE_RANK", "DSTACK_MASTER_NODE_IP",
        source="dstack, docs/concepts/tasks, system environment variables",
    ),
    Platform(
        "Beaker", "BEAKER_REPLICA_COUNT", "BEAKER_REPLICA_RANK", "BEAKER_LEADER_REPLICA_HOSTNAME",
        source="Beaker, concept/experiments, distributed training; its jobs need leaderSelection: true",
    ),
    Platform(
        "Volcengine", "MLP_WORKER_NUM", "MLP_ROLE_INDEX", "MLP_WORKER_0_HOST", port="MLP_WORKER_0_PORT",
        source="Volcengine's machine-learning platform, environment variables of PyTorch DDP jobs",
    ),
    Platform("Vertex AI", *(3 * ["CLUSTER_SPEC"]), source="docs/training/distributed-training"),
    Platform("TF_CONFIG", *(3 * ["TF_CONFIG"]), source="TensorFlow, guide/distributed_training"),
    Platform("PBS", "PBS_NODEFILE", "PBS_NODENUM", "PBS_NODEFILE", source="qsub(1B), pbsdsh(1B)", is_started=False),
    Platform(
        "LSF", "LSB_DJOB_HOSTFILE", "NODE_RANK", "LSB_DJOB_HOSTFILE", source="LSF reference, environment variables",
        is_started=False,
    ),
    Platform("OAR", "OAR_NODEFILE", "NODE_RANK", "OAR_NODEFILE", source="oarsub(1)", is_started=False),
    Platform("Grid Engine", "PE_HOSTFILE", "NODE_RANK", "PE_HOSTFILE", source="sge_pe(5)", is_started=False),
)  # fmt: skip
# the variables that number processes and machines; PMIx, of several launchers, does not count the processes
RANKS, NODE_RANKS = ("PMIX_RANK", *(row.rank for row in PROCESS_LAUNCHERS)), [row.node_rank for row in PLATFORMS]
# the order in which the roles of CLUSTER_SPEC and TF_CONFIG are numbered; the others do not train
ROLES = ("chief", "master", "workerpool0", "workerpool1", "worker")


def process_launcher(environ: Mapping[str, str]) -> ProcessLauncher | None:
    """Return the launcher that started this process as one of several; None if there is none."""
    # Hydra's helpers, not their processes, run in the SLURM step
    own_step = set[str]() if "MPI_LOCALNRANKS" in environ else set(environ)
    several = [row for row in PROCESS_LAUNCHERS if _count(environ, row.size) > 1 and row.unless not in own_step]
    return next((row for row in several if row.rank in environ), several[-1] if several else None)


def process_numbers(row: ProcessLauncher, environ: Mapping[str, str]) -> dict[str, str]:
    """Return WORLD_SIZE, and RANK, LOCAL_RANK and LOCAL_WORLD_SIZE if the launcher provides them."""
    variables = {"RANK": (row.rank,), "LOCAL_RANK": row.local_rank, "LOCAL_WORLD_SIZE": row.local_size}
    number = {"WORLD_SIZE": environ[row.size]}
    for name, given in variables.items():
        if variable := next((variable for variable in given if variable in environ), None):
            number[name] = environ[variable]
    size, nodes = int(environ[row.size]), _count(environ, row.nodes)
    if nodes and size % nodes == 0:
        number["LOCAL_WORLD_SIZE"] = str(size // nodes)
    return number


def machines(environ: Mapping[str, str]) -> tuple[Platform, int, dict[str, str]] | None:
    """Return the platform on which this command runs, its number of machines, and NODE_RANK, MASTER_ADDR and
    MASTER_PORT as far as they are known; None if there is only one machine."""
    for row in PLATFORMS:
        # a launcher of processes has left the batch script, perhaps with one process
        is_past = not row.is_started and any(launcher.size in environ for launcher in PROCESS_LAUNCHERS)
        if not environ.get(row.num) or is_past:
            continue
        hosts = _hosts(row.num, environ)
        num = _count(environ, row.num) if hosts is None else len(hosts)
        if num <= 1:
            continue
        rank = _own_place(row.num, environ) if row.node_rank == row.num else environ.get(row.node_rank)
        if hosts and rank in hosts:
            rank = str(hosts.index(rank))
        first = environ.get(row.address)
        if first and (first := (_hosts(row.address, environ) or [first])[0]).count(":") == 1:
            first = first.partition(":")[0]  # with the port of another service
        given = {
            "NODE_RANK": rank,
            "MASTER_ADDR": environ.get("MASTER_ADDR") or first,
            "MASTER_PORT": environ.get("MASTER_PORT") or environ.get(row.port),
        }
        return row, num, {name: value for name, value in given.items() if value}
    return None


def _count(environ: Mapping[str, str], name: str) -> int:
    value = environ.get(name, "").rpartition(":")[2]  # the most of an elastic PyTorchJob's 1:4
    return int(value) if value.isdecimal() else 0


def _hosts(name: str, environ: Mapping[str, str]) -> Sequence[str] | None:
    """Return the machines that a variable lists as JSON, as a cluster in JSON, or as lines, of a file too; None if it
    is not a list."""
    text = environ[name].strip()
    if name.endswith("FILE"):
        try:
            lines = map(str.split, Path(text).read_text(encoding="utf-8").splitlines())
            return list(dict.fromkeys(line[0] for line in lines if line))
        except OSError:
            return []  # another machine's file
    if text.startswith(("[", "{")):
        found = _json(text)
        if text.startswith("["):
            return [str(host) for host in found]
        return [host for role in ROLES for host in found.get("cluster", {}).get(role, [])]
    return text.split() if len(text.split()) > 1 else None


def _own_place(name: str, environ: Mapping[str, str]) -> str | None:
    """Return this machine's number in the cluster of CLUSTER_SPEC or TF_CONFIG; None if its role does not train."""
    found = _json(environ[name])
    task, cluster = found.get("task", {}), found.get("cluster", {})
    if task.get("type") not in ROLES:
        return None
    before = ROLES[: ROLES.index(task["type"])]
    return str(sum(len(cluster.get(role, [])) for role in before) + int(task.get("index", 0)))


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {}
