"""Send a file of rank 0 to each machine that lacks it, once."""

import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from imagenet_ddp.distributed.failure import ask, explain_lost_store
from imagenet_ddp.distributed.meet import Meeting
from imagenet_ddp.distributed.messages import as_posted
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import sha256
from imagenet_ddp.system.process import clean_up_at_exit

CHUNK_BYTES = 4 * 2**20  # torch's store refuses values above 8 MiB
_SHA256 = re.compile("[0-9a-f]{64}")


@explain_lost_store()
def share_file(meeting: Meeting, path: Path | None) -> Path | None:
    """Return the path of rank 0's file on all ranks; None if rank 0 has no file. The path is that of a local file with
    the same path and content, or else of a copy, which the first rank of each machine receives through the store.

    path: only that of rank 0 counts.
    """
    own = None
    if meeting.number == 0 and path is not None:
        own = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)}
    of_first = meeting.broadcast("file", own)
    if of_first is None:
        return None
    with as_posted("file"):
        path, num_bytes, digest = _checked(of_first)
    disks = [each.pids for each in meeting.members]  # a container has its own processes, and its own files
    first = disks.index(disks[meeting.number])
    is_other = meeting.number == first != 0
    lacks_it = is_other and not (path.is_file() and path.stat().st_size == num_bytes and sha256(path) == digest)
    if not meeting.agree("who lacks the file", lacks_it, any):
        return path
    _require_space(meeting, path.name, num_bytes if lacks_it else 0)
    chunks, raw = [f"file/{begin}" for begin in range(0, num_bytes, CHUNK_BYTES)], meeting.store.store
    if meeting.number == 0:
        with path.open("rb") as file:
            for chunk in chunks:
                content: Any = file.read(CHUNK_BYTES)  # torch's type stubs do not accept bytes
                ask(lambda chunk=chunk, content=content: raw.set(chunk, content), meeting.timeout_s)
    meeting.agree("the file is sent", None, len)
    if lacks_it:
        folder = Path(tempfile.mkdtemp(prefix="imagenet_ddp_"))
        _copies.append(folder)
        path = folder / path.name
        with path.open("wb") as file:
            for chunk in chunks:
                content = ask(lambda chunk=chunk: raw.get(chunk), meeting.timeout_s)
                file.write(content[: num_bytes - file.tell()])  # never more than was announced
        if sha256(path) != digest:  # the digest is signed, the chunks are not
            raise ConfigError(f"{path.name} must arrive as node 0 has it, but did not. Hint: run the command again.")
    paths = meeting.agree("the file has arrived", str(path), list)
    if meeting.number == 0:
        for chunk in chunks:
            raw.delete_key(chunk)
    return Path(paths[first])


_copies: list[Path] = []


@clean_up_at_exit
def remove_copies() -> None:
    """Remove the copies that this process has received. By its end, the ranks of its machine have read them."""
    while _copies:
        shutil.rmtree(_copies.pop(), ignore_errors=True)


def _checked(posted: Any) -> tuple[Path, int, str]:
    """Return path, bytes and digest of a file that rank 0 announces. Raises ValueError if they cannot be those of a
    file: its name is that of the copy here, and its size is the space that the copy takes."""
    path, num_bytes, digest = Path(posted["path"]), posted["bytes"], posted["sha256"]
    if path.name in ("", "..") or type(num_bytes) is not int or num_bytes < 0 or not _SHA256.fullmatch(digest):
        raise ValueError("not a file")
    return path, num_bytes, digest


def _require_space(meeting: Meeting, name: str, num_bytes: int) -> None:
    """Raise ConfigError on all ranks if a copy does not fit on the disk of temporary files of one of them."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free

    lack = (
        f"{meeting.name(meeting.number)} needs {num_bytes / 1e9:,.1f} GB in {folder} for {name}, which node 0 sends, "
        f"but has {free / 1e9:,.1f} GB. Hint: set TMPDIR to a larger disk there, or put the file at the same path."
    )
    meeting.agree("space for the file", lack if num_bytes > free else None, refuse_lack)


def refuse_lack(lacks: list[Any]) -> None:
    """Raise ConfigError if a machine lacks space. lacks: the sentence of each rank; None if it has enough."""
    if mistakes := [str(lack) for lack in lacks if lack]:
        raise ConfigError(mistakes)
