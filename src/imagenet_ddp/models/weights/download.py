"""Download pretrained weights, from the Hugging Face hub or a URL. Each download is announced."""

import hashlib
import importlib
import json
import shlex
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch

from imagenet_ddp.config.paths import FILES
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.system.bounded_wait import lock_or_wait
from imagenet_ddp.system.console import Progress, print_message
from imagenet_ddp.system.files import atomic_path
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import first_line, shorten_list

# Names under which libraries put weights into a repository of the hub, best first.
_OF_HUB = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pt", "model.pth", "model.pt")
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
    # in which torch.hub, torchvision and timm keep files: below TORCH_HOME if that is set
    target = Path(torch.hub.get_dir(), "checkpoints", name)
    with _one_at_a_time(target):
        if not target.is_file():
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                _download(url, target, sha256 or "")
            except (OSError, HTTPException, ValueError) as error:
                hint = f"download that file on another machine, and copy it to {shlex.quote(str(target))}"
                raise _failed(option, url, error, hint) from error
    return target


def from_hub(option: str, repository: str, names: tuple[str, ...] = _OF_HUB) -> tuple[Path, dict[str, Any]]:
    """Return (the path of a file of a repository's weights, its config.json or {}), downloaded unless the hub's cache
    has them. Raises ConfigError if the repository has no such file.

    option: key=value of the option that asks for it. names: of the file, best first.
    """
    key = option.partition("=")[0]
    if missing := missing_package(option, "huggingface_hub"):
        raise ConfigError(missing)
    hub: Any = importlib.import_module("huggingface_hub")
    cached = next((name for name in names if isinstance(hub.try_to_load_from_cache(repository, name), str)), "")
    url = f"{hub.constants.ENDPOINT}/{repository}"
    try:
        present = [cached] if cached else [each.rfilename for each in hub.model_info(repository).siblings or ()]
        found = [name for name in names if name in present] or [name for name in present if name.endswith(FILES)]
        if not found:
            raise ConfigError(
                f"{key} must be a repository with a file of weights ({', '.join(names)}), but {url} has "
                f"{shorten_list(present)}. Hint: download one of its files, and set {key}=PATH."
            )
        url = hub.hf_hub_url(repository, found[0])
        if not cached:
            _announce(url, hub.get_hf_file_metadata(url).size)
        with suppress(Exception):  # not every repository has one
            hub.hf_hub_download(repository, "config.json", local_files_only=bool(cached))
        path = Path(hub.hf_hub_download(repository, found[0], local_files_only=bool(cached)))
        config = path.with_name("config.json")
        return path, json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    except ConfigError:
        raise
    except Exception as error:  # of httpx, of the hub, OSError or ValueError
        raise _failed(option, url, error, "download that file on another machine, and copy it to this one") from error


def from_timm(option: str, config: Any) -> Path | None:
    """Download the weights of timm to where timm looks for them, and return that path. config: their pretrained_cfg."""
    if config.hf_hub_id:
        names = (config.hf_hub_filename,) if config.hf_hub_filename else _OF_HUB
        return from_hub(option, config.hf_hub_id, names)[0]
    return from_url(option, config.url, config.url.rpartition("/")[2]) if config.url else None


def _announce(url: str, num_bytes: int | None) -> None:
    print_message(f"Downloading {url} ({f'{num_bytes / 1e6:.1f} MB' if num_bytes else 'unknown size'}).")


def _download(url: str, target: Path, sha256: str) -> None:
    """Download a file. torch.hub's function waits forever for a server that stops answering, keeps a file that lacks
    its end, and prints many lines into a log. Raises OSError, HTTPException, or ValueError for another content."""
    digest = hashlib.sha256()
    request = urllib.request.Request(url, headers={"User-Agent": "torch.hub"})
    answer = urllib.request.urlopen(request, timeout=ANSWER_S)
    with answer as reply, atomic_path(target) as part, part.open("wb") as file:
        num_bytes = reply.length  # None if the server does not say
        _announce(url, num_bytes)
        with closing(Progress("download", num_bytes or 0, "bytes")) as progress:
            while chunk := reply.read(CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                progress.add(len(chunk))
        if num_bytes not in (None, progress.done):
            raise ValueError(f"the connection ended after {progress.done:,} of {num_bytes:,} bytes")
        if not digest.hexdigest().startswith(sha256):
            raise ValueError(f"its SHA-256 must begin with {sha256}, but is {digest.hexdigest()}")


def _failed(option: str, url: str, error: Exception, hint: str) -> DownloadError:
    reason, key = first_line(error).rstrip(".") or type(error).__name__, option.partition("=")[0]
    file = setting(f"{key}=FILE", aim="to read weights that this machine has")
    return DownloadError(Mistake(f"{option} could not be downloaded from {url} ({reason})", (key,), (file,), hint))


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
