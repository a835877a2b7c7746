"""Read the ranks from the variables of OpenMPI's mpirun."""

from collections.abc import Mapping

from imagenet_ddp.distributed.launchers.address import DEFAULT_PORT, Address
from imagenet_ddp.distributed.launchers.request import LaunchRequest
from imagenet_ddp.distributed.launchers.tasks import HERE, Tasks, assign_ranks, port_or_default
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.errors import ConfigError


def openmpi(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    found = numbers(environ)
    if found is None:
        return None
    size, rank, local_size, local_rank = found
    num_nodes = -(-size // local_size)
    address = request.address(environ)
    if address is None:
        if num_nodes > 1:
            raise ConfigError(
                f"mpirun started {size} processes on {num_nodes} machines, but where do they meet? There is no "
                "cluster.address and no MASTER_ADDR. "
                "Hint: `mpirun -x MASTER_ADDR=<address of the first machine> ...`."
            )
        address = Address(HERE, port_or_default(environ, DEFAULT_PORT))
    even = size % local_size == 0
    if even and rank % local_size != local_rank:
        raise ConfigError(
            f"OpenMPI must count its ranks node by node, but rank {rank} has local rank {local_rank} of "
            f"{local_size}. Hint: `mpirun --map-by slot ...`, or `--map-by ppr:{local_size}:node`."
        )
    return assign_ranks(
        request,
        environ,
        Tasks(
            "OpenMPI", size, num_nodes, local_rank, rank // local_size, local_size if even else None, None,
            "OMPI_COMM_WORLD_SIZE", "--npernode", "hosts for {}", "", address,
        ),
    )  # fmt: skip


def numbers(environ: Mapping[str, str]) -> tuple[int, int, int, int] | None:
    """(size, rank, local size, local rank); None outside, and for one process."""
    names = ("SIZE", "RANK", "LOCAL_SIZE", "LOCAL_RANK")
    values = [environ.get(f"OMPI_COMM_WORLD_{name}", "") for name in names]
    if not all(value.isdecimal() for value in values) or int(values[0]) <= 1 or int(values[2]) < 1:
        return None
    size, rank, local_size, local_rank = map(int, values)
    return size, rank, local_size, local_rank
