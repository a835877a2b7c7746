"""Find pretrained weights of a library, the hub or a file."""

import argparse
import importlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torchvision  # pyright: ignore[reportMissingTypeStubs]
from torch import Tensor

from imagenet_ddp.config.paths import HUB, is_file, is_remote
from imagenet_ddp.config.schema.stated import wrong_facts
from imagenet_ddp.config.validators import is_mapping
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.mistakes import Mistake, meant, must_be, setting
from imagenet_ddp.models.check_nets import CLASSIFIERS, no_file_of_weights
from imagenet_ddp.models.factory import import_timm, timm_name
from imagenet_ddp.models.timm_names import is_of_timm
from imagenet_ddp.models.weights import facts as weight_facts
from imagenet_ddp.models.weights.download import from_url
from imagenet_ddp.models.weights.facts import Facts
from imagenet_ddp.models.weights.hub import from_hub, from_timm
from imagenet_ddp.system.files import begins_as_zip, expand_home, zip_damage
from imagenet_ddp.system.nonfinite import is_endless, not_stored
from imagenet_ddp.system.packages import missing_package
from imagenet_ddp.system.text import first_line, load_error, shorten_list

# Keys under which files store their weights. The averages come first, because they are what other programs validate. A
# teacher is an average beside a student, but another net beside a model.
PARTS = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "state_dict", "model_state_dict", "model", "net",
         "teacher", "student")  # fmt: skip


@dataclass
class Weights:
    """Pretrained weights, on the disk of this machine.

    origin: a description of their source. read: returns the tensors. contents: this project's part of a checkpoint.
    """

    origin: str
    read: Callable[[], Mapping[str, Tensor]]
    facts: Facts = field(default_factory=Facts)
    contents: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @cached_property
    def tensors(self) -> Mapping[str, Tensor]:
        """The tensors by name, which are read when they are first used: the facts are needed earlier, and elsewhere."""
        return self.read()


def find_weights(key: str, weights: str, library: str, name: str) -> Weights:
    """Find pretrained weights. Those of a library, the hub or a URL are downloaded once per machine.

    key: the option that names the weights, for messages. weights: DEFAULT, a name of weights in the library, hf://, a
    URL, or a file written by this project, pytorch/examples, torchvision's reference scripts, timm or safetensors.
    library: "" for a net of the user's own. Raises ConfigError if the weights are not available.
    """
    option = f"{key}={weights}"
    if weights.startswith(HUB):
        path, config = from_hub(option, weights.removeprefix(HUB).strip("/"))
        found = _of_file(key, path, library, name, weights)
        own: Any = config.get("pretrained_cfg")
        if library == "timm" and is_mapping(own) and not found.contents:
            of_file = {"num_classes": config.get("num_classes"), "label_names": config.get("label_names"), **own}
            try:
                found = replace(found, facts=weight_facts.of_timm(name, None, of_file, weights))
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
                what = f"config.json of {weights} must be one of timm's, but is not ({first_line(error)})"
                raise ConfigError(Mistake(what, (key,), hint=f"download the weights, and set {key}=FILE")) from error
        return found
    if is_file(weights):
        path = from_url(option, weights) if is_remote(weights) else expand_home(weights)
        return _of_file(key, path, library, name, str(path))
    return _of_timm(key, weights, name) if library == "timm" else _of_torchvision(key, weights, name)


def net_of_file(path: Path) -> list[str] | None:
    """Return the options of the net whose weights a file of another program holds, as far as it names one; None if it
    holds none."""
    try:
        stored = _content(path)
    except Exception:  # as in _of_file
        return None
    if is_endless(stored) or not _tensors(stored):
        return None
    name = stored.get("arch")  # of pytorch/examples and timm
    if not isinstance(name, str) or not (name in CLASSIFIERS or is_of_timm(name)):
        return []
    return [f"model.name={name}", *([] if name in CLASSIFIERS else ["model.library=timm"])]


