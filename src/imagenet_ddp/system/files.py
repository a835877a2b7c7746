"""Write files atomically, read and format small ones, verify checksums, describe paths, and find the cache folder."""

import csv
import hashlib
import io
import json
import os
import secrets
import zipfile
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import yaml

from imagenet_ddp.system.text import first_line


@contextmanager
def atomic_path(path: Path, draft: Path | None = None) -> Generator[Path]:
    """Yield a path to write to. The file is renamed to `path` at the end of the block, and deleted if the block raises.

    draft: the path to yield, if there is only one writer at a time; the next writer overwrites a file left there by a
    kill. None: a random name that no other process uses, on this machine or another.
    """
    draft = draft or path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def atomic_write(path: Path, content: str | bytes, *, sync: bool = False) -> None:
    """Write content, with text as UTF-8. sync: return only when the content is on the disk."""
    with atomic_path(path) as part, part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Return once the names of the folder's files are on the disk. Before that, a power cut may restore old names."""
    with suppress(OSError):  # some network disks do not support this
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


# ---- YAML, JSON and CSV ---------------------------------------------------------------------------------------------


_YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if it is installed, is ten times as fast


def read_mapping(path: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """Return the file's content, {} if it cannot be read or is not a mapping. problems: a list to which the reason is
    added."""
    problem = ""
    try:
        text = path.read_text(encoding="utf-8")
        content: Any = json.loads(text) if path.suffix == ".json" else yaml.load(text, _YAML_LOADER)
        if isinstance(content, dict):
            return cast("dict[str, Any]", content)
        problem = "is not a mapping"
    except FileNotFoundError:
        problem = "is missing"
    except OSError as error:
        problem = f"cannot be read ({error.strerror})"
    except (yaml.YAMLError, ValueError, RecursionError):
        problem = f"is not valid {path.suffix.removeprefix('.').upper()}"
    if problems is not None:
        problems.append(f"{path.name} {problem}")
    return {}


def csv_bytes(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return the content of a CSV file. Bytes in file names that are not valid text become backslash escapes, and None
    becomes an empty cell."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue().encode(errors="backslashreplace")


# ---- checksums ------------------------------------------------------------------------------------------------------


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def zip_damage(path: Path) -> str:
    """Return how a zip file is damaged, "" if it is not. torch.save writes a zip file with a CRC-32 of each part, which
    torch.load does not verify."""
    try:
        with zipfile.ZipFile(path) as file:
            part = file.testzip()
    except Exception as error:  # zipfile raises many kinds of exceptions for wrong headers
        return first_line(error).rstrip(".")
    return f"its part {part} has another checksum" if part else ""


def begins_as_zip(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"PK\3\4"


# ---- paths ----------------------------------------------------------------------------------------------------------


def describe_path(path: Path) -> str:
    """Append the absolute path to a relative one, which depends on the working directory."""
    return str(path) if path.is_absolute() else f"{path} ({path.absolute()})"


def where(location: str) -> str:
    """Return " in" and the absolute path of a folder or file, or an address; "" for none."""
    return f" in {location if '://' in location else Path(location).absolute()}" if location else ""


def nearest_existing(path: Path) -> Path:
    """Return the path if it exists, else the nearest of its parents that exists, as an absolute path."""
    return next(parent for parent in (path.absolute(), *path.absolute().parents) if parent.exists())


def not_writable_reason(path: Path) -> str:
    """Return "" if the folder `path` can be written to, or can be created. Otherwise, return why not, such as "/a/b is
    a file"."""
    existing = nearest_existing(path)
    if not existing.is_dir():
        return f"{existing} is a file"
    return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is not writable"


def exists(path: str) -> bool:
    """Return whether a file or folder of this name exists; False for a text that cannot be a path."""
    try:
        return bool(path) and Path(path).exists()
    except (OSError, ValueError):  # such as a name that is too long, or that contains a null character
        return False


def expand_home(text: str) -> Path:
    """Replace a leading ~ or ~USER by the home folder; return the text unchanged if there is no such user."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 Path.expanduser() raises there


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return $XDG_CACHE_HOME/imagenet_ddp, by default ~/.cache/imagenet_ddp."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "imagenet_ddp")
