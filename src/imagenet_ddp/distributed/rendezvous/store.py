"""The key-value store all meet at: served by one process, found by the others, with a sentence for each way to fail."""

import contextlib
import errno
import functools
import os
import socket
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, Store, TCPStore

from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.rendezvous.timeout import Deadline
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line

HELLO = "imagenet_ddp/hello"  # set by who serves: tells our store from another program's port
COMMANDS = "commands"
LOOK_S = 0.2
ANSWER_S = 5.0  # of one attempt to connect, and of a store that has accepted a connection
NAMES_S = 30.0  # torch asks for the name behind each address: as long as three name servers may stay silent, by default


def commands_prefix(attempt: int) -> str:
    """Of the keys by which commands meet; all others begin as those of connect()."""
    return f"imagenet_ddp/{attempt}/{COMMANDS}"


def connect(world_info: WorldInfo, timeout_s: float) -> Store:
    """Keys are this attempt's own, where a launcher starts the workers anew after a failure. A connection of its own
    at each call: a client that waits blocks every other user of it."""
    assert world_info.address and world_info.port
    who = f"rank {world_info.rank} of {world_info.world_size}"
    store = client(world_info.address, world_info.port, timeout_s, who, ours=not world_info.store_is_served)
    return PrefixStore(f"imagenet_ddp/{world_info.attempt}", store)


def serve_one_of(host: str, ports: Sequence[int], job_id: str | None) -> TCPStore:
    """At the first port that is free; the store says job_id there."""
    for port in ports:
        with contextlib.suppress(PortInUseError):
            store = serve(host, port)
            store.set(HELLO, job_id or "")
            return store
    raise ConfigError(
        f"ports {', '.join(map(str, ports))} of {host} are all in use by other programs. "
        "Hint: export MASTER_PORT=PORT in the batch script, one that is free."
    )


@functools.cache
def serve(host: str, port: int) -> TCPStore:
    """Kept for as long as the process lives. port 0: any free one."""
    try:
        number = interfaces.resolve(host)
    except OSError as error:
        raise ConfigError(unknown_name(host, error)) from error
    if not interfaces.is_local(number):
        ours = ", ".join(f"{each.name} {' '.join(each.addresses)}" for each in interfaces.interfaces() if each.is_up)
        raise ConfigError(
            f"{host} must be an address of this machine, where node 0 and rank 0 are, but its interfaces "
            f"have: {ours}. Hint: give the private address of node 0 on every node, or start node 0's command there."
        )
    try:
        store = TCPStore(host, port, None, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30))
    except Exception as error:  # DistNetworkError, DistStoreError or plain RuntimeError, by the cause
        if _listens(number, port):
            raise PortInUseError(port) from error
        raise ConfigError(
            f"this machine cannot serve the rendezvous store at {host}:{port}: {first_line(error)} "
            "Hint: another port, the same on every node."
        ) from error
    store.set(HELLO, "")
    return store


def serve_listener(listener: socket.socket) -> TCPStore:
    """At a socket that listens already, and is the store's from now on."""
    port = listener.getsockname()[1]
    store = TCPStore(
        "127.0.0.1", port, None, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=30),
        master_listen_fd=listener.detach(),
    )  # fmt: skip
    store.set(HELLO, "")
    return store


class PortInUseError(ConfigError):
    def __init__(self, port: int):
        super().__init__(
            f"port {port} of this machine is in use by another program, or by another run. Hint: another port, the "
            "same on every node: in cluster.address=HOST:PORT, or by MASTER_PORT."
        )


