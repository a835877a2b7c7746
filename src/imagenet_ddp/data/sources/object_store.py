"""Fetch files from an object store or server through fsspec, with retries and one message per failure. The file systems
have their own timeouts: botocore closes a connection after 60 s without a byte, aiohttp after 300 s in total."""

import errno
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from imagenet_ddp.data.bad_images import LoadError
from imagenet_ddp.system.text import first_line, install

TRIES = 4
FIRST_WAIT_S = 0.5  # wait after the first failure; doubled after each further failure
_FINAL = (FileNotFoundError, PermissionError, ImportError, NotADirectoryError, IsADirectoryError)
_CREDENTIALS = ("NoCredentialsError", "PartialCredentialsError", "InvalidAccessKeyId", "SignatureDoesNotMatch")


class ShardError(LoadError):
    """Raised if a file cannot be fetched."""


@dataclass(frozen=True)
class Remote:
    """A folder in an object store or on a server. url: s3://BUCKET/FOLDER, or any other address that fsspec supports.
    options: options of its file system, such as endpoint_url."""

    url: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def read(self, name: str) -> bytes:
        """Read a small file. Raises ShardError."""
        return self._retry(name, lambda fs, path: fs.cat_file(path))

    def get(self, name: str, part: Path) -> None:
        """Download a large file into the local file `part`. Raises ShardError."""
        self._retry(name, lambda fs, path: fs.get_file(path, str(part)))

    def _retry(self, name: str, call: Callable[[Any, str], Any]) -> Any:
        for number in range(TRIES):
            try:
                return call(*self._open(name))
            except Exception as error:
                if number == TRIES - 1 or _is_final(error):
                    raise ShardError(self._message(name, error)) from error
                time.sleep(FIRST_WAIT_S * 2**number)
        raise AssertionError

    def _open(self, name: str) -> tuple[Any, str]:
        """Return the file system and the path of a file in it. fsspec caches file systems per process; they cannot be
        used after a fork."""
        import fsspec  # here, because each of its file systems imports a library of its own

        return fsspec.core.url_to_fs(f"{self.url}/{name}", **self.options)

    def _message(self, name: str, error: Exception) -> str:
        address = f"{self.url}/{name}"
        if isinstance(error, ImportError):
            return f"{address} cannot be read, because a library is missing: {error}. Hint: {library_hint(self.url)}."
        if isinstance(error, PermissionError) or _names_credentials(error):
            return (
                f"{address} cannot be read without valid credentials ({first_line(error)}). Hint: set "
                "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, or give the machine a role that may list "
                "and read the bucket. For a public bucket, set +data.args.anon=true."
            )
        if isinstance(error, FileNotFoundError):
            return (
                f"{address} does not exist ({first_line(error)}). Hint: upload all files of the packed folder, and set "
                "data.root=ADDRESS to the folder's address."
            )
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return (
                f"the disk of data.cache_dir has no room for {name}. Hint: reduce data.cache_gib, or set "
                "data.cache_dir=FOLDER to a folder on another disk."
            )
        return (
            f"{address} could not be read in {TRIES} tries ({first_line(error)}). Hint: check that the address is "
            "correct and that its server is running. Set +data.args.endpoint_url=URL for a store other than Amazon's."
        )


def _is_final(error: Exception) -> bool:
    """Return whether retrying cannot help."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    return full or isinstance(error, _FINAL) or _names_credentials(error)


def _names_credentials(error: Exception) -> bool:
    return any(name in f"{type(error).__name__} {error}" for name in _CREDENTIALS)


def library_hint(url: str) -> str:
    return f"run `{install('imagenet_ddp[s3]')}`" if url.startswith(("s3:", "s3a:")) else "install that library"
