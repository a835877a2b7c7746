"""A death is known to all at once: each rank holds a connection to rank 0, which the kernel closes when it dies.

No heartbeats of our own: a process that computes, swaps or is being debugged is silent and not dead. A machine that
vanishes from the network is noticed by the kernel's keep-alive probes.
"""

import contextlib
import json
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable

from imagenet_ddp.distributed.rendezvous import address_file
from imagenet_ddp.distributed.rendezvous.gather_ranks import RankGroup
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import console

GRACE_S = 3.0  # for a rank's own error to come up by itself, before it is ended for another's
STOP_GRACE_S = 1.0  # for a rank to be stopped by the same signal
BYE_S = 10.0  # how long rank 0 waits for the others at the end
CONNECT_S = 10.0
PROBE_S, NUM_PROBES = 2, 3  # of keep-alive


class FailureDetector:
    """label: what a rank is called. on_death is given an exit code and the sentence, once, in a thread of its own."""

    def __init__(
        self,
        rank_group: RankGroup,
        hosts: list[str],
        label: Callable[[int], str],
        on_death: Callable[[int, str], None],
    ):
        """hosts: this machine's addresses, where rank 0 listens."""
        self._rank_group, self._label, self._on_death = rank_group, label, on_death
        self._ended = threading.Event()
        self._lock = threading.Lock()
        self.failed: str | None = None  # the first failure, this rank's own or another's
        self.code = 1  # exit code that goes with it
        self._peers: dict[socket.socket, int] = {}
        self._there = set(range(1, rank_group.size))  # who has neither left nor died: rank 0 waits for them at the end
        self._listener: socket.socket | None = None
        self._connection: socket.socket | None = None
        if rank_group.number == 0:
            self._listener = listen()
            port = self._listener.getsockname()[1]
            rank_group.tell("failure_detector", json.dumps({"hosts": hosts, "port": port}))
            target = self._serve
        else:
            told = json.loads(rank_group.tell("failure_detector", None))
            self._connection = connect(told["hosts"], told["port"], CONNECT_S)
            self._connection.sendall(f"{rank_group.number}\n".encode())
            target = self._listen
        self._thread = threading.Thread(target=target, name="failure_detector", daemon=True)
        self._thread.start()

    def fail(self, what: str, code: int = 1) -> bool:
        """This rank ends with code (1 failed, 2 refused, 128 + n stopped by signal n), and the others are told why.
        False: another failed before, and this is what follows."""
        time.sleep(0.2)  # a connection that broke is noticed here a little before its cause is told
        what = " ".join(what.split())  # one line of the connection
        with self._lock:
            if self.failed is not None:
                return False
            self.failed, self.code = what, code
        what = {1: f"failed: {what}", 2: f"refused: {what}"}.get(code, what)
        if self._connection is not None:
            with contextlib.suppress(OSError):
                self._connection.sendall(f"failed {code} {what}\n".encode())
        else:
            self._tell_all(code, f"{self._label(0)} {what}")
        return True

    def end(self, *, wait: bool = True) -> None:
        """This rank leaves, and that is no death. Rank 0 waits a little for the others to leave first."""
        if self._ended.is_set():
            return
        if self._connection is not None:
            self._ended.set()
            with contextlib.suppress(OSError):
                self._connection.sendall(b"bye\n")
                self._connection.shutdown(socket.SHUT_WR)
            return
        end = time.monotonic() + BYE_S
        while wait and self._there and time.monotonic() < end:
            time.sleep(0.02)
        self._ended.set()
        for peer in list(self._peers):
            with contextlib.suppress(OSError):
                peer.sendall(b"bye\n")

    # -- rank 0

    def _serve(self) -> None:
        assert self._listener is not None
        buffers: dict[socket.socket, bytes] = {}
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while not self._ended.is_set():
                for key, _ in selector.select(timeout=0.2):
                    each = key.fileobj
                    assert isinstance(each, socket.socket)
                    if each is self._listener:
                        with contextlib.suppress(OSError):
                            peer = self._listener.accept()[0]
                            keep_alive(peer)
                            buffers[peer] = b""
                            selector.register(peer, selectors.EVENT_READ)
                        continue
                    try:
                        content = each.recv(4096)
                    except OSError:
                        content = b""
                    *lines, buffers[each] = (buffers[each] + content).split(b"\n")
                    for line in lines:
                        self._heard(each, line.decode(errors="replace"))
                    if not content:
                        selector.unregister(each)
                        del buffers[each]
                        self._gone(each)

    def _heard(self, peer: socket.socket, line: str) -> None:
        if peer not in self._peers and line.isdecimal():
            self._peers[peer] = int(line)
        elif line == "bye" and peer in self._peers:
            self._there.discard(self._peers.pop(peer))
        elif line.startswith("failed ") and peer in self._peers:
            number = self._peers.pop(peer)
            self._there.discard(number)
            code, _, what = line.removeprefix("failed ").partition(" ")
            self._died(int(code), f"{self._label(number)} {what}")

    def _gone(self, peer: socket.socket) -> None:
        number = self._peers.pop(peer, None)
        self._there.discard(number or 0)
        if number is not None and not self._ended.is_set():
            self._died(1, f"{self._label(number)} is gone: its process, or its machine, no longer answers")

    def _died(self, code: int, sentence: str) -> None:
        self._tell_all(code, sentence)
        self._take(code, sentence)

    def _tell_all(self, code: int, sentence: str) -> None:
        for peer in list(self._peers):
            with contextlib.suppress(OSError):
                peer.sendall(f"died {code} {sentence}\n".encode())

    # -- the others

    def _listen(self) -> None:
        assert self._connection is not None
        buffer = b""
        while True:
            try:
                content = self._connection.recv(4096)
            except OSError:
                content = b""
            if self._ended.is_set():
                return
            buffer += content
            *lines, buffer = buffer.split(b"\n")
            for line in lines:
                if line == b"bye":
                    return
                if line.startswith(b"died "):
                    code, _, sentence = line[5:].decode(errors="replace").partition(" ")
                    self._take(int(code), sentence)
                    return
            if not content:
                self._take(1, f"{self._label(0)} is gone: its process, or its machine, no longer answers")
                return

    def _take(self, code: int, sentence: str) -> None:
        with self._lock:
            first = self.failed is None
            if first:
                self.failed, self.code = sentence, code
        if first and not self._ended.is_set():
            threading.Thread(target=self._on_death, args=(code, sentence), name="death", daemon=True).start()


