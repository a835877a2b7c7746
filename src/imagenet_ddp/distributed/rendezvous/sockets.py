"""Open the TCP connections between ranks. Does not import torch."""

import contextlib
import socket

from imagenet_ddp.errors import ConfigError

PROBE_S, NUM_PROBES = 2, 3  # interval and number of keep-alive probes


def listen() -> socket.socket:
    """Listen on a free port at all of this machine's addresses."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


def connect(hosts: list[str], port: int, timeout_s: float) -> socket.socket:
    """Connect to the first host that answers. Raises ConfigError if none does."""
    reasons = []
    for host in hosts:
        try:
            connection = socket.create_connection((host, port), timeout=timeout_s / len(hosts))
        except OSError as error:
            reasons.append(f"{host}:{port}: {error.strerror or error}")
            continue
        connection.settimeout(None)
        keep_alive(connection)
        return connection
    raise ConfigError(
        f"rank 0's machine can be reached at the rendezvous port, but not at another port ({'; '.join(reasons)}). "
        "Hint: allow all TCP ports between the nodes in the cloud's security group and in each machine's firewall, "
        "because training uses ports that the system chooses."
    )


def keep_alive(connection: socket.socket) -> None:
    """Configure keep-alive probes, with which the kernel detects within about 8 s that the peer's machine is gone."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    milliseconds = 1000 * PROBE_S * (NUM_PROBES + 1)
    options = {"KEEPIDLE": PROBE_S, "KEEPINTVL": PROBE_S, "KEEPCNT": NUM_PROBES, "USER_TIMEOUT": milliseconds}
    for name, value in options.items():
        if hasattr(socket, f"TCP_{name}"):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_{name}"), value)
