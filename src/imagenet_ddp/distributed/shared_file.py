"""Send a file of number 0 to the members of a meeting that lack it."""

import atexit
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from imagenet_ddp.distributed.meet import Meeting, ask, explain_lost_store
from imagenet_ddp.distributed.messages import as_posted
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import sha256

CHUNK_BYTES = 4 * 2**20  # torch's store refuses values above 8 MiB
_SHA256 = re.compile("[0-9a-f]{64}")


@explain_lost_store()
def share_file(meeting: Meeting, path: Path | None) -> Path | None:
    """Return the path of number 0's file on all members; None if number 0 has no file. The path is that of a local file
    with the same path and content, or else of a copy, which is sent through the store."""
    own = None
    if meeting.number == 0 and path is not None and meeting.size > 1:
        own = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)}
    of_first = meeting.broadcast("file", own)
    if of_first is None:
        return path
    with as_posted("file"):
        path, num_bytes, digest = _checked(of_first)
    has_it = meeting.number == 0 or (path.is_file() and path.stat().st_size == num_bytes and sha256(path) == digest)
    if meeting.agree("who has the file", has_it, all):
        return path
    _require_space(meeting, path.name, 0 if has_it else num_bytes)
    chunks, raw = [f"file/{begin}" for begin in range(0, num_bytes, CHUNK_BYTES)], meeting.store.store
    if meeting.number == 0:
        with path.open("rb") as file:
            for chunk in chunks:
                content: Any = file.read(CHUNK_BYTES)  # torch's type stubs do not accept bytes
                ask(lambda chunk=chunk, content=content: raw.set(chunk, content), meeting.timeout_s)
    meeting.agree("the file is sent", None, len)
    if not has_it:
        folder = tempfile.mkdtemp(prefix="imagenet_ddp_")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)  # by then, this process's workers have read the file
        path = Path(folder) / path.name
        with path.open("wb") as file:
            for chunk in chunks:
                content = ask(lambda chunk=chunk: raw.get(chunk), meeting.timeout_s)
                file.write(content[: num_bytes - file.tell()])  # never more than was announced
        if sha256(path) != digest:  # the digest is signed, the chunks are not
            raise ConfigError(f"{path.name} must arrive as node 0 has it, but did not. Hint: run the command again.")
    meeting.agree("the file has arrived", None, len)
    if meeting.number == 0:
        for chunk in chunks:
            raw.delete_key(chunk)
    return path


def _checked(posted: Any) -> tuple[Path, int, str]:
    """Return path, bytes and digest of a file that number 0 announces. Raises ValueError if they cannot be those of a
    file: its name is that of the copy here, and its size is the space that the copy takes."""
    path, num_bytes, digest = Path(posted["path"]), posted["bytes"], posted["sha256"]
    if path.name in ("", "..") or type(num_bytes) is not int or num_bytes < 0 or not _SHA256.fullmatch(digest):
        raise ValueError("not a file")
    return path, num_bytes, digest


def _require_space(meeting: Meeting, name: str, num_bytes: int) -> None:
    """Raise ConfigError on all members if a copy does not fit on the disk of temporary files of one of them."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free

    lack = (
        f"{meeting.name(meeting.number)} needs {num_bytes / 1e9:,.1f} GB in {folder} for {name}, which node 0 sends, "
        f"but has {free / 1e9:,.1f} GB. Hint: set TMPDIR to a larger disk there, or put the file at the same path."
    )
    meeting.agree("space for the file", lack if num_bytes > free else None, refuse_lack)


def refuse_lack(lacks: list[Any]) -> None:
    """Raise ConfigError if a member lacks space. lacks: the sentence of each member; None if it has enough."""
    if mistakes := [str(lack) for lack in lacks if lack]:
        raise ConfigError(mistakes)
