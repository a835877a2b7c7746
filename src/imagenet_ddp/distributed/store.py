"""Serve the key-value store of a run, or connect to it, with a message for each kind of failure."""

import contextlib
import errno
import functools
import socket
from dataclasses import dataclass
from datetime import timedelta

from torch.distributed import Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

from imagenet_ddp.distributed.messages import Messages
from imagenet_ddp.distributed.place import Place
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import interfaces
from imagenet_ddp.system.bounded_wait import Deadline, run_bounded
from imagenet_ddp.system.say_once import say_once
from imagenet_ddp.system.text import first_line

OWNER_KEY = "imagenet_ddp/owner"  # set by the serving process, to distinguish its store from other programs
POLL_S = 0.2
NAME_POLL_S = 1.0  # each time, the name server is asked
ANSWER_S = 5.0  # longest wait for one attempt to connect, and for the answer of a store that accepted a connection
NAME_LOOKUP_S = 30.0  # longest wait for the name of an address, of which three silent name servers take this long
BUSY_S = 15.0  # longest wait for the store of a node on the same machine, which may be overloaded
SERVER_TIMEOUT = timedelta(seconds=30)
NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL)


class PortInUseError(ConfigError):
    def __init__(self, port: int):
        super().__init__(
            f"port {port} of this machine is in use by another program, or by another run. Hint: set another port on "
            "every node, with cluster.address=HOST:PORT or MASTER_PORT."
        )


class UnknownHostError(ConfigError):
    def __init__(self, host: str, error: OSError):
        super().__init__(
            f"the name {host} cannot be resolved on this machine: {error.strerror}. "
            "Hint: set the numeric address of node 0, or add the name to /etc/hosts."
        )


@dataclass(frozen=True)
class FoundStore:
    store: TCPStore
    host: str
    port: int
    is_server: bool = False  # whether this process serves the store


def of_attempt(store: Store, place: Place) -> Messages:
    """Return the part of the store that belongs to this attempt, because a launcher may restart failed workers."""
    return Messages(store, place.secret).under(f"imagenet_ddp/{place.attempt}")


def connect(place: Place, timeout_s: float) -> Messages:
    """Open a new connection to the store of this attempt. A client that waits blocks all of its users, so each user
    needs its own connection."""
    assert place.address and place.address.host
    who = f"rank {place.rank} of {place.world_size}"
    found = client(place.address.host, place.address.port, timeout_s, who, ours=not place.store_is_served)
    return of_attempt(found, place)


@functools.cache
def serve(host: str, port: int, *, everywhere: bool = False) -> TCPStore:
    """Serve a store until this process ends: at a loopback address only if host is one, else, or with everywhere=True,
    at all addresses of this machine. port: 0 means any free port. Raises ConfigError if the store cannot be served, and
    PortInUseError for a port in use."""
    number = resolve(host)
    if not interfaces.is_local(number):
        ours = ", ".join(f"{each.name} {' '.join(each.addresses)}" for each in interfaces.interfaces() if each.is_up)
        raise ConfigError(
            f"{host} must be an address of this machine, because node 0 and rank 0 run here, but this machine has: "
            f"{ours}. Hint: if {host} is another machine, number this one from 1 (cluster.rank, cluster.node_rank or "
            "RANK); else set the private address of this machine on every node."
        )
    try:
        if interfaces.names_loopback(host) and not everywhere:
            store = _serve_on_loopback(number, port)
        else:
            store = TCPStore(host, port, None, is_master=True, wait_for_workers=False, timeout=SERVER_TIMEOUT)
    except Exception as error:  # DistNetworkError, DistStoreError or plain RuntimeError, depending on the cause
        if "EADDRINUSE" in str(error) or (isinstance(error, OSError) and error.errno == errno.EADDRINUSE):
            raise PortInUseError(port) from error
        raise ConfigError(
            f"this machine cannot serve the rendezvous store at {host}:{port}: {first_line(error)} "
            "Hint: set another port on every node."
        ) from error
    store.set(OWNER_KEY, "")
    return store


def serve_here() -> TCPStore:
    """Serve a store for processes of this machine, at a free port of 127.0.0.1, until it is deleted."""
    store = _serve_on_loopback("127.0.0.1", 0)
    store.set(OWNER_KEY, "")
    return store


