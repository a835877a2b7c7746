"""cluster.address=file:///PATH: a file that says where the store is, kept alive by the process that serves it.

The file is a pointer, not the store: a TCP store at a free port answers faster than a file on a network disk, needs no
locks there, and shows at once whether the machines reach each other, which the process group needs anyway. Whoever
makes the file (rank 0; or the first node, by exclusive creation) owns it, writes down who it is and where it listens,
and renews a counter in a second file beside it every 2 s. A counter, because the clocks of two machines differ; a
joiner wants to see it move. The file is opened anew for each look: a network disk then asks its server.
No torch here.
"""

import atexit
import contextlib
import json
import os
import stat
import sys
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp.distributed.rendezvous.consistency import this_process
from imagenet_ddp.distributed.rendezvous.timeout import Deadline
from imagenet_ddp.errors import ConfigError

RENEW_S = 2.0
STALE_S = 5.0  # without a renewal: more than two of them late
LOOK_S = 0.2


@dataclass(frozen=True)
class StoreLocation:
    """Where the file leads. owned: by this process, which serves the store."""

    hosts: tuple[str, ...]  # numeric addresses of the owner, the likeliest first
    port: int
    owned: bool


def mistakes(path: str) -> list[str]:
    """What can be said of the path before anything waits."""
    folder = Path(path).parent
    try:
        kind = Path(path).stat().st_mode  # what a link leads to, which must be there
    except (FileNotFoundError, NotADirectoryError):
        if Path(path).is_symlink():
            return [f"cluster.address=file://{path} is a link to nothing. Hint: remove it, or another path."]
        kind = None
    except OSError as error:
        return [f"cluster.address=file://{path} cannot be used: {error.strerror}. Hint: another path."]
    if kind is not None and stat.S_ISDIR(kind):
        return [f"cluster.address=file://{path} must be a file, but is a folder. Hint: file://{path}/job1."]
    if kind is not None and not stat.S_ISREG(kind):
        return [f"cluster.address=file://{path} must be a plain file, or none yet. Hint: another path."]
    if not folder.is_dir():
        return [
            f"the folder of cluster.address=file://{path} must exist on every node, but {folder} does not "
            "exist here. Hint: mount the shared disk, or make the folder."
        ]
    if not os.access(folder, os.W_OK | os.X_OK):
        return [
            f"the folder of cluster.address=file://{path} must be writable, but {folder} is not, for this "
            "user. Hint: a folder of your own on the shared disk."
        ]
    return []


def find(
    path: str,
    job_id: str | None,
    timeout_s: float,
    *,
    may_own: bool,
    must_own: bool,
    serve: Callable[[], tuple[list[str], int]],
) -> StoreLocation:
    """Own the file, or find its owner. may_own: false for those who wait for rank 0. must_own: rank 0 itself.
    serve: starts the store; the addresses and the port of it."""
    file = Path(path)
    if found := mistakes(path):
        raise ConfigError(found)
    patience = Deadline(timeout_s)
    stale: tuple[str, str] | None = None  # token and count of a file that was given up
    odd_since: float | None = None  # a file that is being written looks odd for a moment
    while True:
        seen = _read(file)
        if seen is None and not file.exists() and may_own:
            hosts, port = serve()
            if _own(file, job_id, hosts, port):
                return StoreLocation(tuple(hosts), port, True)
            continue
        if seen is not None and (seen["token"], _value(_counter(file, seen["token"]))) != stale:
            alive = _alive(file, seen)
            if alive:
                return _join(file, seen, job_id, must_own)
            if alive is None:
                continue
            stale = (seen["token"], _value(_counter(file, seen["token"])))
            what = f"{file} is stale: its owner, {seen['host']} (process {seen['pid']}), no longer renews it"
            print(f"{what}. {'It is replaced.' if may_own else 'Waiting for a new one.'}", file=sys.stderr, flush=True)
            if may_own:
                _remove_stale(file, seen["token"])
        odd_since = (odd_since or time.monotonic()) if seen is None and file.exists() else None
        if odd_since is not None and may_own and time.monotonic() - odd_since > STALE_S:
            raise ConfigError(
                f"cluster.address=file://{file} must be a new file, but holds something else. "
                "Hint: another path; the file is left as it is."
            )
        if not patience.lasts(lambda seconds: f"Waiting for rank 0 to make {file}, {seconds:.0f} s.", LOOK_S):
            raise ConfigError(
                f"waited {patience.seconds:.0f} s for rank 0 to make {file}, in vain. Missing: rank 0 (node 0). "
                f"Hint: start its command; is {file.parent} really the same disk on every node?"
            )


