"""Find the config files that options choose, and let Hydra compose them. Does not import torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra import initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from imagenet_ddp.config import conf_dir
from imagenet_ddp.runs.signals import hold_signals


class Files:
    """The config files of one command: those of conf/, then those of --config-dir. Of two files of one name, Hydra
    reads that of conf/."""

    @hold_signals()
    def __init__(self, verb: str, config_name: str, config_dir: str | None):
        self.config_name = config_name
        self.own_folder = Path(config_dir).absolute() if config_dir is not None else None
        state = GlobalHydra.instance()
        outer, state.hydra = state.hydra, None  # a job of a sweep is read within hydra.main
        try:
            with initialize_config_dir(str(conf_dir()), job_name=verb, version_base="1.3"):
                hydra: Any = state.hydra
                loader: ConfigLoader = hydra.config_loader
        finally:
            state.hydra = outer
        if self.own_folder is not None:
            search_path = loader.get_search_path()
            path, before_schema = f"file://{self.own_folder}", SearchPathQuery(provider="schema")
            search_path.prepend(provider="command-line", path=path, anchor=before_schema)  # as Hydra itself does
            loader = type(hydra.config_loader)(search_path)  # opens its search path when it is made
        self.loader = loader
        self._names: dict[str, list[str]] = {}

    def names(self, group: str) -> list[str]:
        """Return the choices of a group; [] if the key is not a group."""
        if group not in self._names:  # Hydra looks at every file again, which takes 30 ms
            self._names[group] = self.loader.get_group_options(group, config_name=self.config_name)
        return self._names[group]

    @hold_signals()
    def compose(self, lines: Sequence[str], mode: RunMode = RunMode.RUN) -> DictConfig:
        """Return the config that Hydra composes of the files. lines: options that choose files, and those of hydra.*,
        in Hydra's grammar. Raises any exception of Hydra, OmegaConf or YAML."""
        return self.loader.load_configuration(self.config_name, list(lines), mode)

    def content(self, group: str, name: str) -> Mapping[str, Any]:
        """Return the values in a file, without its list of defaults; {} if there is no such file."""
        path = f"{group}/{name}"
        for source in self.loader.get_sources():
            if source.available() and source.is_config(path):
                content: Any = OmegaConf.to_container(source.load_config(path).config, resolve=False)
                return {key: value for key, value in (content or {}).items() if key != "defaults"}
        return {}
