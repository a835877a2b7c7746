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
    row = found.platform
    counted = f"{row.num}={found.num}" if environ[row.num].isdecimal() else f"{row.num} lists {found.num} machines"
    if request.num_nodes not in (None, found.num):
        raise ConfigError(
            f"trainer.num_nodes must equal {row.name}'s number of machines, {found.num} ({row.num}), got "
            f"{request.num_nodes}. Hint: leave trainer.num_nodes out, or set trainer.num_nodes=1 to train on this "
            "machine only."
        )
    if not row.is_started and request.num_nodes is None:
        raise ConfigError(
            f"{counted}, but {row.name} starts a batch script only on the first of them. Hint: start the command with "
            f"mpiexec, or on each machine with trainer.num_nodes={found.num} cluster.address=tcp://{found.address}:29500"
            ", or set trainer.num_nodes=1 to use only this machine."
        )
    if not row.is_started:
        return None
    given = {"MASTER_ADDR": found.address, "MASTER_PORT": found.port}
    environ = {**{name: value for name, value in given.items() if value is not None}, **environ}
    if found.node_rank is not None:
        environ["NODE_RANK"] = found.node_rank
    if requested_address(request.cluster, environ) is None:
        raise ConfigError(
            f"{row.name} has {found.num} machines ({counted}), but none of {', '.join(row.address)}, cluster.address "
            "and MASTER_ADDR contains the address of the first one. Hint: set cluster.address=tcp://HOST:29500, or "
            "trainer.num_nodes=1 to train on this machine only."
        )
    launch_info = manual.one_per_node(replace(request, num_nodes=found.num), environ)
    assert launch_info is not None
    return replace(launch_info, source=row.name)
