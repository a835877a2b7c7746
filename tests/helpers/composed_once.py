"""Compose many command lines quickly: each file of conf/ is parsed once, and each choice of files composed once."""

import functools
import pickle
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_store import ConfigStore
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig

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
    """Patch Hydra so that it composes the files of conf/ once per choice of files."""
    parse_files_once(monkeypatch)
    compose, list_names = ConfigLoaderImpl.load_configuration, ConfigLoaderImpl.get_group_options
    listed: dict[tuple[object, ...], list[str]] = {}

    def has_own_files(self: ConfigLoaderImpl) -> bool:
        return any(each.provider == "command-line" for each in self.config_search_path.get_path())

    def names(self: ConfigLoaderImpl, group_name: str, **more: Any) -> list[str]:
        if has_own_files(self):
            return list_names(self, group_name, **more)
        key = (group_name, *more.items())
        if key not in listed:
            listed[key] = list_names(self, group_name, **more)
        return listed[key]

    def composed(self: ConfigLoaderImpl, config_name: str, lines: list[str], mode: RunMode) -> DictConfig:
        if has_own_files(self):
            return compose(self, config_name, lines, mode)
        key = (config_name, mode, *lines)
        if key not in _KEPT:
            _KEPT[key] = pickle.dumps(compose(self, config_name, lines, mode))
        config: DictConfig = pickle.loads(_KEPT[key])
        config.hydra.runtime.cwd = str(Path.cwd())  # another test may have composed it in its folder
        return config

    monkeypatch.setattr(ConfigLoaderImpl, "load_configuration", composed)
    monkeypatch.setattr(ConfigLoaderImpl, "get_group_options", names)
