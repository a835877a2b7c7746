"""Read the node rank and the address of commands that a person types, one per node. Does not import torch."""

from collections.abc import Mapping

from imagenet_ddp.distributed.launchers.request import LaunchRequest, requested_address
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.errors import ConfigError


def one_per_node(request: LaunchRequest, environ: Mapping[str, str]) -> LaunchInfo | None:
    """Return the launch info of this node if trainer.num_nodes > 1, otherwise None.

    Raises ConfigError if the node rank, the address and trainer.num_nodes do not match.
    """
    cluster, num_nodes = request.cluster, request.num_nodes
    sources = {"cluster.node_rank": cluster["node_rank"]}
    sources |= {name: environ.get(name) for name in ("NODE_RANK", "GROUP_RANK")}
    source = next((key for key, value in sources.items() if value is not None), None)
    node_rank = str(sources[source]) if source else None
    # an option is deliberate, but a variable may be left over from another program
    deliberate = source == "cluster.node_rank" or (source is not None and cluster["name"] == "env")
    if num_nodes is None and node_rank is not None and (deliberate or node_rank != "0"):
        missing = "" if requested_address(cluster, environ) else " and cluster.address=tcp://HOST:29500"
        unset = f", or run `unset {source}` if the variable is left over" if source != "cluster.node_rank" else ""
        raise ConfigError(
            f"{source}={node_rank} means that there are several nodes, but trainer.num_nodes is not set. "
            f"Hint: set trainer.num_nodes=<number of nodes>{missing} on every node{unset}."
        )
    if node_rank is not None and num_nodes is not None and (num_nodes > 1 or deliberate):
        last = num_nodes - 1
        if not node_rank.isdecimal() or int(node_rank) > last:
            raise ConfigError(
                f"{source} must be {f'an integer from 0 to {last}' if last else '0'} "
                f"(trainer.num_nodes={num_nodes}), got {node_rank or 'an empty value'}. "
                f"Hint: set cluster.node_rank={f'<0 to {last}>' if last else '0'}, because nodes are numbered from 0."
            )
    address = requested_address(cluster, environ)
    if (num_nodes or 1) <= 1:
        if cluster["address"] is not None:
            raise ConfigError(
                f"cluster.address={cluster['address']} is for runs on several nodes, but trainer.num_nodes is "
                f"{num_nodes or 'not set'}. Hint: set trainer.num_nodes=2, or leave cluster.address out."
            )
        return None
    assert num_nodes is not None
    if address is None:
        raise ConfigError(
            f"trainer.num_nodes={num_nodes} needs a rendezvous address, but cluster.address and MASTER_ADDR are not "
            "set, and no launcher has set RANK and WORLD_SIZE. Hint: on every node, type "
            f"`MASTER_ADDR=<address of node 0> {request.line}`."
        )
    source = "MASTER_ADDR" if cluster["address"] is None else "cluster.address"
    return LaunchInfo(source, address, None, num_nodes, int(node_rank) if node_rank is not None else None, manual=True)
