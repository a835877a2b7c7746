"""Compose many command lines in little time."""

import functools
import pickle

import pytest
from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, open_dict

from imagenet_ddp.cli.compose import Composer, apply
from imagenet_ddp.config import commands

_KEPT: dict[tuple[object, ...], bytes] = {}


def compose_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra reads the same files for each of a thousand command lines: here once for the same choices of groups,
    of files in conf/."""
    load = Composer._load

    def loaded(self: Composer, overrides: list[Override], mode: RunMode) -> DictConfig:
        lines = [str(override.input_line) for override in overrides]
        exists = functools.cache(self.loader.get_group_options)
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
    monkeypatch.setattr(commands, "register", functools.cache(commands.register))
