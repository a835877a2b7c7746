"""Inform all ranks immediately when one rank fails.

Each rank holds a connection to rank 0, and the kernel closes the connection when the process ends. There are no
heartbeats, because a process that computes, swaps or is being debugged is silent although it has not failed. The
kernel's keep-alive probes detect a machine that vanishes from the network.
"""

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Callable

from imagenet_ddp.distributed.rendezvous import sockets
from imagenet_ddp.distributed.rendezvous.rank_group import RankGroup
from imagenet_ddp.system import console
from imagenet_ddp.system.process_exit import exit_at_once

GRACE_S = 3.0  # time for a rank to raise its own error, before it is ended because another rank failed
STOP_GRACE_S = 1.0  # time for the same signal to stop this rank, too
LEAVE_S = 10.0  # how long rank 0 waits for the others at the end
CONNECT_S = 10.0
GONE = "is gone: its process, or its machine, no longer answers"


class FailureDetector:
    """Report this rank's failure to all other ranks, and call on_failure when another rank fails.

    label: returns the name of a rank. on_failure: called once, in its own thread, with an exit code and a sentence.

    Messages are lines of text. A rank sends its number to rank 0, and later "leave" or "failed CODE TEXT". Rank 0 sends
    "leave" or "failed CODE TEXT" to all other ranks.
    """

    def __init__(
        self,
        rank_group: RankGroup,
        hosts: list[str],
        label: Callable[[int], str],
        on_failure: Callable[[int, str], None],
    ):
        """Open the connection between this rank and rank 0.

        hosts: this machine's addresses, at which rank 0 listens.
        """
        self._label, self._on_failure = label, on_failure
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.failed: str | None = None  # the first failure, of this rank or of another rank
        self.code = 1  # exit code for that failure
        self._peers: dict[socket.socket, int] = {}
        self._present = set(range(1, rank_group.size))  # neither left nor failed; rank 0 waits for these at the end
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None
        if rank_group.number == 0:
            self._listener = sockets.listen()
            rank_group.broadcast("failure_detector", [hosts, self._listener.getsockname()[1]])
            target = self._serve
        else:
            rank_0_hosts, port = rank_group.broadcast("failure_detector")
            self._connection = sockets.connect(rank_0_hosts, port, CONNECT_S)
            self._connection.sendall(f"{rank_group.number}\n".encode())
            target = self._listen_to_rank_0
        threading.Thread(target=target, name="failure_detector", daemon=True).start()

    def fail(self, what: str, code: int = 1) -> bool:
        """Report to all ranks that this rank ends.

        code: exit code, 1 if this rank failed, 2 if it was refused, 128 + n if signal n stopped it. Return False if
        another rank failed before, because that failure is the likely cause.
        """
        time.sleep(0.2)  # this rank may notice a broken connection slightly before the cause is reported
        what = " ".join(what.split())  # a message is one line
        with self._lock:
            if self.failed is not None:
                return False
            self.failed, self.code = what, code
        what = {1: f"failed: {what}", 2: f"refused: {what}"}.get(code, what)
        if self._connection is not None:
            _send(self._connection, f"failed {code} {what}")
        else:
            self._send_to_all(f"failed {code} {self._label(0)} {what}")
        return True

    def end(self, *, wait: bool = True) -> None:
        """Mark this rank's exit as normal. Rank 0 waits up to LEAVE_S seconds for the other ranks to leave first."""
        if self._ended.is_set():
            return
        if self._connection is not None:
            self._ended.set()
            _send(self._connection, "leave")
            with contextlib.suppress(OSError):
                self._connection.shutdown(socket.SHUT_WR)
            return
        end = time.monotonic() + LEAVE_S
        while wait and self._present and time.monotonic() < end:
            time.sleep(0.02)
        self._ended.set()
        self._send_to_all("leave")

    # ---- rank 0

    def _serve(self) -> None:
        assert self._listener is not None
        buffers: dict[socket.socket, bytes] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(timeout=0.2):
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    if connection is self._listener:
                        with contextlib.suppress(OSError):
                            peer = self._listener.accept()[0]
                            sockets.keep_alive(peer)
                            buffers[peer] = b""
                            selector.register(peer, selectors.EVENT_READ)
                        continue
                    content = _receive(connection)
                    *lines, buffers[connection] = (buffers[connection] + content).split(b"\n")
                    for line in lines:
                        self._handle(connection, line.decode(errors="replace"))
                    if not content:
                        selector.unregister(connection)
                        del buffers[connection]
                        self._handle(connection, f"failed 1 {GONE}")

    def _handle(self, peer: socket.socket, line: str) -> None:
        if peer not in self._peers:  # any program may connect, so a peer must send its rank first
            if line.isdecimal():
                self._peers[peer] = int(line)
        elif line == "leave":
            self._present.discard(self._peers.pop(peer))
        elif line.startswith("failed "):
            rank = self._peers.pop(peer)
            self._present.discard(rank)
            code, _, what = line.removeprefix("failed ").partition(" ")
            sentence = f"{self._label(rank)} {what}"
            if not self._ended.is_set():
                self._send_to_all(f"failed {code} {sentence}")
                self._record(int(code), sentence)

    def _send_to_all(self, line: str) -> None:
        for peer in list(self._peers):
            _send(peer, line)

    # ---- the others

    def _listen_to_rank_0(self) -> None:
        assert self._connection is not None
        buffer = b""
        while True:
            content = _receive(self._connection)
            if self._ended.is_set():
                return
            *lines, buffer = (buffer + content).split(b"\n")
            if not content:
                lines = [f"failed 1 {self._label(0)} {GONE}".encode()]
            for line in lines:
                if line.startswith(b"failed "):
                    code, _, sentence = line[7:].decode(errors="replace").partition(" ")
                    self._record(int(code), sentence)
                return

    def _record(self, code: int, sentence: str) -> None:
        with self._lock:
            is_first = self.failed is None
            if is_first:
                self.failed, self.code = sentence, code
        if is_first and not self._ended.is_set():
            threading.Thread(target=self._on_failure, args=(code, sentence), name="failure", daemon=True).start()


def _send(connection: socket.socket, line: str) -> None:
    with contextlib.suppress(OSError):  # the peer has gone
        connection.sendall(f"{line}\n".encode())


def _receive(connection: socket.socket) -> bytes:
    """Return the received bytes; b"" at the end of the connection."""
    try:
        return connection.recv(4096)
    except OSError:
        return b""


def end_process(rank: str) -> Callable[[int, str], None]:
    """Return a function for on_failure that ends a worker process.

    The function first waits for a grace period, in which the rank may raise its own error.
    """

    def end(code: int, sentence: str) -> None:
        time.sleep(STOP_GRACE_S if code > 128 else GRACE_S)
        console.print_message(f"{rank} ends because {sentence}")
        exit_at_once(code)

    return end
