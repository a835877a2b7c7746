"""What the tests of command lines share."""

import functools
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from hydra._internal.core_plugins.file_config_source import FileConfigSource
from hydra.core.config_store import ConfigStore
from hydra.plugins.config_source import ConfigResult

from imagenet_ddp.config.schema import commands
from imagenet_ddp.distributed import nvidia_gpus


@pytest.fixture(scope="session", autouse=True)
def _files_parsed_once() -> Iterator[None]:
    """Hydra parses the same twenty files for each of a thousand command lines, and copies all registered classes: here
    once while they are the same."""
    load, kept = FileConfigSource.load_config, {}

    def loaded(self: FileConfigSource, config_path: str) -> ConfigResult:
        file = (Path(self.path) / self._normalize_file_name(config_path)).resolve()
        if not file.is_file():
            return load(self, config_path)
        key = (self.provider, file, file.stat().st_mtime_ns, file.stat().st_size)
        if key not in kept:
            kept[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(kept[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileConfigSource, "load_config", loaded)
        patch.setattr(ConfigStore, "__deepcopy__", lambda self, memo: self, raising=False)
        patch.setattr(commands, "register", functools.cache(commands.register))
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with images of two classes and a checkpoint, on a machine without a GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(nvidia_gpus, "GPU_PATHS", ())
    monkeypatch.setattr(nvidia_gpus.sys, "platform", "linux")
    for split, name in (("train", "cat"), ("train", "dog"), ("val", "cat"), ("val", "dog")):
        (tmp_path / "pets" / split / name).mkdir(parents=True)
        (tmp_path / "pets" / split / name / "1.jpg").touch()
    (tmp_path / "x.ckpt").touch()
    return tmp_path
