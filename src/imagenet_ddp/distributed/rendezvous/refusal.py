"""Tell the other commands of a run that this one was refused, so that they do not wait for it.

Imports torch only after somebody has answered at the address: a command without others costs nothing, and one whose
others have not started yet costs a short wait after its message. Node 0 would wait longest, so its store is looked for;
where node 0 itself is refused, it listens for the others instead.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from imagenet_ddp.distributed.launchers import ranks
from imagenet_ddp.distributed.launchers.address import Address
from imagenet_ddp.distributed.launchers.detect import with_known_host
from imagenet_ddp.distributed.launchers.request import LaunchRequest
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.rendezvous import address_file, sockets
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import console

FOREGROUND_S = 1.0  # a person waits for the shell's prompt; others that have started already look every 0.2 s
BACKGROUND_S = 12.0  # by how much commands that are started together may differ, most of it torch's import
SEND_S = 20.0  # torch's import, and the sending
POLL_S = 0.2
MAX_MISTAKES = 5


@dataclass(frozen=True)
class RefusedCommand:
    """Where the others wait for this command. number: its rank or node rank, None where unknown."""

    address: Address
    noun: str  # rank or node
    number: int | None
    size: int  # number of ranks or nodes that this command expects
    job_id: str | None = None
    attempt: int = 0
    store_is_served: bool = False  # by the launcher

    @property
    def name(self) -> str:
        return f"this {self.noun}" if self.number is None else f"{self.noun} {self.number}"

    @property
    def owner(self) -> str | None:
        """The mark of the store where several ports are possible."""
        return (self.job_id or "") if self.address.more_ports else None


def refused_command(
    launch_info: LaunchInfo | None, config: Mapping[str, Any], environ: Mapping[str, str]
) -> RefusedCommand | None:
    """Return None where nobody waits for this command, or another process of its node speaks for it.

    launch_info: None where detect() refused config, whose numbers may be wrong. config: resolved.
    """
    if launch_info is None:
        return _from_options(config, environ)
    launch_info = with_known_host(launch_info, environ)
    address, world_info = launch_info.address, launch_info.world_info
    if address is None or launch_info.size < 2:
        return None
    if not launch_info.manual and (launch_info.num_nodes == 1 or (world_info is not None and world_info.local_rank)):
        return None  # the launcher ends the others, or the node's first process speaks
    found = RefusedCommand(address, launch_info.noun, launch_info.number, launch_info.size, launch_info.job_id)
    if world_info is None:
        return found
    return replace(found, attempt=world_info.attempt, store_is_served=world_info.store_is_served)


def _from_options(config: Mapping[str, Any], environ: Mapping[str, str]) -> RefusedCommand | None:
    """Guess from numbers that a person has typed; those of a launcher are right."""
    cluster, num_nodes = config["cluster"], config["trainer"].get("num_nodes")
    if ranks.launcher_name(environ, by_tasks=True) is not None:
        return None
    with contextlib.suppress(ConfigError, TypeError, ValueError):
        address = LaunchRequest(None, None, cluster, "", False).address(environ)
        rank, size = (_number(cluster[key], environ.get(key.upper())) for key in ("rank", "world_size"))
        node_rank = _number(cluster["node_rank"], environ.get("NODE_RANK"))
        if address is None:
            return None
        if rank is not None or size is not None:
            return RefusedCommand(address, "rank", rank, size or 2, cluster["job_id"])
        if node_rank is not None or (num_nodes or 1) > 1:
            return RefusedCommand(address, "node", node_rank, num_nodes or 2, cluster["job_id"])
    return None


def _number(option: Any, variable: str | None) -> int | None:
    return int(option) if option is not None else int(variable) if variable and variable.isdecimal() else None


def send(refused: RefusedCommand, mistakes: Sequence[str]) -> None:
    """End the others with the same mistakes. Takes FOREGROUND_S or BACKGROUND_S where nobody answers."""
    first_mistakes = list(mistakes)[:MAX_MISTAKES]
    timeout_s = FOREGROUND_S if _in_foreground() else BACKGROUND_S
    address, sent = refused.address, None
    if address.host is not None and not refused.store_is_served and not address.more_ports:
        may_serve = refused.number == 0 or (refused.number is None and refused.noun == "node")
        sent = _serve(refused, first_mistakes, timeout_s) if may_serve and _is_local(address.host) else None
    if sent is None and (refused.number != 0 or refused.store_is_served):
        sent = _send_to_server(refused, first_mistakes, timeout_s)
    if sent:
        console.print_message(f"The others at {address} have been informed that {refused.name} was refused.")


def _send_to_server(refused: RefusedCommand, mistakes: list[str], timeout_s: float) -> bool:
    """Send to the process that serves the store."""
    start, announced = time.monotonic(), False
    while (found := _find_server(refused.address)) is None:
        elapsed_s = time.monotonic() - start
        if elapsed_s > timeout_s:
            return False
        if not announced and elapsed_s > FOREGROUND_S:
            announced = True
            console.print_message(f"Looking for the others at {refused.address} for {timeout_s:.0f} s, to inform them.")
        time.sleep(POLL_S)

    def send() -> bool:
        from imagenet_ddp.distributed.rendezvous import gather_ranks, store

        ports = refused.address.more_ports
        ours = not refused.store_is_served
        served = store.client(*found, 0.0, refused.name, ours=ours, more_ports=ports, owner=refused.owner)
        commands = store.PrefixStore(store.commands_prefix(refused.attempt), served)
        if refused.number == 0:
            gather_ranks.refuse_everyone(commands, 0, refused.noun, refused.size, mistakes)
            return True
        return gather_ranks.send_refusal(commands, refused.number, refused.noun, refused.job_id, mistakes)

    return _run_bounded(send)


def _serve(refused: RefusedCommand, mistakes: list[str], timeout_s: float) -> bool | None:
    """Serve the store in place of this command, once somebody has connected. Return None where the port is taken."""
    try:
        listener = sockets.listen(refused.address.port)
    except OSError:
        return None
    with listener:
        listener.settimeout(timeout_s)
        try:
            listener.accept()[0].close()
        except OSError:
            return False

        def serve() -> bool:
            from imagenet_ddp.distributed.rendezvous import gather_ranks, store

            commands = store.PrefixStore(store.commands_prefix(refused.attempt), store.serve_listener(listener))
            gather_ranks.refuse_everyone(commands, refused.number, refused.noun, refused.size, mistakes)
            return True

        return _run_bounded(serve)


def _find_server(address: Address) -> tuple[str, int] | None:
    """Return the (host, port) that accepts a connection."""
    hosts, ports = [address.host] if address.host else [], (address.port, *address.more_ports)
    if address.file is not None and (content := address_file.read(address.file)):
        hosts, ports = content.reachable_addresses(), (content.port,)
    for host in hosts:
        for port in ports:
            with contextlib.suppress(OSError):
                socket.create_connection((interfaces.resolve(host), port), timeout=FOREGROUND_S).close()
                return host, port
    return None


def _is_local(host: str) -> bool:
    try:
        return interfaces.is_local(interfaces.resolve(host))
    except OSError:
        return False


def _run_bounded(action: Callable[[], bool]) -> bool:
    """Return False where the action fails, or takes too long: at the port may be any program."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    result: list[bool] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            result.append(action())

    thread = threading.Thread(target=run, name="refusal", daemon=True)
    thread.start()
    thread.join(SEND_S)
    return bool(result and result[0])


def _in_foreground() -> bool:
    """Whether a shell shows its prompt when this process ends."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
