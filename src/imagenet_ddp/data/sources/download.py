"""Download a large file once per machine, with resume, a lock between processes and an MD5 check."""

import fcntl
import hashlib
import http.client
import queue
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.console import Say
from imagenet_ddp.system.progress_bar import Progress

MIB = 2**20
CONNECT_S = 15.0  # longest wait for the server's first answer, name resolution included
READ_S = 30.0  # longest wait for the next bytes
STALL_S = 600.0  # longest wait for another process whose download no longer grows; checking and unpacking take a minute
REPORT_S = 5.0  # between two lines of progress
RETRIES = 3  # new connections in a row that bring no byte, after a connection that did


@dataclass(frozen=True)
class Archive:
    name: str  # of the file once it is complete
    url: str
    num_bytes: int  # 0: not known
    md5: str

    def part(self, root: Path) -> Path:
        """The file that grows while the download runs."""
        return root / f"{self.name}.part"


class _LostError(Exception):
    """The server could not be reached, or stopped sending; the text says why."""


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@contextmanager
def lock_or_wait(lock: Path, growing: Path | None, say: Say) -> Iterator[None]:
    """Lock a file, or wait while another process does and the file `growing` grows; None: as long as it does. Raises
    ConfigError."""
    with lock.open("a") as handle:
        seen, deadline, next_line = -1, 0.0, 0.0
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # freed by the system if its holder dies
                break
            except BlockingIOError:
                now, size = time.monotonic(), size_of(growing) if growing is not None else 0
            if size != seen:
                seen, deadline = size, now + STALL_S
            if growing is not None and now > deadline:
                raise ConfigError(
                    f"Timed out: another process has held {lock} to prepare {lock.parent} for {STALL_S:g} s "
                    "without progress. Hint: stop that process, then run this again."
                )
            if now >= next_line:
                far = f"; {seen // MIB} MiB" if growing is not None else ""
                say(f"Waiting for another process that prepares {lock.parent} (it holds {lock.name}{far})")
                next_line = now + 3 * REPORT_S
            time.sleep(0.1)
        yield


def validate_size(path: Path, archive: Archive) -> list[str]:
    """Return a mistake where the file cannot be the archive."""
    size = path.stat().st_size
    if size == archive.num_bytes:
        return []
    why = "the download or copy is incomplete" if size < archive.num_bytes else "it is another file"
    return [f"{path} must be {archive.num_bytes:,} bytes, got {size:,}: {why}. Hint: delete it and download it again."]


def verify(path: Path, archive: Archive, say: Say) -> None:
    """Raises ConfigError where the MD5 is another one; an own .part file is then removed."""
    say(f"Checking the MD5 of {path}.")
    digest, progress = hashlib.md5(usedforsecurity=False), Progress(archive.name, -(-size_of(path) // MIB), "MiB")
    with path.open("rb", buffering=0) as file:
        while block := file.read(MIB):
            digest.update(block)
            progress.add(1)
    progress.close()
    md5 = digest.hexdigest()
    if md5 == archive.md5:
        return
    hint = f"delete {path}, then run this again"
    if path == archive.part(path.parent):  # it has its full size, so no later run could mend it
        path.unlink()
        hint = "run this again (the file was removed); if that does not help, something on the way alters downloads"
    raise ConfigError(f"{path} must have MD5 {archive.md5}, got {md5}. Hint: {hint}.")


def fetch(root: Path, archive: Archive, say: Say) -> None:
    """Fill the .part file to its full size, resuming an earlier download. Raises ConfigError."""
    part = archive.part(root)
    longest, retries_left = size_of(part), 0
    while size_of(part) < archive.num_bytes:
        try:
            _receive(part, archive, say)
            why = "the connection was closed early"
        except _LostError as error:
            why = str(error)
        have = size_of(part)
        if have >= archive.num_bytes:
            return
        # Without one byte gained there is no network: answered at once. What has worked before is worth a new try.
        retries_left = RETRIES if have > longest else retries_left - 1
        longest = max(longest, have)
        if retries_left < 0:
            kept = f" {have} of {archive.num_bytes} bytes are there, and the next run resumes." if have else ""
            raise ConfigError(
                f"{archive.name} cannot be downloaded from {archive.url}: {why}.{kept} "
                f"Hint: put {archive.name} into {root} yourself, or set data.root=FOLDER to where it lies."
            )
        say(f"{archive.name}: {why}, {have // MIB} of {archive.num_bytes // MIB} MiB are there; trying again.")
        time.sleep(0.5 * 2 ** (RETRIES - retries_left))


def _receive(part: Path, archive: Archive, say: Say) -> None:
    """One connection: appends to part until the end, or raises _LostError. Errors of the disk are OSError."""
    have = size_of(part)
    host = urllib.parse.urlsplit(archive.url).hostname
    request = urllib.request.Request(archive.url, headers={"Range": f"bytes={have}-"} if have else {})
    say(f"Downloading {archive.url} to {part}" + (f", from byte {have} on." if have else "."))
    with _open(request) as response:
        resumed = response.status == 206
        if resumed:  # Content-Range: bytes 100-999/1000
            span, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
            if span.partition("-")[0] != str(have):
                raise _LostError(f"{host} answers with another part than the one asked for")
        else:
            total = response.headers.get("Content-Length", "")
        if total.isdigit() and int(total) != archive.num_bytes:  # a login page of the network, say
            raise _LostError(f"{host} sends a file of {total} bytes instead of {archive.num_bytes}")
        first = have if resumed else 0
        have, begin_s = first, time.monotonic()
        next_line = begin_s + REPORT_S
        with part.open("ab" if resumed else "wb") as file:
            while have < archive.num_bytes:
                try:
                    block = response.read1(min(MIB, archive.num_bytes - have))
                except (OSError, http.client.HTTPException) as error:
                    raise _LostError(_reason(error, host, READ_S)) from error
                if not block:
                    return
                file.write(block)
                have += len(block)
                if (now := time.monotonic()) >= next_line:
                    next_line = now + REPORT_S
                    rate = (have - first) / (now - begin_s)  # bytes per second
                    say(
                        f"{archive.name}: {have // MIB} of {archive.num_bytes // MIB} MiB, {rate / MIB:.1f} MiB/s, "
                        f"about {(archive.num_bytes - have) / rate:.0f} s left"
                    )


def _open(request: urllib.request.Request) -> http.client.HTTPResponse:
    """In a thread, because name resolution and the tries of several addresses have no time limit in common."""
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    host = urllib.parse.urlsplit(request.full_url).hostname

    def run() -> None:
        try:
            answers.put(urllib.request.urlopen(request, timeout=READ_S))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=run, daemon=True).start()
    try:
        answer = answers.get(timeout=CONNECT_S)
    except queue.Empty:
        answer = TimeoutError()
    if isinstance(answer, Exception):
        raise _LostError(_reason(answer, host, CONNECT_S)) from answer
    return answer


def _reason(error: Exception, host: str | None, limit_s: float) -> str:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return f"{host} answers {error.code} {error.reason}"
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(cause, socket.gaierror):
        return f"the host name {host} does not resolve (no network?)"
    if isinstance(cause, ConnectionRefusedError):
        return f"{host} refuses the connection"
    if isinstance(cause, TimeoutError):
        return f"{host} does not answer within {limit_s:g} s"
    return f"the connection to {host} failed ({cause})"