def client(
    host: str,
    port: int,
    timeout_s: float,
    who: str,
    *,
    ours: bool = True,
    more_ports: Sequence[int] = (),
    job_id: str | None = None,
) -> TCPStore:
    """Waits for the server to come, at most timeout_s, and says so every 10 s. ours: served by `serve`, not by a
    launcher. more_ports: the store may be at one of these too, and says job_id there. ConfigError: a name that does not
    resolve, no route, no answer, another program."""
    patience, ports = Deadline(timeout_s), (port, *more_ports)
    silent = 0
    while True:
        why = ""
        for port in ports:
            try:
                number = interfaces.resolve(host)
                with socket.create_connection((number, port), timeout=ANSWER_S):
                    pass
            except socket.gaierror as error:
                raise ConfigError(unknown_name(host, error)) from error
            except TimeoutError as error:
                silent += 1
                if silent == 2:
                    raise ConfigError(
                        f"{who} cannot reach {host}:{port}: no answer within {2 * ANSWER_S:.0f} s, not even a refusal. "
                        "Hint: a firewall, or the cloud's security group, must let this machine through to that port; "
                        "is the address right, and the machine up?"
                    ) from error
                why = "no answer"
            except OSError as error:
                if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL):
                    raise ConfigError(
                        f"{who} cannot reach {host}:{port}: {error.strerror}. "
                        "Hint: is the address right, and in a network this machine is in?"
                    ) from error
                refused = error.errno == errno.ECONNREFUSED
                why = "nothing listens there yet" if refused else str(error.strerror or error)
            else:
                if store := _store_at(host, number, port, who, ours, job_id if more_ports else None):
                    store.set_timeout(timedelta(seconds=max(timeout_s, ANSWER_S)))
                    return store
                why = "only other jobs answer there"
        where = f"{host}:{', '.join(map(str, ports))}"
        line = f"{who}: waiting for rank 0 at {where}: {why}"
        if not patience.lasts(lambda seconds, line=line: f"{line}, {seconds:.0f} s.", LOOK_S):
            raise ConfigError(
                f"{who} waited {patience.seconds:.0f} s for rank 0 at {where}, but {why}. "
                "Missing: rank 0 (node 0). Hint: start the command on the machine that has that address; look at its "
                "own message; cluster.timeout_s sets how long is waited."
            )


def _store_at(host: str, number: str, port: int, who: str, ours: bool, job_id: str | None) -> TCPStore | None:
    """None: there is another program, or another job, and the next port may be ours."""
    # twice: a name server that does not answer holds up torch's first connection beyond its time, and no later one
    made: TCPStore | Exception | None = None
    for _ in range(2):
        made = _connected(number, port, ours)
        if isinstance(made, TCPStore):
            return made if job_id is None or made.get(HELLO).decode() == job_id else None
        if not isinstance(made, DistNetworkError) or "timed out" not in str(made):
            break
    if job_id is not None:
        return None
    raise ConfigError(
        f"{who} expects the rendezvous store at {host}:{port}, but another program answers there"
        f"{_what_came(made)}. Hint: another port, the same on every node."
    )


def _what_came(made: Exception | None) -> str:
    """Of another program, in brackets: torch's own words but for the numbers of its protocol."""
    if made is None:
        return " (it accepts connections and stays silent)"
    first = first_line(made)
    return " (what it sends is not a store's)" if first.startswith("Ping failed") else f" ({first.rstrip('.')})"


def _connected(number: str, port: int, ours: bool) -> TCPStore | Exception | None:
    """None: neither store nor error within NAMES_S, because torch waits without a bound for a port that accepts and
    stays silent."""
    made: list[TCPStore | Exception] = []

    def make() -> None:
        try:
            short = timedelta(seconds=ANSWER_S)
            store = TCPStore(number, port, None, is_master=False, wait_for_workers=False, timeout=short)
        except Exception as error:
            made.append(error)
            return
        try:
            if ours:
                store.get(HELLO)
        except Exception as error:
            made.append(DistStoreError(str(error)))
        else:
            made.append(store)

    thread = threading.Thread(target=make, name="store", daemon=True)
    with _without_stderr:  # torch prints a C++ stack if the program is no store; the error is raised here
        thread.start()
        thread.join(NAMES_S)
    return made[0] if made else None


class _WithoutStderr:
    """Drops what the whole process writes there, because C++ writes past sys.stderr; by several threads at once."""

    def __init__(self) -> None:
        self._lock, self._users, self._kept = threading.Lock(), 0, -1

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                sys.stderr.flush()
                with contextlib.suppress(OSError):  # closed, by whoever started this
                    self._kept = os.dup(2)
                    nowhere = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(nowhere, 2)
                    os.close(nowhere)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._kept >= 0:
                sys.stderr.flush()
                os.dup2(self._kept, 2)
                os.close(self._kept)
                self._kept = -1


_without_stderr = _WithoutStderr()


def unknown_name(host: str, error: OSError) -> str:
    return (
        f"the name {host} cannot be resolved on this machine: {error.strerror}. "
        "Hint: give the numeric address of node 0, or add the name to /etc/hosts."
    )


def _listens(number: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in number else socket.AF_INET) as probe:
        probe.settimeout(2.0)
        return probe.connect_ex((number, port)) == 0
