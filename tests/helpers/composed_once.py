"""Compose many command lines quickly: each file of conf/ is parsed once, and each choice of files composed once."""

import functools
import hashlib
import os
import pickle
import re
import time
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig

# Not text that Hydra's grammar reads as a number, a truth value or null.
_RUN_DIR = re.compile(r"hydra\.run\.dir=(?!(?:true|false|null|nan|inf)$)/?[a-z_][\w./-]*", re.IGNORECASE | re.ASCII)
_KEPT: dict[str, bytes] = {}
_PARSED: dict[tuple[object, ...], bytes] = {}
_compose, _list_names = ConfigLoaderImpl.load_configuration, ConfigLoaderImpl.get_group_options


def parse_files_once() -> None:
    """Patch Hydra, which parses the same twenty files for each command line, and copies all registered classes several
    times, to parse a file once while it is the same, and to copy nothing."""
    Plugins.instance()  # loads the module of the class below once more
    from hydra._internal.core_plugins.file_config_source import FileConfigSource

    load = FileConfigSource.load_config

    def loaded(self: Any, config_path: str) -> ConfigResult:
        file = (Path(self.path) / self._normalize_file_name(config_path)).resolve()
        if not file.is_file():
            return load(self, config_path)
        key = (self.provider, file, file.stat().st_mtime_ns, file.stat().st_size)
        if key not in _PARSED:
            _PARSED[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(_PARSED[key])

    FileConfigSource.load_config = loaded
    ConfigStore.__deepcopy__ = lambda self, memo: self  # type: ignore[attr-defined]


def _has_own_files(loader: ConfigLoaderImpl) -> bool:
    return any(each.provider == "command-line" for each in loader.config_search_path.get_path())


def composed(
    self: ConfigLoaderImpl, config_name: str, overrides: list[str], run_mode: RunMode, *, folder: Path | None = None,
    **more: Any,
) -> DictConfig:  # fmt: skip
    """Compose the files of conf/ once per choice of files. folder: keeps the configs for other processes. more: of
    Hydra's own calls, which are left to it."""
    if more or _has_own_files(self):
        return _compose(self, config_name, overrides, run_mode, **more)
    # the run's folder is put in afterwards, because each test has its own
    run_dirs = [each for each in overrides if each.startswith("hydra.run.dir=")]
    run_dir = run_dirs[0] if len(run_dirs) == 1 and _RUN_DIR.fullmatch(run_dirs[0]) else None
    overrides = ["hydra.run.dir=any" if each == run_dir else each for each in overrides]
    words = repr((config_name, run_mode, *overrides)).encode(errors="surrogateescape")
    key = hashlib.sha256(words).hexdigest()
    if key not in _KEPT and folder is not None and (folder / key).exists():
        _KEPT[key] = (folder / key).read_bytes()
    if key not in _KEPT:
        _KEPT[key] = pickle.dumps(_compose(self, config_name, overrides, run_mode))
        if folder is not None:
            own = folder / f"{key}.{os.getpid()}.{time.monotonic_ns()}"
            own.write_bytes(_KEPT[key])
            own.rename(folder / key)
    config: DictConfig = pickle.loads(_KEPT[key])
    config.hydra.runtime.cwd = str(Path.cwd())  # another test may have composed it in its folder
    if run_dir is not None:
        config.hydra.run.dir, listed = run_dir.partition("=")[2], config.hydra.overrides.hydra
        config.hydra.overrides.hydra = [run_dir if each == "hydra.run.dir=any" else each for each in listed]
    return config


def compose_once(folder: Path | None) -> None:
    """Patch Hydra in this process so that it parses each file of conf/ once, and composes each choice of files once.
    folder: keeps the configs for other processes."""
    parse_files_once()
    kept: Any = functools.partialmethod(composed, folder=folder)
    listed: dict[tuple[object, ...], list[str]] = {}

    def names(self: ConfigLoaderImpl, group_name: str, **more: Any) -> list[str]:
        if _has_own_files(self):
            return _list_names(self, group_name, **more)
        key = (group_name, *more.items())
        if key not in listed:
            listed[key] = _list_names(self, group_name, **more)
        return listed[key]

    ConfigLoaderImpl.load_configuration = kept
    ConfigLoaderImpl.get_group_options = names  # type: ignore[method-assign]
