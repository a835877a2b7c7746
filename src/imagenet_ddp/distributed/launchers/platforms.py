"""Read the machines of a platform that starts one command per machine, such as Kubeflow. Does not import torch."""

from collections.abc import Mapping
from dataclasses import replace

from imagenet_ddp.distributed.launchers import known_launchers, manual, slurm_env
from imagenet_ddp.distributed.launchers.request import LaunchRequest, requested_address
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.errors import ConfigError


def one_per_machine(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Return the launch info of this machine if the platform has several, unless a launcher of processes runs on it or
    trainer.num_nodes=1 is set.

    Raises ConfigError if the options contradict the platform, or if the other machines do not run the command.
    """
    is_rank = "TORCHELASTIC_RUN_ID" in environ or {"RANK", "LOCAL_RANK"} <= environ.keys()
    if is_rank or known_launchers.process_launcher(environ) or slurm_env.read_step(environ) or request.num_nodes == 1:
        return None
    found = known_launchers.machines(environ)
    if found is None:
        return None
    row, num, given = found
    counted = f"{row.num}={num}" if environ[row.num].isdecimal() else f"{row.num} lists {num} machines"
    if request.num_nodes not in (None, num):
        raise ConfigError(
            f"trainer.num_nodes must equal {row.name}'s number of machines, {num} ({row.num}), got "
            f"{request.num_nodes}. Hint: leave trainer.num_nodes out, or set trainer.num_nodes=1 to train on this "
            "machine only."
        )
    if not row.is_started and request.num_nodes is None:
        each = f"trainer.num_nodes={num} cluster.address=tcp://{given['MASTER_ADDR']}:29500"
        raise ConfigError(
            f"{counted}, but {row.name} starts a batch script only on the first of them. Hint: start the command with "
            f"mpiexec, or on each machine with {each}, or set trainer.num_nodes=1 to use only this machine."
        )
    if not row.is_started:
        return None
    environ = {**environ, **given}
    place, is_typed = given.get("NODE_RANK", "0"), request.cluster["node_rank"] is not None
    if not is_typed and not (place.isdecimal() and int(place) < num):
        raise ConfigError(
            f"{row.node_rank} must identify one of {row.name}'s {num} machines ({row.num}), got {place}. Hint: set "
            f"cluster.node_rank=<0 to {num - 1}>, because nodes are numbered from 0."
        )
    if requested_address(request.cluster, environ) is None:
        raise ConfigError(
            f"{row.name} has {num} machines ({counted}), but none of {row.address}, MASTER_ADDR and "
            "cluster.address contains the address of the first one. Hint: set cluster.address=tcp://HOST:29500, or "
            "trainer.num_nodes=1 to train on this machine only."
        )
    launch_info = manual.one_per_node(replace(request, num_nodes=num), environ)
    assert launch_info is not None
    return replace(launch_info, source=row.name)
