"""Download pretrained weights: from the Hugging Face hub, a URL, torchvision or timm. Each download is announced."""

# pyright: standard

import fcntl
import hashlib
import json
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.known_names import FILES, HUB
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.text import first_line, install, shorten_list

# Names under which libraries put weights into a repository of the hub, best first.
_OF_HUB = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pt", "model.pth", "model.pt")


def from_url(key: str, url: str) -> Path:
    """Return the path of a downloaded file, which is downloaded unless torch.hub's folder has it."""
    name = Path(url.partition("?")[0].rpartition("/")[2])
    digest = hashlib.sha256(url.encode()).hexdigest()[:8]  # many URLs end in the same name
    target = hub_dir() / f"{name.stem}-{digest}{name.suffix}"
    if not target.is_file():
        with one_at_a_time(target):
            if not target.is_file():
                announce(url, _size_of(url))
                try:
                    target.parent.mkdir(parents=True, exist_ok=True)
                    torch.hub.download_url_to_file(url, str(target), progress=False)
                except (OSError, RuntimeError, ValueError) as error:
                    raise failed(key, url, url, error, f"put that file at {target}") from error
    return target


def from_hub(key: str, weights: str) -> tuple[Path, dict[str, Any]]:
    """Return (the path of a file of a repository's weights, its config.json or {}), downloaded unless the hub's cache
    has them. weights: hf://OWNER/NAME. Raises ConfigError if the repository has no such file."""
    repository = weights.removeprefix(HUB).strip("/")
    try:
        import huggingface_hub as hub
    except ModuleNotFoundError:
        raise ConfigError(
            f"{key}={weights} needs the package huggingface_hub, which is not installed. "
            f"Hint: run `{install('huggingface_hub')}`."
        ) from None
    names: list[str] = []
    if cached := next((name for name in _OF_HUB if isinstance(hub.try_to_load_from_cache(repository, name), str)), ""):
        names = [cached]
    url = f"{hub.constants.ENDPOINT}/{repository}"
    try:
        if not names:
            names = [each.rfilename for each in hub.model_info(repository).siblings or ()]
        found = [name for name in _OF_HUB if name in names] or [name for name in names if name.endswith(FILES)]
        if not found:
            raise ConfigError(
                f"{key} must be a repository with a file of weights ({', '.join(_OF_HUB)}), but {url} has "
                f"{shorten_list(names)}. Hint: download one of its files, and set {key}=PATH."
            )
        url = hub.hf_hub_url(repository, found[0])
        if not cached:
            announce(url, hub.get_hf_file_metadata(url).size)
        with suppress(Exception):  # not every repository has one
            hub.hf_hub_download(repository, "config.json", local_files_only=bool(cached))
        path = Path(hub.hf_hub_download(repository, found[0], local_files_only=bool(cached)))
        config = path.with_name("config.json")
        return path, json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
    except ConfigError:
        raise
    except Exception as error:  # of httpx, of the hub, OSError or ValueError
        raise failed(key, weights, url, error, f"download a file of weights there, and set {key}=PATH") from error


def announce(url: str, num_bytes: int | None) -> None:
    """Print what is about to be downloaded, to standard error."""
    print_message(f"Downloading {url} ({f'{num_bytes / 1e6:.1f} MB' if num_bytes else 'unknown size'}).")


def announce_timm(config: Any) -> None:
    """Announce the download of timm's weights, unless a cache has them. config: their pretrained_cfg."""
    if not config.hf_hub_id:
        if not (hub_dir() / str(config.url).rpartition("/")[2]).is_file():
            announce(config.url, _size_of(config.url))
        return
    import huggingface_hub as hub

    names = (config.hf_hub_filename,) if config.hf_hub_filename else ("model.safetensors", "pytorch_model.bin")
    if any(isinstance(hub.try_to_load_from_cache(config.hf_hub_id, name), str) for name in names):
        return
    size, url = None, hub.hf_hub_url(config.hf_hub_id, names[0])
    with suppress(Exception):  # the download itself explains why it fails
        size = hub.get_hf_file_metadata(url).size
    announce(url, size)


def hub_dir() -> Path:
    """Return the folder in which torch.hub, torchvision and timm keep files: below TORCH_HOME if that is set."""
    return Path(torch.hub.get_dir()) / "checkpoints"


def _size_of(url: str) -> int | None:
    with (
        suppress(OSError, ValueError),
        urllib.request.urlopen(urllib.request.Request(url, method="HEAD"), timeout=10) as reply,
    ):
        return int(reply.headers["Content-Length"])
    return None


def failed(key: str, weights: str, url: str, error: Exception, hint: str) -> ConfigError:
    """Return the error of a download that failed. key, weights: the option that asked for it."""
    reason = first_line(error).rstrip(".") or type(error).__name__
    return ConfigError(f"{key}={weights} could not be downloaded from {url} ({reason}). Hint: {hint}.")


@contextmanager
def one_at_a_time(target: Path) -> Iterator[None]:
    """Let one process of this machine download while the others wait and then find the file. If no lock is available,
    for example on a read-only disk, the processes do not wait for each other."""
    with ExitStack() as stack:
        if not target.exists():
            with suppress(OSError):
                target.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context((target.parent / ".imagenet_ddp.lock").open("w"))
                fcntl.flock(file, fcntl.LOCK_EX)
        yield
