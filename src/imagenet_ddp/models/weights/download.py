"""Download files from a URL. Each download is announced."""

import errno
import hashlib
import socket
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.parse import urlsplit

from imagenet_ddp.errors import ConfigError, causes
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.console import Progress, print_message
from imagenet_ddp.system.files import atomic_path
from imagenet_ddp.system.text import first_line

ANSWER_S = 60.0  # longest wait for an answer, and for more bytes
CHUNK_BYTES = 1 << 20


class DownloadError(ConfigError):
    """Weights cannot be downloaded, as on a machine without a network."""


def from_url(option: str, url: str, name: str | None = None, sha256: str | None = None) -> Path:
    """Return the path of a downloaded file, which is downloaded unless the folder of torch.hub has it.

    option: key=value of the option that asks for it. name: of the file in that folder; by default, it contains a digest
    of the URL, because many URLs end in the same name. sha256: how the checksum of the file begins.
    """
    if name is None:
        last = Path(url.partition("?")[0].rpartition("/")[2])
        name = f"{last.stem}-{hashlib.sha256(url.encode()).hexdigest()[:8]}{last.suffix}"
    import torch

    # in which torch.hub, torchvision and timm keep files: below TORCH_HOME if that is set
    target = Path(torch.hub.get_dir(), "checkpoints", name)
    with _one_at_a_time(target):
        if not target.is_file():
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                _download(url, target, sha256 or "")
            except (OSError, HTTPException, ValueError) as error:
                raise failed(option, url, no_internet(error, url) or first_line(error).rstrip(".")) from error
    return target


def announce(url: str, num_bytes: int | None) -> None:
    """Say what is downloaded. num_bytes: None if the server does not tell the size."""
    print_message(f"Downloading {url} ({f'{num_bytes / 1e6:.1f} MB' if num_bytes else 'unknown size'}).")


def _download(url: str, target: Path, sha256: str) -> None:
    """Download a file. torch.hub's function waits forever for a server that stops answering, keeps a file that lacks
    its end, and prints many lines into a log. Raises OSError, HTTPException, or ValueError for another content."""
    digest = hashlib.sha256()
    request = urllib.request.Request(url, headers={"User-Agent": "torch.hub"})
    answer = urllib.request.urlopen(request, timeout=ANSWER_S)
    with answer as reply, atomic_path(target) as part, part.open("wb") as file:
        num_bytes = reply.length  # None if the server does not say
        announce(url, num_bytes)
        with closing(Progress("download", num_bytes or 0, "bytes")) as progress:
            while chunk := reply.read(CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                progress.add(len(chunk))
        if num_bytes not in (None, progress.done):
            raise ValueError(f"the connection ended after {progress.done:,} of {num_bytes:,} bytes")
        if not digest.hexdigest().startswith(sha256):
            raise ValueError(f"its SHA-256 must begin with {sha256}, but is {digest.hexdigest()}")


def no_internet(error: BaseException, url: str) -> str:
    """Return that there is no way to the server, in plain words, if that is why a download failed; else ""."""
    unreachable = (errno.ENETUNREACH, errno.EHOSTUNREACH)
    is_offline = any(isinstance(each, socket.gaierror) or getattr(each, "errno", None) in unreachable
                     for each in causes(error))  # fmt: skip
    return f"no internet: this machine cannot reach {urlsplit(url).hostname}" if is_offline else ""


def failed(option: str, url: str, reason: str, what: str = "that file") -> DownloadError:
    """Return the error of a download. option: key=value of the option that asks for it. what: is to be downloaded."""
    key = option.partition("=")[0]
    aim = f"to read weights that this machine has, such as {what}, downloaded on another machine and copied to this one"
    file = setting(f"{key}=FILE", aim=aim)
    return DownloadError(Mistake(f"{option} could not be downloaded from {url} ({reason})", (key,), (file,)))


@contextmanager
def _one_at_a_time(target: Path) -> Generator[None]:
    """Let one process of this machine download while the others wait and then find the file. If no lock is available,
    for example on a read-only disk, the processes do not wait for each other."""
    with ExitStack() as stack:
        if not target.exists():
            with suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                stack.enter_context(lock_or_wait(target.parent / ".imagenet_ddp.lock"))
        yield
