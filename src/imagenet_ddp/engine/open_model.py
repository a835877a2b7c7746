"""Open the model for predict and demo, which is a checkpoint of train or a file written by export. Import torch only
when it is needed."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from imagenet_ddp.cli import parse
from imagenet_ddp.cli.overrides import typed_config
from imagenet_ddp.config.schema.commands import COMMANDS, CommonConfig
from imagenet_ddp.engine.stored_config import checkpoint_path, from_checkpoint
from imagenet_ddp.export.formats.registry import graph_format
from imagenet_ddp.system.console import print_message
from imagenet_ddp.system.heavy_imports import import_torch

if TYPE_CHECKING:
    from imagenet_ddp.engine.predictor import Predictor


def resolved_config(request: parse.Request, environ: Mapping[str, str]) -> CommonConfig:
    """Return the config of the checkpoint, overridden by the typed options. For an exported file, return the typed
    config unchanged."""
    checkpoint = checkpoint_path(request.configs[0])
    if graph_format(checkpoint):
        return typed_config(request.configs[0], COMMANDS[request.verb])
    return from_checkpoint(request, checkpoint, environ)


def open_predictor(config: CommonConfig) -> "Predictor":
    """Open a checkpoint or an exported file. config: result of resolved_config. Raises ConfigError for any other
    file."""
    with import_torch():
        from imagenet_ddp.engine import exported
        from imagenet_ddp.engine.predictor import load_net, make_predictor
        from imagenet_ddp.engine.trained_model import load

    path = checkpoint_path(config)
    if path is not None and graph_format(path):
        return exported.make_predictor(path, config["data"]["decoder"])
    trained = load(config, path)
    for note in trained.notes:
        print_message(note)
    return make_predictor(config, trained, load_net(config, trained))
