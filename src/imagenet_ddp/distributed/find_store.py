"""Serve the store of a run if this command is node 0 or rank 0; otherwise find it at a port or in a file."""

import contextlib
import secrets
import sys
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from torch.distributed import TCPStore

from imagenet_ddp.distributed import address_file, store
from imagenet_ddp.distributed.address_file import StoreAddress
from imagenet_ddp.distributed.launchers.world_info import LaunchInfo
from imagenet_ddp.distributed.network import interfaces
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.bounded_wait import Deadline

BUSY_S = 15.0  # longest wait for the store of a node on the same machine, which may be overloaded
INCOMPLETE_S = 5.0  # for this time, a file that cannot be read may be one that its owner is still writing


@dataclass(frozen=True)
class FoundStore:
    store: TCPStore
    host: str
    port: int
    is_server: bool = False  # whether this process serves the store


def find(launch_info: LaunchInfo, timeout_s: float, who: str) -> FoundStore:
    """Serve the store, or wait up to timeout_s seconds for it. who: name of this process, for messages. Raises
    ConfigError if the store cannot be served or reached."""
    address, number, world_info = launch_info.address, launch_info.number, launch_info.world_info
    assert address is not None
    if address.file is not None:
        return _find_by_file(address.file, launch_info, timeout_s, who)
    assert address.host
    host, port = address.host, address.port
    if world_info is not None and world_info.store_is_served:
        return FoundStore(store.client(host, port, timeout_s, who, ours=False), host, port)
    if number == 0 or (number is None and interfaces.is_local(store.resolve(host))):
        try:
            return FoundStore(store.serve(host, port), host, port, is_server=True)
        except store.PortInUseError:
            if number == 0:
                raise
            # with two nodes on one machine, the other node was first; or another program uses the port
            with contextlib.suppress(ConfigError):
                return FoundStore(store.client(host, port, BUSY_S, who), host, port)
            raise
    return FoundStore(store.client(host, port, timeout_s, who), host, port)


def _find_by_file(path: str, launch_info: LaunchInfo, timeout_s: float, who: str) -> FoundStore:
    """Create the file and serve the store, or connect to the store whose address is in the file."""
    if mistakes := address_file.validate(path):
        raise ConfigError(mistakes)
    may_own, must_own = launch_info.number in (0, None), launch_info.number == 0
    deadline, incomplete = Deadline(timeout_s), Deadline(INCOMPLETE_S)
    stale_token, reason = None, f"create {path}"
    while True:
        content = address_file.read(path)
        if content is not None or not Path(path).exists():
            incomplete = Deadline(INCOMPLETE_S)
        elif may_own and incomplete.is_over:
            raise ConfigError(
                f"cluster.address=file://{path} must be a new file, but the existing file has other content. "
                "Hint: set another path. The existing file is left unchanged."
            )
        if content is None and not Path(path).exists() and may_own:
            if served := _serve_by_file(path, launch_info.job_id):
                return served
            continue
        if content is not None and content.token != stale_token:
            found, unreachable = _connect_to_owner(content, who)
            if found is not None:
                _check_owner(path, content, launch_info.job_id, must_own)
                found.store.set_timeout(timedelta(seconds=max(timeout_s, store.ANSWER_S)))
                return found
            reason = f"answer at {unreachable}" if unreachable else f"create {path} again"
            if must_own or not unreachable:
                stale_token = content.token
                action = "The file is replaced" if may_own else "Waiting for a new file"
                message = f"{path} is stale: its owner, {content.owner}, no longer answers. {action}."
                print(message, file=sys.stderr, flush=True)
        if content is not None and content.token == stale_token and may_own:
            address_file.remove_stale(path, content.token)
        waiting = f"Waiting for rank 0 to {reason}"
        if not deadline.pause(lambda seconds, waiting=waiting: f"{waiting}, {seconds:.0f} s.", store.POLL_S):
            raise ConfigError(
                f"timed out after waiting {deadline.elapsed_s:.0f} s for rank 0 to {reason}. Missing: rank 0 (node 0). "
                f"Hint: start the command of rank 0, and make sure that {Path(path).parent} is the same disk on every "
                "node and that the nodes reach each other on all TCP ports. If the job of rank 0 was killed, remove "
                "the file."
            )


def _serve_by_file(path: str, job_id: str | None) -> FoundStore | None:
    """Serve a store and create the file. Return None if another process has created the file first."""
    served = store.serve("127.0.0.1", 0)
    token = served.get(store.OWNER_KEY).decode() or secrets.token_hex(6)
    served.set(store.OWNER_KEY, token)
    addresses = [*interfaces.reachable_addresses(), "127.0.0.1"]
    if not address_file.create(path, token, job_id, addresses, served.port):
        return None
    return FoundStore(served, addresses[0], served.port, is_server=True)


def _connect_to_owner(content: StoreAddress, who: str) -> tuple[FoundStore | None, str]:
    """Return (the owner's store, ""), or (None, the addresses that do not answer, although the owner may be alive)."""
    unreachable = []
    for host in content.reachable_addresses():
        try:
            if found := store.try_client(host, content.port, who, owner=content.token):
                return FoundStore(found, host, content.port), ""
        except ConnectionRefusedError:
            continue
        except OSError as error:
            unreachable.append(f"{host}:{content.port} ({error.strerror or error})")
    return None, ", ".join(unreachable)


def _check_owner(path: str, content: StoreAddress, job_id: str | None, must_own: bool) -> None:
    if content.job_id != job_id:
        raise ConfigError(
            f"{path} belongs to another job, which is running on {content.host} (process {content.pid}, cluster.job_id="
            f"{content.job_id}), but this job has cluster.job_id={job_id}. Hint: use a separate file for each job."
        )
    if must_own:
        raise ConfigError(
            f"this is rank 0 and must own {path}, but {content.owner} owns the file and is running. "
            "Hint: use a separate file for each job, and start rank 0 only once."
        )
