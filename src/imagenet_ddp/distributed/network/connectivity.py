"""Check before training that the nodes reach each other on ports other than the rendezvous port.

The security group of a cloud often opens only one port, and the first collective then hangs.
"""

import contextlib
import json
import socket
from collections.abc import Mapping

from imagenet_ddp.distributed.meet import Meeting, explain_lost_store
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.errors import ConfigError

CONNECT_S = 5.0
MAX_ALL_PAIRS = 16  # with more nodes than this, each node tries only the first node and the next node


def own_address(environ: Mapping[str, str], master: str) -> str:
    """Return the address at which the other nodes reach this node: that of Gloo's interface, or else of the interface
    used to reach the rendezvous address."""
    wanted = environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    for interface in interfaces.interfaces():
        if interface.name == wanted and interface.addresses:
            return interface.addresses[0]
    return interfaces.source_address(interfaces.resolve(master)) or master


def check_connectivity(meeting: Meeting, address: str) -> None:
    """Check the connections between the nodes, from the first rank of each node. Call this on all ranks.

    address: address at which the other machines reach this machine. Raises SharedError on all ranks if a node is
    unreachable. The error names the node.
    """
    members, number, store = meeting.members, meeting.number, meeting.store
    machines = list(dict.fromkeys(member.machine for member in members))
    node_of = [machines.index(member.machine) for member in members]
    first_ranks = [node_of.index(node) for node in range(len(machines))]
    node = node_of[number]
    unreachable: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        if first_ranks[node] == number:
            # never read from: the system itself accepts connections
            listener = stack.enter_context(_listen())
            store.set(f"node_address/{node}", json.dumps([address, listener.getsockname()[1]]))
            for other in _targets(node, len(machines)):
                with explain_lost_store():
                    host, port = json.loads(store.get(f"node_address/{other}"))  # soon set: all ranks have joined
                if reason := _try(host, port):
                    unreachable[str(other)] = f"{host}:{port}: {reason}"

        def require_reachable(found: list[Mapping[str, str]]) -> None:
            mistakes = [
                f"node {node_of[rank]} ({members[rank].host}) cannot reach node {other} "
                f"({members[first_ranks[int(other)]].host}) at {reason}, although both reach the rendezvous. "
                "Hint: allow all TCP ports between the nodes in the cloud's security group and in each machine's "
                "firewall, or correct the interface in nccl.env.GLOO_SOCKET_IFNAME or nccl.env.NCCL_SOCKET_IFNAME."
                for rank, others in enumerate(found)
                for other, reason in others.items()
            ]
            if mistakes:
                raise ConfigError(mistakes)

        meeting.agree("connectivity", unreachable, require_reachable)


def _targets(node: int, num_nodes: int) -> list[int]:
    if num_nodes <= MAX_ALL_PAIRS:
        return [other for other in range(num_nodes) if other != node]
    return sorted({0, (node + 1) % num_nodes} - {node})


def _try(host: str, port: int) -> str | None:
    """Return the reason why nothing can be reached there; None if it can."""
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S):
            return None
    except TimeoutError:
        return f"no answer within {CONNECT_S:.0f} s"
    except OSError as error:
        return str(error.strerror or error)


def _listen() -> socket.socket:
    """Listen on a free port at all of this machine's addresses."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)
