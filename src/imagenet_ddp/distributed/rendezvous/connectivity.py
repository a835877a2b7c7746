"""Check, before training, that the nodes reach each other on ports other than the rendezvous port: a cloud's security
group often opens only one port, and then the first collective hangs."""

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Mapping
from typing import Any

from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.rendezvous import sockets
from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup, explain_lost_store

CONNECT_S = 5.0
MAX_ALL_PAIRS = 16  # nodes; beyond that each tries the first and the next one only


def own_address(environ: Mapping[str, str], master: str) -> str:
    """Return the address at which the other nodes reach this one: that of Gloo's interface, else of the one that routes
    to the master."""
    wanted = environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    for interface in interfaces.interfaces():
        if interface.name == wanted and interface.addresses:
            return interface.addresses[0]
    return interfaces.source_address(interfaces.resolve(master)) or master


def check_connectivity(rank_group: RankGroup, address: str) -> None:
    """Connect every pair of nodes, from the first rank of each. Call on all ranks.

    address: where the other machines reach this one. Raises SharedError on all ranks, naming the unreachable nodes.
    """
    members, number, store = rank_group.members, rank_group.number, rank_group.store
    machines = list(dict.fromkeys(str(member["machine"]) for member in members))
    node_of = [machines.index(str(member["machine"])) for member in members]
    first_ranks = [node_of.index(node) for node in range(len(machines))]
    node = node_of[number]
    unreachable: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        if first_ranks[node] == number:
            listener = stack.enter_context(sockets.listen())
            token = secrets.token_hex(8)
            threading.Thread(target=_answer, args=(listener, token), name="connectivity", daemon=True).start()
            own = {"host": address, "port": listener.getsockname()[1], "token": token}
            store.set(f"connectivity/{node}", json.dumps(own))
            for other in _targets(node, len(machines)):
                with explain_lost_store():
                    target = json.loads(store.get(f"connectivity/{other}"))  # waits: all have met already
                if reason := _try(target):
                    unreachable[str(other)] = f"{target['host']}:{target['port']}: {reason}"

        def find_mistakes(found: list[Mapping[str, str]]) -> list[str]:
            return [
                f"node {node_of[rank]} ({members[rank]['host']}) cannot reach node {other} "
                f"({members[first_ranks[int(other)]]['host']}) at {reason}, though both reach the rendezvous. "
                "Hint: the cloud's security group, and each machine's firewall, must let the nodes talk to each other "
                "at all TCP ports, or nccl.env.GLOO_SOCKET_IFNAME / NCCL_SOCKET_IFNAME names the wrong interface."
                for rank, others in enumerate(found)
                for other, reason in others.items()
            ]

        rank_group.check_all("connectivity", unreachable, find_mistakes)


def _targets(node: int, num_nodes: int) -> list[int]:
    if num_nodes <= MAX_ALL_PAIRS:
        return [other for other in range(num_nodes) if other != node]
    return sorted({0, (node + 1) % num_nodes} - {node})


def _try(target: Mapping[str, Any]) -> str | None:
    """Return why the target cannot be reached, or None."""
    try:
        with socket.create_connection((target["host"], target["port"]), timeout=CONNECT_S) as connection:
            answer = connection.makefile().readline().strip()
    except TimeoutError:
        return f"no answer within {CONNECT_S:.0f} s"
    except OSError as error:
        return str(error.strerror or error)
    return None if answer == target["token"] else "another program answers there"


def _answer(listener: socket.socket, token: str) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with contextlib.suppress(OSError), connection:
            connection.sendall(f"{token}\n".encode())
