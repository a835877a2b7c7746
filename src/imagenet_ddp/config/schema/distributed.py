"""Declare the keys of strategy, cluster, nccl and sweep."""

from dataclasses import field
from typing import Annotated, Any

from omegaconf import DictConfig

from imagenet_ddp.config.section import Section
from imagenet_ddp.config.validators import AUTO, FLAG, Example, PerMachine, choice, integer, number


class StrategyConfig(Section):
    name: Annotated[str, choice("auto", "ddp", "dp", "balanced_dp"), "auto: ddp with several devices."] = "auto"
    process_group_backend: Annotated[
        str | None, choice("nccl", "gloo"), "Backend of torch.distributed; null: nccl on GPUs, gloo on CPUs."
    ] = None
    timeout_s: Annotated[float, number(above=0), "Longest wait in seconds for one collective operation."] = 1800.0
    find_unused_parameters: Annotated[bool, "ddp: look for parameters without a gradient in each step."] = False
    bucket_cap_mb: Annotated[float, number(above=0), "ddp: MiB of gradients per all-reduce."] = 25.0
    static_graph: Annotated[bool, "ddp: assume that the graph is the same in every step."] = False
    gradient_as_bucket_view: Annotated[bool, "ddp: store gradients in the buckets, which saves a copy."] = True
    forward_sync_buffers: Annotated[
        Any,
        AUTO | FLAG,
        "ddp: broadcast rank 0's buffers before each forward pass; auto: unless all buffers belong to batch norm.",
    ] = "auto"
    init_sync: Annotated[bool, "ddp: broadcast rank 0's weights at the start."] = True
    comm_hook: Annotated[
        str | None, choice("fp16", "bf16"), Example("bf16"), "ddp: send gradients in 16 bits; null: as they are."
    ] = None
    first_device_batch: Annotated[
        int | None,
        integer(0),
        Example("2"),
        "balanced_dp: images on the first device (0: it only gathers); null: half of data.batch_size.",
    ] = None


class ClusterConfig(Section):
    name: Annotated[
        str,
        choice("auto", "tcp", "file", "env"),
        "Rendezvous of the nodes; tcp, file: at cluster.address; env: at MASTER_ADDR, with RANK and WORLD_SIZE.",
    ] = "auto"
    address: Annotated[
        str | None,
        PerMachine(),
        "Address of the rendezvous: tcp://HOST:PORT, HOST:PORT, HOST or file:///PATH; null: MASTER_ADDR.",
    ] = None
    node_rank: Annotated[int | None, integer(0), PerMachine(), "Number of this node; null: detected."] = None
    rank: Annotated[int | None, integer(0), PerMachine(), "Number of this process, with one command per process."] = (
        None
    )
    local_rank: Annotated[int | None, integer(0), PerMachine(), "Number of this process on its node, likewise."] = None
    world_size: Annotated[int | None, integer(1), "Number of processes, with one command per process."] = None
    job_id: Annotated[str | None, "Distinguishes two jobs with the same address and options."] = None
    secret_file: Annotated[
        str | None,
        PerMachine(),
        "File with a secret, the same on every node, that signs the messages between nodes; null: unsigned.",
    ] = None
    timeout_s: Annotated[float, number(above=0), "Longest wait in seconds for all nodes to meet."] = 120.0
    requeue: Annotated[bool, "On SIGUSR1, SIGUSR2 or preemption, save and let SLURM requeue the job, if it may."] = True
    num_threads: Annotated[Any, AUTO | integer(1), "CPU threads per process; auto: a share of the idle cores."] = "auto"


class NcclConfig(Section):
    """Environment variables of NCCL, Gloo and libfabric under their own names, see docs/nccl.md."""

    name: Annotated[str, "Name of the file in conf/nccl."] = "default"
    # struct is off, so that nccl.env.NCCL_DEBUG=INFO needs no +
    env: Annotated[dict[str, Any], PerMachine(".*IFNAME"), "Environment variables of NCCL, Gloo and libfabric."] = (
        field(
            default_factory=lambda: DictConfig(
                {}, key_type=str, ref_type=dict[str, Any], is_optional=False, flags={"struct": False}
            )  # type: ignore
        )
    )


class SweepConfig(Section):
    job: Annotated[
        Any,
        choice("auto", "all", "list") | integer(0),
        "The only job to run, all, or list (show them); auto: the task of a SLURM job array, else all.",
    ] = "auto"
    resume: Annotated[str | None, "Folder of a sweep whose unfinished jobs are run."] = None
