"""Find a free port of this machine, or occupy a port as another program would."""

import os
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

PER_WORKER = 1_000
FIRST = 12_000  # below 32768, from which on systems assign ports to outgoing connections
_own = FIRST + PER_WORKER * int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
_unused = iter(random.Random(os.getpid()).sample(range(_own, _own + PER_WORKER), PER_WORKER))


def free_port() -> int:
    """Return a port that is free now, and that neither another pytest worker nor an outgoing connection will use.

    Raises OSError if all ports of this worker are in use.
    """
    for port in _unused:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise OSError(f"none of the ports {_own} to {_own + PER_WORKER - 1} is free")


@contextmanager
def program(answer: bytes | None, port: int = 0) -> Iterator[int]:
    """Listen on a port as another program would, and yield the port.

    answer: the bytes sent to each connection before it is closed; None: accept the connection and send nothing. port:
    0: any free port.
    """
    with socket.create_server(("127.0.0.1", port)) as server:
        kept = []

        def run() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                kept.append(connection)
                if answer is not None:
                    connection.sendall(answer)
                    connection.close()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)
            for connection in kept:
                connection.close()
