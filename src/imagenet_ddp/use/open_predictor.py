"""Open a checkpoint or an exported file to predict with it. Imports torch only then."""

from typing import TYPE_CHECKING

from imagenet_ddp.config.schema.commands import TrainedConfig
from imagenet_ddp.exported.formats import graph_format
from imagenet_ddp.launch.stored_config import checkpoint_path
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.process import import_torch

if TYPE_CHECKING:
    from imagenet_ddp.use.predictor import Predictor


def open_predictor(config: TrainedConfig) -> "Predictor":
    """Open a checkpoint or an exported file. config: result of resolved_config. Raises ConfigError for any other
    file."""
    with import_torch():
        from imagenet_ddp.launch.trained_model import load
        from imagenet_ddp.use.predictor import load_net, make_predictor, open_exported

    path = checkpoint_path(config)
    if path is not None and graph_format(path):
        return open_exported(path, config.data.decoder)
    trained = load(config, path)
    for note in trained.notes:
        print_message(note)
    return make_predictor(config, trained, load_net(config, trained))
