"""Read the secret with which the nodes of a run sign their messages (messages.py). Does not import torch.

It never stands in a config, on a command line or in a log: the key cluster.secret_file names a file.
"""

import stat
from collections.abc import Mapping
from pathlib import Path

from imagenet_ddp.errors import ConfigError

VARIABLE = "IMAGENET_DDP_SECRET"  # the secret itself, where a platform hands secrets on as variables
LEAST_BYTES, MOST_BYTES = 16, 4096
SAME_EVERYWHERE = f"set cluster.secret_file to a file with the same content on every node, or {VARIABLE} likewise"
_MAKE = "`(umask 077; openssl rand -hex 32 > FILE)` makes one; copy it to every node"


def read_secret(secret_file: str | None, environ: Mapping[str, str]) -> bytes | None:
    """Return the content of the file of cluster.secret_file, or else of the variable, without surrounding white space;
    None if neither is set. Raises ConfigError."""
    if secret_file is None:
        where, content = VARIABLE, environ.get(VARIABLE, "").encode("utf-8", "surrogateescape")
        if not content:
            return None
    else:
        path = Path(secret_file).expanduser()
        where = f"cluster.secret_file={path}"
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{where} must be a regular file. Hint: {_MAKE}.")
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
        except OSError as error:
            raise ConfigError(f"{where} cannot be read: {error.strerror}. Hint: {_MAKE}.") from error
        if status.st_mode & stat.S_IRWXO:
            raise ConfigError(
                f"{where} must be closed to other users, because whoever reads it can sign. Hint: run "
                f"`chmod o= {path}`, in Kubernetes set the volume's defaultMode to 0400, or set {VARIABLE}."
            )
    content = content.strip()
    if not LEAST_BYTES <= len(content) <= MOST_BYTES:
        raise ConfigError(
            f"{where} must hold {LEAST_BYTES} to {MOST_BYTES:,} bytes, got {len(content):,}. Hint: {_MAKE}."
        )
    return content
