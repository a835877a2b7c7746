"""Serve and find the key-value store of a rendezvous, with an error message for each kind of failure."""

import contextlib
import errno
import functools
import os
import socket
import sys
import threading
from collections.abc import Sequence
from datetime import timedelta
from typing import NamedTuple

from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, Store, TCPStore

from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.distributed.rendezvous.bounded_wait import Deadline, run_bounded
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.text import first_line

OWNER_KEY = "imagenet_ddp/owner"  # set by the serving process, to distinguish its store from other programs
COMMANDS = "commands"
POLL_S = 0.2
ANSWER_S = 5.0  # longest wait for one attempt to connect, and for the answer of a store that accepted a connection
NAME_LOOKUP_S = 30.0  # torch looks up a name for each address, which takes this long if three name servers are silent
SERVER_TIMEOUT = timedelta(seconds=30)
NO_ROUTE = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL)


class PortInUseError(ConfigError):
    def __init__(self, port: int):
        super().__init__(
            f"port {port} of this machine is in use by another program, or by another run. Hint: set another port on "
            "every node, with cluster.address=HOST:PORT or MASTER_PORT."
        )


def commands_prefix(attempt: int) -> str:
    """Return the prefix of the keys that commands use. connect() uses another prefix for all other keys."""
    return f"imagenet_ddp/{attempt}/{COMMANDS}"


def connect(world_info: WorldInfo, timeout_s: float) -> Store:
    """Open a new connection that sees only the keys of this attempt, because a launcher may restart failed workers.

    A client that waits blocks all of its users, so each user needs its own connection.
    """
    assert world_info.address and world_info.port
    who = f"rank {world_info.rank} of {world_info.world_size}"
    store = client(world_info.address, world_info.port, timeout_s, who, ours=not world_info.store_is_served)
    return PrefixStore(f"imagenet_ddp/{world_info.attempt}", store)


@functools.cache
def serve(host: str, port: int) -> TCPStore:
    """Serve a store until this process ends.

    port: 0 means any free port. Raises ConfigError if the store cannot be served, and PortInUseError for a port in use.
    """
    number = resolve(host)
    if not interfaces.is_local(number):
        ours = ", ".join(f"{each.name} {' '.join(each.addresses)}" for each in interfaces.interfaces() if each.is_up)
        raise ConfigError(
            f"{host} must be an address of this machine, because node 0 and rank 0 run here, but this machine has: "
            f"{ours}. Hint: set the private address of node 0 on every node, or start the command of node 0 on {host}."
        )
    try:
        store = TCPStore(host, port, None, is_master=True, wait_for_workers=False, timeout=SERVER_TIMEOUT)
    except Exception as error:  # DistNetworkError, DistStoreError or plain RuntimeError, depending on the cause
        if _is_listening(number, port):
            raise PortInUseError(port) from error
        raise ConfigError(
            f"this machine cannot serve the rendezvous store at {host}:{port}: {first_line(error)} "
            "Hint: set another port on every node."
        ) from error
    store.set(OWNER_KEY, "")
    return store


def serve_one_of(host: str, ports: Sequence[int], owner: str) -> TCPStore:
    """Serve a store at the first free port, and mark the store with its owner."""
    for port in ports:
        with contextlib.suppress(PortInUseError):
            store = serve(host, port)
            store.set(OWNER_KEY, owner)
            return store
    raise ConfigError(
        f"ports {', '.join(map(str, ports))} of {host} are all in use by other programs. "
        "Hint: export MASTER_PORT=PORT in the batch script, with a free port."
    )


def client(
    host: str,
    port: int,
    timeout_s: float,
    who: str,
    *,
    ours: bool = True,
    more_ports: Sequence[int] = (),
    owner: str | None = None,
) -> TCPStore:
    """Connect to the store, and wait up to timeout_s seconds for its server to start.

    who: name of this process, for messages. ours: whether `serve` serves the store instead of a launcher. more_ports:
    further ports at which the store may be. owner: the mark of the store's owner; stores of other owners are skipped.
    Raises ConfigError for an unknown host name, if there is no route or no answer, or if another program answers.
    """
    deadline, ports = Deadline(timeout_s), (port, *more_ports)
    num_timeouts, reason = 0, ""
    while True:
        for port in ports:
            try:
                if store := try_client(host, port, who, ours=ours, owner=owner):
                    store.set_timeout(timedelta(seconds=max(timeout_s, ANSWER_S)))
                    return store
                reason = "only other jobs answer there"
            except ConnectionRefusedError:
                reason = "nothing listens there yet"
            except TimeoutError as error:
                num_timeouts, reason = num_timeouts + 1, "no answer"
                if num_timeouts == 2:
                    raise ConfigError(
                        f"{who} cannot reach {host}:{port}: no answer within {2 * ANSWER_S:.0f} s, not even a refusal. "
                        "Hint: check that the address is correct and that the machine is running, and open the port to "
                        "this machine in the firewall and in the cloud's security group."
                    ) from error
            except OSError as error:
                reason = str(error.strerror or error)
                if error.errno in NO_ROUTE:
                    raise ConfigError(
                        f"{who} cannot reach {host}:{port}: {reason}. "
                        "Hint: check that the address is correct, and that this machine is in the same network."
                    ) from error
        where = f"{host}:{', '.join(map(str, ports))}"
        line = f"{who}: waiting for rank 0 at {where}: {reason}"
        if not deadline.pause(lambda seconds, line=line: f"{line}, {seconds:.0f} s.", POLL_S):
            raise ConfigError(
                f"{who} waited {deadline.elapsed_s:.0f} s for rank 0 at {where}, but {reason}. "
                "Missing: rank 0 (node 0). Hint: start the command on the machine that has that address, or read its "
                "own message. To wait longer, set cluster.timeout_s."
            )


