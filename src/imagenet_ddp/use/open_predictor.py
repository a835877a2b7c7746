"""Open a checkpoint or an exported file to predict with it. Imports torch only then."""

from pathlib import Path
from typing import TYPE_CHECKING

from imagenet_ddp.cli.overrides import quoted, shell_line
from imagenet_ddp.config.schema.run import TrainedConfig
from imagenet_ddp.exported.formats.registry import graph_format
from imagenet_ddp.launch.stored_config import checkpoint_path
from imagenet_ddp.runs.checkpoint_store import CheckpointStore
from imagenet_ddp.runs.folder import is_being_trained
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.process import import_torch

if TYPE_CHECKING:
    from imagenet_ddp.use.predictor import Predictor


def open_predictor(config: TrainedConfig, *, keep_features: bool = False) -> "Predictor":
    """Open a checkpoint or an exported file. config: result of resolved_config. keep_features: of a checkpoint, return
    the features of images, too. Raises ConfigError for any other
    file."""
    with import_torch():
        from imagenet_ddp.launch.trained_model import load
        from imagenet_ddp.use.exported_predictor import open_exported
        from imagenet_ddp.use.predictor import find_reference, load_net, make_predictor

    path = checkpoint_path(config)
    if path is not None and graph_format(path):
        return open_exported(path, config.data.decoder)
    trained = load(config, path)
    for note in trained.notes:
        print_message(note)
    net = load_net(config, trained)
    reference, reason = find_reference(config, trained, net, path)
    if reason and not is_being_trained(Path(trained.origin)):  # its end computes what is missing
        print_message(without_reference(trained.origin, reason))
    return make_predictor(config, trained, net, reference=reference, keep_features=keep_features)


def without_reference(origin: str, reason: str, then: str = "") -> str:
    """Return what it means that a net has no reference of its training images. origin: of its weights. reason: why.
    then: what to type after the command that makes one."""
    run = CheckpointStore.run_dir_of(Path(origin)) or origin
    line = shell_line("features", [quoted(f"checkpoint={run}")])
    return (
        "Each image gets a class, also one of something else. Hint: to tell images that are unlike the training "
        f"images, run `{line}` once ({reason}){then}."
    )