def owner(path: str) -> tuple[list[str], tuple[int, ...]] | None:
    """(hosts, port) of who wrote the file, alive or not; None where there is none."""
    seen = _read(Path(path))
    if seen is None:
        return None
    here = seen["machine"] == this_process()["machine"]
    return (["127.0.0.1", *seen["hosts"]] if here else seen["hosts"]), (seen["port"],)


def _join(file: Path, seen: dict[str, Any], job_id: str | None, must_own: bool) -> StoreLocation:
    owner = f"{seen['host']} (process {seen['pid']}"
    if seen["job_id"] != job_id:
        raise ConfigError(
            f"{file} belongs to another job, that of {owner}, cluster.job_id={seen['job_id']}), which is alive; this "
            f"one has cluster.job_id={job_id}. Hint: a file of its own for each job."
        )
    if must_own:
        raise ConfigError(
            f"this is rank 0 and must own {file}, but {owner}) does, and is alive. "
            "Hint: a file of its own for each job; is rank 0 started twice?"
        )
    hosts = [host for host in seen["hosts"] if not host.startswith("127.")]
    if seen["machine"] == this_process()["machine"]:
        hosts.insert(0, "127.0.0.1")
    return StoreLocation(tuple(hosts or seen["hosts"]), seen["port"], False)


def _read(file: Path) -> dict[str, Any] | None:
    """None: not there, or not (yet) a pointer."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    needed = {"token", "job_id", "host", "pid", "machine", "hosts", "port"}
    return content if isinstance(content, dict) and needed <= content.keys() else None


def _counter(file: Path, token: str) -> Path:
    return file.with_name(f"{file.name}.{token}")


def _alive(file: Path, seen: dict[str, Any]) -> bool | None:
    """Whether the owner's counter moves: one that does not for 5 s belongs to a process that is gone. None: the file
    went away meanwhile, or is another's by now."""
    first = _value(_counter(file, seen["token"]))
    end = time.monotonic() + STALE_S
    while time.monotonic() < end:
        time.sleep(LOOK_S)
        if (now := _read(file)) is None or now["token"] != seen["token"]:
            return None
        if _value(_counter(file, seen["token"])) != first:
            return True
    return False


def _value(counter: Path) -> str:
    try:
        return counter.read_text()
    except OSError:
        return ""


def _remove_stale(file: Path, token: str) -> None:
    """By rename, so that of two who see it only one removes it; a new owner's file that got in between is put back."""
    if (now := _read(file)) is None or now["token"] != token:
        return
    aside = file.with_name(f"{file.name}.stale.{uuid.uuid4().hex[:8]}")
    try:
        file.rename(aside)
    except FileNotFoundError:
        return
    seen = _read(aside)
    if seen is not None and seen["token"] != token:
        with contextlib.suppress(OSError):
            os.link(aside, file)
    aside.unlink(missing_ok=True)
    _counter(file, token).unlink(missing_ok=True)


def _own(file: Path, job_id: str | None, hosts: list[str], port: int) -> bool:
    """False: another was first."""
    token = uuid.uuid4().hex[:12]
    content = {**this_process(), "token": token, "job_id": job_id, "hosts": hosts, "port": port}
    counter = _counter(file, token)
    try:
        counter.write_text("0")
        with file.open("x", encoding="utf-8") as stream:
            stream.write(json.dumps(content))
    except FileExistsError:
        counter.unlink(missing_ok=True)
        return False
    except OSError as error:
        raise ConfigError(f"{file} cannot be made: {error.strerror}. Hint: another folder.") from error
    ended = threading.Event()

    def renew() -> None:
        count = 0
        while not ended.wait(RENEW_S):
            count += 1
            with contextlib.suppress(OSError):
                counter.write_text(str(count))

    def end() -> None:
        ended.set()
        if (seen := _read(file)) is not None and seen["token"] == token:
            file.unlink(missing_ok=True)
        counter.unlink(missing_ok=True)

    threading.Thread(target=renew, name="pointer", daemon=True).start()
    _ENDS.append(end)
    return True


# A finished job leaves no file: also where a process ends by os._exit, which runs no exit handlers.
_ENDS: list[Callable[[], None]] = []


@atexit.register
def remove_own_files() -> None:
    while _ENDS:
        _ENDS.pop()()
