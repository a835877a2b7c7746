"""Find the store of a run through a file on a shared disk: cluster.address=file:///PATH.

The file contains only the address of a TCP store at a free port. Such a store answers faster than a file on a network
disk, needs no locks on that disk, and shows at once whether the machines reach each other. Rank 0, or the first node,
creates the file and removes it at the end. A file whose store no longer answers is stale. The file is reopened for each
check, because a network disk asks its server only when a file is opened.
"""

import contextlib
import json
import secrets
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path

from imagenet_ddp.distributed import store
from imagenet_ddp.distributed.compare_members import Process, this_process
from imagenet_ddp.distributed.store import FoundStore
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system import interfaces
from imagenet_ddp.system.bounded_wait import Deadline
from imagenet_ddp.system.process import clean_up_at_exit
from imagenet_ddp.system.say_once import say_once

INCOMPLETE_S = 5.0  # for this time, a file that cannot be read may be one that its owner is still writing


@dataclass(frozen=True)
class StoreAddress(Process):
    """Content of the file, written by the process that owns the store. token: value that identifies this owner."""

    token: str
    job_id: str | None
    addresses: list[str]
    port: int

    @property
    def owner(self) -> str:
        return f"{self.host} (process {self.pid})"

    def reachable_addresses(self) -> list[str]:
        """Return the addresses to try from this machine, the most likely address first."""
        others = [address for address in self.addresses if not address.startswith("127.")]
        return ["127.0.0.1", *others] if self.machine == this_process().machine else others or self.addresses


def find_by_file(path: str, number: int | None, job_id: str | None, timeout_s: float, who: str) -> FoundStore:
    """Create the file and serve the store, or connect to the store whose address is in the file. number: of this rank
    or node; None if it is not known."""
    may_own, must_own = number in (0, None), number == 0
    deadline, incomplete = Deadline(timeout_s, say_once), Deadline(INCOMPLETE_S)
    stale_token, reason = None, f"create {path}"
    while True:
        content = read(path)
        if content is not None or not Path(path).exists():
            incomplete = Deadline(INCOMPLETE_S)
        elif may_own and incomplete.is_over:
            raise ConfigError(
                f"cluster.address=file://{path} must be a new file, but the existing file has other content. "
                "Hint: set another path. The existing file is left unchanged."
            )
        if content is None and not Path(path).exists() and may_own and (served := _serve_by_file(path, job_id)):
            return served
        if content is not None and content.token != stale_token:
            found, unreachable = _connect_to_owner(content, who)
            if found is not None:
                _check_owner(path, content, job_id)
                found.store.set_timeout(timedelta(seconds=max(timeout_s, store.ANSWER_S)))
                return found
            reason = f"answer at {unreachable}" if unreachable else f"create {path} again"
            if must_own or not unreachable:
                stale_token = content.token
                action = "The file is replaced" if may_own else "Waiting for a new file"
                message = f"{path} is stale: its owner, {content.owner}, no longer answers. {action}."
                say_once(message)
        if content is not None and content.token == stale_token and may_own:
            _remove_stale(path, content.token)
        waiting = f"Waiting for rank 0 to {reason}"
        if not deadline.pause(lambda seconds, waiting=waiting: f"{waiting}, {seconds:.0f} s.", store.POLL_S):
            raise ConfigError(
                f"timed out after waiting {deadline.elapsed_s:.0f} s for rank 0 to {reason}. Missing: rank 0 (node 0). "
                f"Hint: start the command of rank 0, and make sure that {Path(path).parent} is the same disk on every "
                "node and that the nodes reach each other on all TCP ports."
            )


def read(path: str) -> StoreAddress | None:
    """Return the content of the file; None if there is no file, or if its content is different or incomplete."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return StoreAddress(**{field.name: content[field.name] for field in fields(StoreAddress)})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _serve_by_file(path: str, job_id: str | None) -> FoundStore | None:
    """Serve a store and create the file, which is removed when this process ends. Return None if another process has
    created the file first."""
    served = store.serve("127.0.0.1", 0, everywhere=True)
    token = served.get(store.OWNER_KEY).decode() or secrets.token_hex(6)
    served.set(store.OWNER_KEY, token)
    addresses = [*interfaces.reachable_addresses(), "127.0.0.1"]
    content = StoreAddress(token=token, job_id=job_id, addresses=addresses, port=served.port, **vars(this_process()))
    try:
        with Path(path).open("x", encoding="utf-8") as stream:
            stream.write(json.dumps(asdict(content)))
    except FileExistsError:
        return None
    except OSError as error:
        raise ConfigError(f"{path} cannot be created: {error.strerror}. Hint: set another folder.") from error
    _own_files.append((path, token))
    return FoundStore(served, addresses[0], served.port, is_server=True)


def _connect_to_owner(content: StoreAddress, who: str) -> tuple[FoundStore | None, str]:
    """Return (the owner's store, ""), or (None, the addresses that do not answer, although the owner may be alive)."""
    unreachable: list[str] = []
    for host in content.reachable_addresses():
        try:
            if found := store.try_client(host, content.port, who, owner=content.token):
                return FoundStore(found, host, content.port), ""
        except ConnectionRefusedError:
            continue
        except OSError as error:
            unreachable.append(f"{host}:{content.port} ({error.strerror or error})")
    return None, ", ".join(unreachable)


def _check_owner(path: str, content: StoreAddress, job_id: str | None) -> None:
    if content.job_id != job_id:
        raise ConfigError(
            f"{path} belongs to a job that is running on {content.owner} with cluster.job_id={content.job_id}, but "
            f"this job has cluster.job_id={job_id}. Hint: use a separate file for each job."
        )


def _remove_stale(path: str, token: str) -> None:
    """Remove the file if it has this token. Of several processes that call this at once, only the one that creates a
    lock file removes it, because another could remove the file of the next owner."""
    lock = Path(f"{path}.stale.{token}")
    with contextlib.suppress(FileExistsError):
        lock.touch(exist_ok=False)
        try:
            _remove(path, token)
        finally:
            lock.unlink(missing_ok=True)


def _remove(path: str, token: str) -> None:
    if (content := read(path)) is not None and content.token == token:
        with contextlib.suppress(OSError):
            Path(path).unlink()


_own_files: list[tuple[str, str]] = []


@clean_up_at_exit
def remove_own_files() -> None:
    while _own_files:
        _remove(*_own_files.pop())
