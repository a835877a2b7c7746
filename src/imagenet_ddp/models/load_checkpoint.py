"""Read what ImageClassifier.load_from_checkpoint needs out of a checkpoint."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from imagenet_ddp.config.schema.learning import ModelConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.config.stored import own_part
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.choose_task import TASKS
from imagenet_ddp.models.factory import create_model, of_size
from imagenet_ddp.models.task import Task


def read_module(path: str | Path, map_location: Any, net: nn.Module | None) -> tuple[nn.Module, list[str], Task, Any]:
    """Return (the net with random weights, the names of the classes, the task, the module's state) of a checkpoint. No
    code is run from the file. net: used in place of that of the checkpoint, and required if that is one of the user's
    own. Raises ConfigError if the file is not a checkpoint of this program."""
    stored = torch.load(path, map_location, weights_only=True)
    contents = own_part(stored, str(path))
    classes = list(contents["classes"])
    model = to_config(contents["config"]["model"], ModelConfig)
    if net is None and model.target:
        raise ConfigError(
            f"load_from_checkpoint must get net=, because {path} has the weights of {model.target}. "
            f"Hint: pass net={model.target.rpartition('.')[2]}({len(classes)})."
        )
    if net is None:
        with of_size(model, stored["state_dict"], str(path)):
            net = create_model(model, len(classes), image_size=contents["config"]["data"]["image_size"])
    task = TASKS[contents["config"]["data"].get("labels", "one")](len(classes))
    return net, classes, task, stored["state_dict"]


def no_optimizer(_: Any) -> torch.optim.Optimizer:
    """Stand in for the make_optimizer that a module needs only to be trained."""
    raise ConfigError("make_optimizer must be a function to train this module, got none. Hint: pass make_optimizer=.")