def _of_file(key: str, path: Path, library: str, name: str, origin: str) -> Weights:
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise _unreadable(key, path, "it is not a regular file")
    if path.suffix == ".safetensors" and (missing := missing_package(f"{key}={path}", "safetensors")):
        raise ConfigError(missing)
    try:
        stored = _content(path)
    except FileNotFoundError:
        raise ConfigError(no_file_of_weights(key, path, has_library=bool(library))) from None
    except Exception as error:  # zip, pickle, EOF or runtime errors, depending on the contents of the file
        raise _unreadable(key, path, load_error(error)) from error
    if is_endless(stored):
        raise _unreadable(key, path, "its parts contain one another without end")
    tensors = _tensors(stored)
    if lost := not_stored(tensors):
        raise _unreadable(key, path, f"the numbers of {lost} are not stored in it")

    def read() -> Mapping[str, Tensor]:
        if begins_as_zip(path) and (reason := zip_damage(path)):
            raise _unreadable(key, path, reason)
        return tensors

    stated: Mapping[str, Any] = stored if is_mapping(stored) else {}
    if weight_facts.states_use(stated) and (wrong := wrong_facts(stated[weight_facts.KEY])):
        raise _unreadable(key, path, f"it must be a file whose {wrong[0]}")
    facts = weight_facts.of_file(stated, library, name, origin)
    return Weights(origin, read, facts, stated.get(weight_facts.KEY, {}))


def _content(path: Path) -> Any:
    """Return the content of a file. Its tensors stay on the disk until they are used, except in torch's old format."""
    if path.suffix == ".safetensors":
        safetensors: Any = importlib.import_module("safetensors")
        with safetensors.safe_open(path, "pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            tensors = {each: file.get_tensor(each) for each in file.keys()}  # noqa: SIM118, it is no mapping
            text = metadata.get(weight_facts.KEY)  # written by export
            return tensors | ({weight_facts.KEY: json.loads(text)} if text else {})
    # torchvision's reference scripts store their command line as a Namespace, which runs no code
    with torch.serialization.safe_globals([argparse.Namespace]):
        return torch.load(path, map_location="cpu", weights_only=True, mmap=begins_as_zip(path))


def _unreadable(key: str, path: Path | str, reason: str) -> ConfigError:
    return ConfigError(
        f"{key} must be a file written by torch.save or safetensors, but {path} cannot be read ({reason}). "
        "Hint: write it by torch.save(net.state_dict(), FILE); if it was downloaded, delete it and download it again."
    )


def _tensors(stored: Any) -> dict[str, Tensor]:
    """Return name -> tensor from the contents of a file, in any of the forms in which programs save weights."""
    if not is_mapping(stored):
        return {}
    for part in PARTS:
        if found := _tensors(stored.get(part)):
            return found
    own = {name: value for name, value in stored.items() if isinstance(value, Tensor) and isinstance(name, str)}
    # under any other key, the most tensors are the net's
    return own or max((_tensors(value) for value in stored.values()), key=len, default=own)


def _of_torchvision(key: str, weights: str, name: str) -> Weights:
    kinds: Any = torchvision.models.get_model_weights(name)  # pyright: ignore[reportUnknownMemberType]
    try:
        entry = kinds[weights]
    except KeyError:
        allowed = f"a file, or one of torchvision's weights for {name} ({', '.join(kinds.__members__)})"
        near = next((each for each in kinds.__members__ if each.lower() == weights.lower()), "")
        fix = meant(f"{key}={near}") if near else setting(f"{key}=DEFAULT")
        raise ConfigError(must_be(key, allowed, weights, fix)) from None
    file = entry.url.rpartition("/")[2]
    digest = re.search(r"-([0-9a-f]+)\.", file)  # resnet18-f37072fd.pth
    path = from_url(f"{key}={weights}", entry.url, file, digest and digest[1])
    facts = weight_facts.of_torchvision(name, entry)
    return replace(_of_file(key, path, "", name, ""), origin=facts.origin, facts=facts)


def _of_timm(key: str, weights: str, name: str) -> Weights:
    timm = import_timm(f"{key}={weights}")
    full_name = timm_name(name, weights)
    try:
        config = timm.get_pretrained_cfg(full_name)
    except RuntimeError:  # no such tag
        config = None
    if config is None or not config.has_weights:
        tags = [each.partition(".")[2] for each in timm.list_pretrained(f"{name.partition('.')[0]}.*")]
        known = f", or one of timm's weights for {name} ({shorten_list(tags, 8)})"
        why = known if tags else f", because timm publishes no weights for {name}"
        raise ConfigError(must_be(key, f"a file{why}", weights, setting(f"{key}={tags[0] if tags else 'PATH'}")))
    path = from_timm(f"{key}={weights}", config)

    def read() -> Mapping[str, Tensor]:
        try:
            return timm.create_model(full_name, pretrained=True).state_dict()
        except Exception as error:  # of torch, safetensors or the hub
            raise _unreadable(key, path or full_name, load_error(error)) from error

    return Weights(f"timm's {full_name}", read, weight_facts.of_timm(name, weights))
