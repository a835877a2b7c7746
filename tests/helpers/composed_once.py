"""Compose many command lines quickly: each file of conf/ is parsed once, and each choice of files composed once."""

import functools
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Override
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from imagenet_ddp.cli.compose import Composer, apply
from imagenet_ddp.config.schema import commands

_KEPT: dict[tuple[object, ...], bytes] = {}
_PARSED: dict[tuple[object, ...], bytes] = {}
_register = functools.cache(commands.register)


def parse_files_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch Hydra, which parses the same twenty files for each command line, and copies all registered classes, to do
    so once while they are the same."""
    load = FileConfigSource.load_config

    def loaded(self: FileConfigSource, config_path: str) -> ConfigResult:
        file = (Path(self.path) / self._normalize_file_name(config_path)).resolve()
        if not file.is_file():
            return load(self, config_path)
        key = (self.provider, file, file.stat().st_mtime_ns, file.stat().st_size)
        if key not in _PARSED:
            _PARSED[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(_PARSED[key])

    monkeypatch.setattr(FileConfigSource, "load_config", loaded)
    monkeypatch.setattr(ConfigStore, "__deepcopy__", lambda self, memo: self, raising=False)
    monkeypatch.setattr(commands, "register", _register)


def compose_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patch Composer so that Hydra composes the files of conf/ once per choice of config groups; values are applied
    to a copy."""
    parse_files_once(monkeypatch)
    load = Composer._load
    list_options, listed = ConfigLoaderImpl.get_group_options, {}

    def options(
        self: ConfigLoaderImpl, group: str, *rest: Any, overrides: Sequence[str] = (), **more: Any
    ) -> list[str]:
        path = tuple(str(each.path) for each in self.get_search_path().get_path())
        key = (path, group, rest, tuple(overrides), *sorted(more.items()))
        if key not in listed:
            listed[key] = list_options(self, group, *rest, overrides=list(overrides), **more)
        return listed[key]

    def loaded(self: Composer, overrides: list[Override], mode: RunMode) -> DictConfig:
        lines = [str(override.input_line) for override in overrides]
        exists = self.loader.get_group_options
        choices = [o for o in overrides if "@" in str(o.input_line) or o.key_or_group == "hydra.searchpath"
                   or (exists(o.key_or_group) and not isinstance(o.value(), dict))]  # fmt: skip
        if len(self.loader.get_search_path().get_path()) > 3:
            return load(self, overrides, mode)
        key = (self.config_name, mode, *(str(o.input_line) for o in choices))
        if key not in _KEPT:
            _KEPT[key] = pickle.dumps(load(self, choices, mode))
        config = pickle.loads(_KEPT[key])
        values = [o for o in overrides if not any(o is choice for choice in choices)]
        for override in values:
            apply(override, config)
        with open_dict(config.hydra.overrides):
            config.hydra.overrides.hydra = [line for line in lines if line.startswith("hydra")]
        return config

    monkeypatch.setattr(Composer, "_load", loaded)
    monkeypatch.setattr(ConfigLoaderImpl, "get_group_options", options)
