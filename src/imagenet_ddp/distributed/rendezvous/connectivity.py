"""Do the nodes reach each other at other ports than the rendezvous'? Tried before anything trains: a cloud's security
group often opens one port, and then the first collective hangs."""

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Mapping
from typing import Any

from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.rendezvous.failure_detector import listen
from imagenet_ddp.distributed.rendezvous.gather_ranks import RankGroup, answered

CONNECT_S = 5.0
NUM_ALL_PAIRS = 16  # nodes; beyond that each tries the first and the next one only


def own_address(environ: Mapping[str, str], master: str) -> str:
    """Where the other nodes reach this one: at the interface Gloo offers, else at the one that leads to the master."""
    wanted = environ.get("GLOO_SOCKET_IFNAME", "").partition(",")[0]
    for interface in interfaces.interfaces():
        if interface.name == wanted and interface.addresses:
            return interface.addresses[0]
    return interfaces.source_address(interfaces.resolve(master)) or master


def check_connectivity(rank_group: RankGroup, address: str) -> None:
    """In every rank; the first of each machine listens and tries the others. address: where the other machines reach
    this one. Raises ConfigError on all, naming who does not reach whom."""
    machines = [str(member["machine"]) for member in rank_group.members]
    names = list(dict.fromkeys(machines))
    node_of = [names.index(machine) for machine in machines]
    firsts = [machines.index(name) for name in names]
    number = rank_group.number
    mine: dict[str, Any] = {}
    listener = listen() if firsts[node_of[number]] == number else None
    if listener is not None:
        token = secrets.token_hex(8)
        threading.Thread(target=_answer, args=(listener, token), name="echo", daemon=True).start()
        me = {"host": address, "port": listener.getsockname()[1], "token": token}
        store = rank_group.store
        store.set(f"echo/{node_of[number]}", json.dumps(me))
        for node in _targets(node_of[number], len(names)):
            with answered():
                there = json.loads(store.get(f"echo/{node}"))  # waits: all have met already
            if reason := _try(there):
                mine[str(node)] = f"{there['host']}:{there['port']}: {reason}"

    def judge(all_found: list[Mapping[str, str]]) -> list[str]:
        return [
            f"node {node_of[rank]} ({rank_group.members[rank]['host']}) cannot reach node {node} "
            f"({rank_group.members[firsts[int(node)]]['host']}) at {why}, though both reach the rendezvous. "
            "Hint: the cloud's security group, and each machine's firewall, must let the nodes talk to each other at "
            "all TCP ports, or nccl.env.GLOO_SOCKET_IFNAME / nccl.env.NCCL_SOCKET_IFNAME names the wrong interface."
            for rank, found in enumerate(all_found)
            for node, why in found.items()
        ]

    try:
        rank_group.collect("echo", mine, judge)
    finally:
        if listener is not None:
            listener.close()


def _targets(node: int, num_nodes: int) -> list[int]:
    if num_nodes <= NUM_ALL_PAIRS:
        return [other for other in range(num_nodes) if other != node]
    return sorted({0, (node + 1) % num_nodes} - {node})


def _try(there: Mapping[str, Any]) -> str | None:
    """Why not, or None."""
    try:
        with socket.create_connection((there["host"], there["port"]), timeout=CONNECT_S) as connection:
            answer = connection.makefile().readline().strip()
    except TimeoutError:
        return f"no answer within {CONNECT_S:.0f} s"
    except OSError as error:
        return str(error.strerror or error)
    return None if answer == there["token"] else "another program answers there"


def _answer(listener: socket.socket, token: str) -> None:
    while True:
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        with contextlib.suppress(OSError), connection:
            connection.sendall(f"{token}\n".encode())
