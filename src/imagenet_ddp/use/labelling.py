"""The lines that give images a class, and train on them: what follows predictions of a net of class folders."""

import os
from collections.abc import Sequence
from pathlib import Path

from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.cli.photograph_lines import train_line
from imagenet_ddp.config.schema.data import DataConfig, FolderData
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.curation.decision_lists import DECISIONS
from imagenet_ddp.data.sources.registry import implied

_PLACE = ("train_dir", "val_dir", "val_fraction")  # keys that say where the class folders are


def can_label(data: DataConfig) -> bool:
    """Return whether images can be moved into the class folders of the data."""
    return isinstance(data, FolderData) and data.labels == "one" and bool(data.root) and Path(data.root).is_dir()


def decisions_of(config: PredictConfig) -> str:
    """Return the file beside the page, in whose folder what is chosen on it is put."""
    return str(Path(config.out).with_name(DECISIONS)) if config.out else DECISIONS


def relabel_line(config: PredictConfig, paths: Sequence[str], decisions: str) -> str:
    """Return the line that moves images into the class folders. paths: of these images. decisions: file."""
    folder = config.images
    if not Path(folder).is_dir():
        folder = os.path.commonpath([Path(each).parent for each in paths]) or "."
    options = [*data_options(config.data), f"unlabelled={folder}", f"decisions={decisions}"]
    return shell_line("prepare", ["prepare=relabel", *map(quoted, options)])


def train_again_line(config: PredictConfig, net: Path) -> str:
    """Return the line that trains the net on the images that it was trained on and on those that were moved there. net:
    its run folder or checkpoint."""
    return train_line(*map(quoted, [*data_options(config.data), f"model.weights={net}"]))


def data_options(data: DataConfig) -> list[str]:
    """Return the options that name the class folders."""
    bare = DataConfig.of(name=data.name, root=data.root)
    own, usual, found = ({key: each[key] for key in _PLACE} for each in (data, bare, {**bare, **implied(bare)}))
    more = [] if own == found else [f"data.{key}={value}" for key, value in own.items() if value != usual[key]]
    kinds = [f"data={data.name}"] if data.name != "imagefolder" else []
    return [*kinds, f"data.root={data.root}", *more]