def end_process(rank: str) -> Callable[[int, str], None]:
    """on_death for a worker: its own error may come up within the grace, else it ends here."""

    def end(code: int, sentence: str) -> None:
        time.sleep(STOP_GRACE_S if code > 128 else GRACE_S)
        console.print_message(f"{rank} ends because {sentence}")
        address_file.remove_own_files()
        os._exit(code)

    return end


def listen() -> socket.socket:
    """At a free port of all of this machine's addresses."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):
            return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1024)
    return socket.create_server(("", 0), backlog=1024)


def connect(hosts: list[str], port: int, timeout_s: float) -> socket.socket:
    """The first of the hosts that answers. Raises ConfigError where none does."""
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
        f"rank 0's machine is reached at the rendezvous port, but not at another one ({'; '.join(reasons)}). "
        "Hint: the cloud's security group, and each machine's firewall, must let the nodes talk to each other at all "
        "TCP ports: training uses ones that the system chooses."
    )


def keep_alive(connection: socket.socket) -> None:
    """A peer whose machine is gone is noticed after about 8 s."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    options = {"TCP_KEEPIDLE": PROBE_S, "TCP_KEEPINTVL": PROBE_S, "TCP_KEEPCNT": NUM_PROBES}
    for name, value in options.items():
        if hasattr(socket, name):
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = 1000 * PROBE_S * (NUM_PROBES + 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
