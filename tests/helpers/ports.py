"""Ports of this machine: a free one, and one that another program has."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def program(answer: bytes | None, port: int = 0) -> Iterator[int]:
    """Another program's port, this one or any. answer None: it accepts and stays silent."""
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
