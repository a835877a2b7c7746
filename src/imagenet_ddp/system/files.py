"""Write files atomically, read and format small ones, verify checksums, describe paths, and find the cache folder."""

import csv
import hashlib
import io
import itertools
import json
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, cast
from urllib.parse import unquote

import yaml

from imagenet_ddp.system.text import first_line, near_names

MOST_BELOW = 1000  # folders to look at for what may be meant


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


def write_in(folder: Path, write: Callable[[], None]) -> None:
    """Call a function that writes a file into a folder, which is made if it is missing. If somebody removes the folder
    during the write, it is made again, for as often as such a removal may collide with it."""
    for tries_left in (2, 1, 0):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            return write()
        except FileNotFoundError:
            if not tries_left:
                raise


def open_to_append(path: Path) -> IO[str]:
    """Open a file to append text, which need not be valid UTF-8, but not through a link: a run folder of somebody else
    could lead to any file of this user. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
    return os.fdopen(os.open(path, flags, 0o666), "a", encoding="utf-8", errors="backslashreplace")


def sync_folder(folder: Path) -> None:
    """Return once the names of the folder's files are on the disk. Before that, a power cut may restore old names."""
    with suppress(OSError):  # some network disks do not support this
        number = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


# ---- YAML, JSON and CSV ---------------------------------------------------------------------------------------------


MOST_LEVELS = 50  # of a YAML file
MOST_BYTES = 64 * 2**20  # of a file that is read whole; the metrics of 100,000 epochs have about 20 MB
_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml, if installed, is ten times as fast


class UnusualFileError(OSError):
    """Raised for a file that is no regular file, or too large, so that it is not read."""


def load_yaml(text: str) -> Any:
    """Return the content of YAML without aliases, which our files do not have: nested ones have no end, and one can
    contain itself. Raises yaml.YAMLError for these, and for more than MOST_LEVELS levels."""
    depth, untyped = 0, cast("Any", yaml)
    for event in untyped.parse(text, _YAML_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if isinstance(event, yaml.AliasEvent) or depth > MOST_LEVELS:
            raise yaml.YAMLError(f"aliases and more than {MOST_LEVELS} levels are not read")
    return yaml.load(text, _YAML_LOADER)


def open_regular(path: Path) -> IO[bytes]:
    """Open a file to read it. Raises UnusualFileError for a device or a pipe, which might never end, and OSError."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe without a writer would be waited for
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise UnusualFileError("is not a regular file")
    return os.fdopen(number, "rb")


def read_small(path: Path, most: int = MOST_BYTES) -> str:
    """Return the text of a regular file, in UTF-8. Raises UnusualFileError for another one, and for a file of more than
    `most` bytes."""
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most:
            raise UnusualFileError(f"is larger than {most >> 20} MiB")
        return file.read().decode()


def contains(path: Path, text: str) -> bool:
    """Return whether a file can be read and contains the text."""
    try:
        return text in path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


def read_mapping(path: Path, problems: list[str] | None = None) -> dict[str, Any]:
    """Return the file's content, {} if it cannot be read or is not a mapping. problems: a list to which the reason is
    added."""
    problem = ""
    try:
        text = read_small(path)
        content: Any = json.loads(text) if path.suffix == ".json" else load_yaml(text)
        if isinstance(content, dict):
            return cast("dict[str, Any]", content)
        problem = "is not a mapping"
    except FileNotFoundError:
        problem = "is missing"
    except UnusualFileError as error:
        problem = str(error)
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


def beside(path: Path, accepts: Callable[[Path], bool]) -> Path | None:
    """Return what a missing path means in another form, else what lies beside it under the most similar name, under one
    that goes on after a space, at which the path was cut, or in the one folder there that has this name; None if there
    is none. accepts: whether it can be meant."""
    with suppress(OSError):
        if (plain := _plain_form(str(path))) != path and plain.exists() and accepts(plain):
            return plain
        others = sorted(path.parent.iterdir(), key=lambda each: (each.suffix != path.suffix, each.name))
        stems = near_names(path.stem, {each.stem for each in others})
        near = [each for stem in stems for each in others if each.stem == stem]
        near += [each for each in others if each.name.startswith(f"{path.name} ")]
        inside = [each / path.name for each in others[:MOST_BELOW] if (each / path.name).exists()]
        return next(filter(accepts, near + (inside if len(inside) == 1 else [])), None)
    return None


def _plain_form(text: str) -> Path:
    """Return a path without what other programs and systems write around it: quotes of a document, the address of a
    file manager, a pattern for all files of a folder, a drive of Windows, which WSL has below /mnt."""
    text = text.strip("\u201c\u201d\u201e\u2018\u2019\u201a\u00ab\u00bb\"' ")
    text = unquote(re.sub("^file:/+", "/", text)) if text.startswith("file:/") else text
    text = re.sub(r"/[*.]*\*[*.]*$", "", text.replace("\\ ", " ").replace("\\", "/"))
    return expand_home(re.sub("^([A-Za-z]):/", lambda drive: f"/mnt/{drive[1].lower()}/", text))


def below(folder: Path, accepts: Callable[[Path], bool]) -> list[Path]:
    """Return the folders up to two levels below one that can be meant, the newest first."""
    with suppress(OSError):
        inside = itertools.islice(itertools.chain(folder.glob("*/"), folder.glob("*/*/")), MOST_BELOW)
        return sorted(filter(accepts, inside), key=lambda each: each.stat().st_mtime_ns, reverse=True)
    return []


def describe_path(path: Path) -> str:
    """Append the absolute path to a relative one, which depends on the working directory."""
    return str(path) if path.is_absolute() else f"{path} ({path.absolute()})"


def short_path(path: Path) -> Path:
    """Return the path from the current folder if it is in it, else the path as it is."""
    inside = path.is_absolute() and path.is_relative_to(Path.cwd())
    return path.relative_to(Path.cwd()) if inside else path


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


def make_private(folder: Path) -> None:
    """Create a folder that only this user can enter, unless it exists. Raises OSError if it cannot be created, is a
    link, belongs to somebody else, or is open to others: in /tmp, anybody may have made it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not private")


def cache_dir(environ: Mapping[str, str]) -> Path:
    """Return $XDG_CACHE_HOME/imagenet_ddp, by default ~/.cache/imagenet_ddp."""
    return Path(environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "imagenet_ddp")