def _serve_on_loopback(address: str, port: int) -> TCPStore:
    """Serve a store at one loopback address. Left alone, torch's store listens at all addresses of the machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, port), family=family, backlog=1024) as listener:
        port, descriptor = listener.getsockname()[1], listener.detach()
    return TCPStore(
        address, port, None, is_master=True, wait_for_workers=False, timeout=SERVER_TIMEOUT, master_listen_fd=descriptor
    )


def wait_for_name(host: str, timeout_s: float, *, is_own: bool) -> None:
    """Wait up to timeout_s seconds until the name of a host resolves: on the host itself (is_own) to its own address,
    and not to that of the host that had the name before. After that, whoever needs the address reports what is wrong.
    """
    deadline = Deadline(timeout_s, say_once)
    while True:
        try:
            number = interfaces.resolve(host)
            if not is_own or number == host or interfaces.is_local(number):
                return
            reason = f"still resolves to {number}, which is not this machine"
        except OSError as error:
            reason = f"cannot be resolved yet: {error.strerror}"
        line = f"Waiting for the name {host}, which {reason}"
        if not deadline.pause(lambda seconds, line=line: f"{line}, {seconds:.0f} s.", NAME_POLL_S):
            return


def client(
    host: str, port: int, timeout_s: float, who: str, *, ours: bool = True, hosts_move: bool = False
) -> TCPStore:
    """Connect to the store, and wait up to timeout_s seconds for its server to start.

    who: name of this process, for messages. ours: whether `serve` serves the store instead of a launcher. hosts_move:
    as in Place; if so, a name without an address, and an address without an answer, are waited for. Raises ConfigError
    for an unknown host name, if there is no route or no answer, or if another program answers.
    """
    deadline, num_unreachable = Deadline(timeout_s, say_once), 0
    while True:
        try:
            store = try_client(host, port, who, ours=ours)
            assert store is not None  # every owner is accepted
            store.set_timeout(timedelta(seconds=max(timeout_s, ANSWER_S)))
            return store
        except ConnectionRefusedError:
            reason = "nothing listens there yet"
        except UnknownHostError:
            if not hosts_move:
                raise
            reason = "the name cannot be resolved yet"
        except OSError as error:
            reason = error.strerror or f"no answer within {ANSWER_S:.0f} s, not even a refusal"
            num_unreachable += isinstance(error, TimeoutError) or error.errno in NO_ROUTE
            if num_unreachable == 2 and not hosts_move:
                raise ConfigError(
                    f"{who} cannot reach {host}:{port}: {reason}. Hint: check that the address is correct, and that "
                    "the machine is running and in the same network, and open the port to this machine in the firewall "
                    "and in the cloud's security group."
                ) from error
        line = f"Waiting for rank 0 at {host}:{port}: {reason}"
        if not deadline.pause(lambda seconds, line=line: f"{line}, {seconds:.0f} s.", POLL_S):
            raise ConfigError(
                f"{who} waited {deadline.elapsed_s:.0f} s for rank 0 at {host}:{port}, but {reason}. "
                "Missing: rank 0 (node 0). Hint: start the command on the machine that has that address, or read its "
                "own message. To wait longer, set cluster.timeout_s."
            )


def try_client(host: str, port: int, who: str, *, ours: bool = True, owner: str | None = None) -> TCPStore | None:
    """Connect without waiting for the server to start. Return None if the store belongs to another owner. Raises
    OSError if nothing answers or the store is too busy to answer, and ConfigError if another program answers and no
    owner is given."""
    number = resolve(host)
    with socket.create_connection((number, port), timeout=ANSWER_S):
        pass

    # after a shorter time, torch prints a stack trace, and succeeds at the next try
    limit = timedelta(seconds=ANSWER_S + 1.5 * _name_lookup_s(number))

    def connect() -> tuple[TCPStore, str | None] | Exception:
        try:
            store = TCPStore(number, port, None, is_master=False, wait_for_workers=False, timeout=limit)
            store.set_timeout(timedelta(seconds=ANSWER_S))
        except Exception as error:
            return error
        try:
            return store, store.get(OWNER_KEY).decode() if ours else None
        except Exception as error:
            with contextlib.suppress(Exception):
                if store.check([OWNER_KEY]):  # ours, but on an overloaded machine
                    return OSError(errno.ETIME, f"its store does not answer within {ANSWER_S:.0f} s")
            return error

    # without this limit, torch would wait forever for a program that accepts connections but sends nothing
    found = run_bounded(connect, NAME_LOOKUP_S)
    if isinstance(found, tuple):
        return found[0] if owner is None or found[1] == owner else None
    if isinstance(found, OSError):
        raise found
    if owner is not None:
        return None
    why = (
        " (it accepts connections, but sends nothing, as a suspended rank 0 does)"
        if found is None
        else f" ({first_line(found).rstrip('.')})"
    )
    raise ConfigError(
        f"{who} needs the rendezvous store at {host}:{port}, but another program answers there{why}. "
        "Hint: set another port on every node."
    )


@functools.cache
def _name_lookup_s(number: str) -> float:
    """Return how long this machine takes to look up the name of an address, as torch does in its first connection."""
    deadline = Deadline(NAME_LOOKUP_S)
    run_bounded(lambda: socket.getnameinfo((number, 0), 0), NAME_LOOKUP_S)
    return deadline.elapsed_s


def resolve(host: str) -> str:
    """Return one numeric address of a host name or address. Raises UnknownHostError if the name cannot be resolved."""
    try:
        return interfaces.resolve(host)
    except OSError as error:
        raise UnknownHostError(host, error) from error
