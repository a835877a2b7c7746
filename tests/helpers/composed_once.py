"""Compose many command lines quickly: each file of conf/ is parsed once, and each choice of files composed once."""

import functools
import pickle
from collections.abc import Sequence
from pathlib import Path

import pytest
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_store import ConfigStore
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig

from imagenet_ddp.cli.files import Files
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
    """Patch Files so that Hydra composes the files of conf/ once per choice of files."""
    parse_files_once(monkeypatch)
    compose, list_names, listed = Files.compose, Files.names, dict[tuple[object, ...], list[str]]()

    def names(self: Files, group: str) -> list[str]:
        key = (self.own_folder, self.config_name, group)
        if key not in listed:
            listed[key] = list_names(self, group)
        return listed[key]

    def composed(self: Files, lines: Sequence[str], mode: RunMode = RunMode.RUN) -> DictConfig:
        if self.own_folder is not None:
            return compose(self, lines, mode)
        key = (self.config_name, mode, *lines)
        if key not in _KEPT:
            _KEPT[key] = pickle.dumps(compose(self, lines, mode))
        config: DictConfig = pickle.loads(_KEPT[key])
        config.hydra.runtime.cwd = str(Path.cwd())  # another test may have composed it in its folder
        return config

    monkeypatch.setattr(Files, "compose", composed)
    monkeypatch.setattr(Files, "names", names)
