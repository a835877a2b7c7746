"""Read and write repositories of the Hugging Face hub. huggingface_hub does the transfer, and finds the address of the
hub (HF_ENDPOINT) and the token (HF_TOKEN, or `hf auth login`).

Does not import torch, because a command line is checked before.
"""

import importlib
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from imagenet_ddp.config.paths import FILES, HUB
from imagenet_ddp.errors import ConfigError, RunError, causes
from imagenet_ddp.mistakes import Mistake
from imagenet_ddp.models.weights.download import announce, failed, from_url, no_internet
from imagenet_ddp.system.bounded_wait import call_bounded
from imagenet_ddp.system.files import read_mapping
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import first_line, shorten_list

# Names under which libraries put weights into a repository of the hub, best first.
_OF_HUB = ("model.safetensors", "pytorch_model.bin", "pytorch_model.pt", "model.pth", "model.pt")
PUSH_S = 600.0  # longest time of a push, and longer for many bytes:
LEAST_BYTES_PER_S = 50e3


def from_hub(option: str, repository: str, names: tuple[str, ...] = _OF_HUB) -> tuple[Path, Mapping[str, Any]]:
    """Return (the path of a file of a repository's weights, its config.json or {}), downloaded unless the hub's cache
    has them. Raises ConfigError if the repository has no such file.

    option: key=value of the option that asks for it. names: of the file, best first.
    """
    key = option.partition("=")[0]
    if missing := missing_package(option, "huggingface_hub"):
        raise ConfigError(missing)
    hub = _client()
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
            announce(url, hub.get_hf_file_metadata(url).size)
        with suppress(Exception):  # not every repository has one
            hub.hf_hub_download(repository, "config.json", local_files_only=bool(cached))
        path = Path(hub.hf_hub_download(repository, found[0], local_files_only=bool(cached)))
        return path, read_mapping(path.with_name("config.json"))
    except ConfigError:
        raise
    except Exception as error:  # of httpx, of the hub, OSError or ValueError
        what = "that file" if "/resolve/" in url else f"its {names[0]}"  # a repository's page, or a file of it
        raise failed(option, url, no_internet(error, url) or _reason(error), what) from None  # may have the token


def from_timm(option: str, config: Any) -> Path | None:
    """Download the weights of timm to where timm looks for them, and return that path. config: their pretrained_cfg."""
    if config.hf_hub_id:
        names = (config.hf_hub_filename,) if config.hf_hub_filename else _OF_HUB
        return from_hub(option, config.hf_hub_id, names)[0]
    return from_url(option, config.url, config.url.rpartition("/")[2]) if config.url else None


def check_push() -> list[Mistake]:
    """Return the mistake that nothing can be pushed from this machine, as far as it is known without a network."""
    if missing := missing_package("push", "huggingface_hub"):
        return missing
    with suppress(Exception):  # of a token that a service issues, which is told apart where it is used
        if not _client().get_token():
            what = "push needs a token that may write to the hub, but neither HF_TOKEN nor `hf auth login` has set one"
            return [Mistake(what, ("push",), hint="run `hf auth login`, or set the environment variable HF_TOKEN")]
    return []


def push(folder: Path, names: Sequence[str], repository: str) -> str:
    """Upload files of a folder in one commit, and return the address of the repository, which is made if it does not
    exist: a private one, because what was published once cannot be taken back. Raises RunError.

    repository: OWNER/NAME.
    """
    hub = _client()
    url, num_bytes = f"{hub.constants.ENDPOINT}/{repository}", sum((folder / name).stat().st_size for name in names)
    hub.utils.disable_progress_bars()

    def upload() -> None:
        hub.create_repo(repository, private=True, exist_ok=True)
        message = "Upload of imagenet_ddp.export"
        hub.upload_folder(repo_id=repository, folder_path=folder, allow_patterns=[*names], commit_message=message)

    try:
        limit_s = PUSH_S + num_bytes / LEAST_BYTES_PER_S
        call_bounded(upload, limit_s, f"Pushing {num_bytes / 1e6:.1f} MB to {url}")
    except Exception as error:  # of httpx, of the hub, OSError or ValueError
        raise RunError(f"{HUB}{repository} must be pushed to {url}, but was not ({_reason(error)})") from None
    return url


def _client() -> Any:
    return importlib.import_module("huggingface_hub")


def _reason(error: Exception) -> str:
    """Return why a transfer failed, without the token, which httpx quotes if no header can have it."""
    texts = [first_line(each).rstrip(".:") for each in causes(error)]
    answer = getattr(error, "server_message", None)  # of the hub
    reason = ": ".join(dict.fromkeys([texts[0], *([str(answer)] if answer else []), texts[-1]]))
    reason = re.sub(r"Bearer\b.*", "Bearer TOKEN", reason, flags=re.DOTALL)
    with suppress(Exception):
        reason = reason.replace(_client().get_token() or "\0", "TOKEN")
    return reason