def try_client(host: str, port: int, who: str, *, ours: bool = True, owner: str | None = None) -> TCPStore | None:
    """Connect without waiting for the server to start. Return None if the store belongs to another owner.

    Raises OSError if nothing answers or the store is too busy to answer, and ConfigError if another program answers and
    no owner is given.
    """
    number = resolve(host)
    with socket.create_connection((number, port), timeout=ANSWER_S):
        pass
    # tried twice, because a silent name server delays torch's first connection beyond its time limit, but no later one
    result: _OpenStore | Exception | None = None
    for _ in range(2):
        result = _bounded_client(number, port, ours)
        if isinstance(result, _OpenStore):
            return result.store if owner is None or result.owner == owner else None
        if not isinstance(result, DistNetworkError) or "timed out" not in str(result):
            break
    if isinstance(result, OSError):
        raise result
    if owner is not None:
        return None
    raise ConfigError(
        f"{who} needs the rendezvous store at {host}:{port}, but another program answers there"
        f"{_describe_failure(result)}. Hint: set another port on every node."
    )


def _describe_failure(error: Exception | None) -> str:
    """Return torch's error in brackets, without the numbers of torch's protocol."""
    if error is None:
        return " (it accepts connections, but sends nothing)"
    line = first_line(error)
    return " (its answer is not that of a store)" if line.startswith("Ping failed") else f" ({line.rstrip('.')})"


class _OpenStore(NamedTuple):
    store: TCPStore
    owner: str | None  # None if a launcher serves the store


def _bounded_client(number: str, port: int, ours: bool) -> _OpenStore | Exception | None:
    """Return the store with its owner, or the error, or None after NAME_LOOKUP_S seconds.

    The error is an OSError if the store has an owner but does not answer within ANSWER_S seconds, as on an overloaded
    machine. Without the limit NAME_LOOKUP_S, torch would wait forever for a program that accepts connections but sends
    nothing.
    """

    def connect() -> _OpenStore | Exception:
        try:
            short = timedelta(seconds=ANSWER_S)
            store = TCPStore(number, port, None, is_master=False, wait_for_workers=False, timeout=short)
        except Exception as error:
            return error
        if not ours:
            return _OpenStore(store, None)
        try:
            return _OpenStore(store, store.get(OWNER_KEY).decode())
        except Exception as error:
            if _has_owner(store):
                return OSError(errno.ETIME, f"its store does not answer within {ANSWER_S:.0f} s")
            return DistStoreError(str(error))

    with _without_stderr:  # torch prints a C++ stack if the program is not a store, and the caller raises the error
        return run_bounded(connect, NAME_LOOKUP_S)


def _has_owner(store: TCPStore) -> bool:
    """Return whether this is a store of this project that answers slowly, and not the port of another program.

    check() does not wait for a missing key.
    """
    try:
        return store.check([OWNER_KEY])
    except Exception:
        return False


class _WithoutStderr:
    """Discard everything that the process writes to stderr, even by C++ code that bypasses sys.stderr.

    Several threads may enter this context at once.
    """

    def __init__(self) -> None:
        self._lock, self._num_users, self._saved = threading.Lock(), 0, -1

    def __enter__(self) -> None:
        with self._lock:
            self._num_users += 1
            if self._num_users == 1:
                sys.stderr.flush()
                with contextlib.suppress(OSError):  # the program that started this process may have closed stderr
                    self._saved = os.dup(2)
                    devnull = os.open(os.devnull, os.O_WRONLY)
                    os.dup2(devnull, 2)
                    os.close(devnull)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._num_users -= 1
            if not self._num_users and self._saved >= 0:
                sys.stderr.flush()
                os.dup2(self._saved, 2)
                os.close(self._saved)
                self._saved = -1


_without_stderr = _WithoutStderr()


def resolve(host: str) -> str:
    """Return one numeric address of a host name or address. Raises ConfigError if the name cannot be resolved."""
    try:
        return interfaces.resolve(host)
    except OSError as error:
        raise ConfigError(
            f"the name {host} cannot be resolved on this machine: {error.strerror}. "
            "Hint: set the numeric address of node 0, or add the name to /etc/hosts."
        ) from error


def _is_listening(number: str, port: int) -> bool:
    with socket.socket(socket.AF_INET6 if ":" in number else socket.AF_INET) as probe:
        probe.settimeout(2.0)
        return probe.connect_ex((number, port)) == 0
