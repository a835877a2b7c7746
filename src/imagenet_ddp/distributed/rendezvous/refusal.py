"""A command that is refused before it has met the others tells them why, so that they do not wait for it.

No torch before somebody answers at the address: a command that is alone costs nothing, and one whose others have not
come yet costs a short wait after its message. Who would wait longest is node 0, so it is looked for; where node 0
itself is refused, it listens for the others instead.
"""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imagenet_ddp.distributed.launchers import env_vars
from imagenet_ddp.distributed.launchers.address import Address
from imagenet_ddp.distributed.launchers.detect import detect, with_known_host
from imagenet_ddp.distributed.launchers.request import LaunchRequest
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.rendezvous import address_file
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import console

PROMPT_S = 1.0  # somebody waits for the shell's prompt; those who are there already look every 0.2 s
SCRIPT_S = 12.0  # nobody does: as long as commands that are started together may differ, most of it torch's import
TELL_S = 20.0  # torch's import, and the telling
LOOK_S = 0.2


@dataclass(frozen=True)
class Refused:
    """Who is refused, and where the others wait. number: of this rank or node, None where that is not known."""

    address: Address
    noun: str  # rank or node
    number: int | None
    size: int  # as many ranks or nodes as this command expects
    job_id: str | None = None
    attempt: int = 0
    store_is_served: bool = False  # by the launcher

    @property
    def name(self) -> str:
        return f"this {self.noun}" if self.number is None else f"{self.noun} {self.number}"


def of(config: Mapping[str, Any], environ: Mapping[str, str]) -> Refused | None:
    """config: resolved; what is wrong in it may be its numbers. None: nobody waits for this command, or another
    process of its node speaks for it."""
    try:
        found = with_known_host(detect(config, environ), environ)
    except ConfigError:
        return _typed(config, environ)
    world_info = found.world_info
    if found.address is None or (world_info.world_size if world_info else found.num_nodes) < 2:
        return None
    if not found.manual and (found.num_nodes == 1 or (world_info is not None and world_info.local_rank)):
        return None  # the launcher ends the others, or the node's first process speaks
    if world_info is None:
        return Refused(found.address, "node", found.node_rank, found.num_nodes, found.job_id)
    return Refused(
        found.address,
        "rank",
        world_info.rank,
        world_info.world_size,
        found.job_id,
        world_info.attempt,
        world_info.store_is_served,
    )


def _typed(config: Mapping[str, Any], environ: Mapping[str, str]) -> Refused | None:
    """The same where the numbers are wrong, which somebody has typed: a launcher's are not."""
    cluster, num_nodes = config["cluster"], config["trainer"].get("num_nodes")
    if env_vars.name(environ, by_tasks=True) is not None:
        return None
    with contextlib.suppress(ConfigError, TypeError, ValueError):
        address = LaunchRequest(None, None, cluster, "", False).address(environ)
        rank, size = (_number(cluster[key], environ.get(key.upper())) for key in ("rank", "world_size"))
        node = _number(cluster["node_rank"], environ.get("NODE_RANK"))
        if address is None:
            return None
        if rank is not None or size is not None:
            return Refused(address, "rank", rank, size or 2, cluster["job_id"])
        if node is not None or (num_nodes or 1) > 1:
            return Refused(address, "node", node, num_nodes or 2, cluster["job_id"])
    return None


def _number(key: Any, variable: str | None) -> int | None:
    return int(key) if key is not None else int(variable) if variable and variable.isdecimal() else None


def tell(refused: Refused, mistakes: Sequence[str]) -> None:
    """The others end with the same sentences; where none comes, this takes PROMPT_S or SCRIPT_S."""
    said = list(mistakes)[:5]
    seconds = PROMPT_S if _in_foreground() else SCRIPT_S
    host = refused.address.host
    told = None
    if host is not None and not refused.store_is_served and not refused.address.more_ports:
        first = refused.number == 0 or (refused.number is None and refused.noun == "node")
        told = _serve(refused, said, seconds) if first and _is_ours(host) else None
    if told is None and (refused.number != 0 or refused.store_is_served):
        told = _call(refused, said, seconds)
    if told:
        console.print_message(f"The others at {refused.address} are told that {refused.name} was refused.")


def _call(refused: Refused, mistakes: list[str], seconds: float) -> bool:
    """Where somebody else serves the store."""
    begin, announced = time.monotonic(), False
    while (found := _answering(refused.address)) is None:
        if time.monotonic() > begin + seconds:
            return False
        if not announced and time.monotonic() > begin + PROMPT_S:
            announced = True
            console.print_message(f"Looking for the others at {refused.address} for {seconds:.0f} s, to tell them.")
        time.sleep(LOOK_S)

    def call() -> bool:
        from imagenet_ddp.distributed.rendezvous import gather_ranks, store
        from imagenet_ddp.distributed.rendezvous.store import PrefixStore

        host, port = found
        job_id = (refused.job_id or "") if refused.address.more_ports else None
        served = store.client(
            host, port, 0.0, refused.name, ours=not refused.store_is_served, more_ports=refused.address.more_ports,
            job_id=job_id,
        )  # fmt: skip
        commands = PrefixStore(store.commands_prefix(refused.attempt), served)
        if refused.number == 0:
            gather_ranks.refuse_everyone(commands, 0, refused.noun, refused.size, mistakes)
            return True
        return gather_ranks.report_refusal(commands, refused.number, refused.noun, refused.job_id, mistakes)

    return _bounded(call)


def _serve(refused: Refused, mistakes: list[str], seconds: float) -> bool | None:
    """Where this command would have served the store: it is made once somebody has come. None: the port is taken."""
    try:
        listener = _listen(refused.address.port)
    except OSError:
        return None
    with listener:
        listener.settimeout(seconds)
        try:
            listener.accept()[0].close()
        except OSError:
            return False

        def serve() -> bool:
            from imagenet_ddp.distributed.rendezvous import gather_ranks as gather_ranks
            from imagenet_ddp.distributed.rendezvous import store
            from imagenet_ddp.distributed.rendezvous.store import PrefixStore

            served = store.serve_listener(listener)
            commands = PrefixStore(store.commands_prefix(refused.attempt), served)
            gather_ranks.refuse_everyone(commands, refused.number, refused.noun, refused.size, mistakes)
            return True

        return _bounded(serve)


def _listen(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _answering(address: Address) -> tuple[str, int] | None:
    """(host, port) that takes a connection."""
    hosts, ports = [address.host] if address.host else [], (address.port, *address.more_ports)
    if address.file is not None:
        owner = address_file.owner(address.file)
        hosts, ports = owner if owner is not None else ([], ())
    for host in hosts:
        for port in ports:
            with contextlib.suppress(OSError):
                socket.create_connection((interfaces.resolve(host), port), timeout=PROMPT_S).close()
                return host, port
    return None


def _is_ours(host: str) -> bool:
    try:
        return interfaces.is_local(interfaces.resolve(host))
    except OSError:
        return False


def _bounded(act: Callable[[], bool]) -> bool:
    """False where it fails, or takes too long: what is at the port may be anything."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    done: list[bool] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            done.append(act())

    thread = threading.Thread(target=run, name="refusal", daemon=True)
    thread.start()
    thread.join(TELL_S)
    return bool(done and done[0])


def _in_foreground() -> bool:
    """Whether a shell gives its prompt back when this process ends."""
    try:
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError, AttributeError):
        return False
