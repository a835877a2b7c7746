"""Send a file of number 0 to the members of a meeting that lack it."""

import atexit
import shutil
import tempfile
from pathlib import Path
from typing import Any

from imagenet_ddp.distributed.meet import Meeting, ask, explain_lost_store
from imagenet_ddp.distributed.messages import as_posted
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.system.files import sha256

CHUNK_BYTES = 4 * 2**20  # torch's store refuses values above 8 MiB


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
        path, num_bytes, digest = Path(of_first["path"]), int(of_first["bytes"]), str(of_first["sha256"])
    has_it = meeting.number == 0 or (path.is_file() and path.stat().st_size == num_bytes and sha256(path) == digest)
    if meeting.agree("who has the file", has_it, all):
        return path
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
                file.write(ask(lambda chunk=chunk: raw.get(chunk), meeting.timeout_s))
        if sha256(path) != digest:  # the digest is signed, the chunks are not
            raise ConfigError(f"{path.name} must arrive as node 0 has it, but did not. Hint: run the command again.")
    meeting.agree("the file has arrived", None, len)
    if meeting.number == 0:
        for chunk in chunks:
            raw.delete_key(chunk)
    return path
