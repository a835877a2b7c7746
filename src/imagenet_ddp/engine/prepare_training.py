"""Prepare the pretrained weights, the teacher, the frozen layers and the weight averaging of a training run."""

import lightning.pytorch as L

from imagenet_ddp.callbacks.frozen_layers import FrozenLayers, has_statistics
from imagenet_ddp.callbacks.weight_average import WeightAverage
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.head import head_names, is_in_head
from imagenet_ddp.models.lightning_module import ImageClassifier
from imagenet_ddp.models.pretrained import load_weights_into, read_weights
from imagenet_ddp.models.teacher import make_teacher


def prepare_training(
    plan: Plan, module: ImageClassifier, classes: list[str], *, resumed: bool
) -> tuple[list[L.Callback], list[str]]:
    """Load pretrained weights (unless the training is resumed) and a teacher, and freeze layers that are never trained.
    Return the callbacks for model.freeze, model.batch_norm and averaging.*, and log messages on what was done. Raises
    ConfigError if model.freeze is set for a net without a suitable last layer."""
    config, model = plan.config, plan.config["model"]
    heads, messages = head_names(module.net, len(classes)), []
    callbacks: list[L.Callback] = []
    if model["weights"] and not resumed:
        weights = read_weights("model.weights", model["weights"], model["library"], model["name"])
        messages.append(load_weights_into(module.net, weights, heads, classes)[0])
    module.teacher, sentence = make_teacher(config, classes, plan.mean.value, plan.std.value)
    messages += [sentence] if sentence else []
    if model["freeze"]:
        if not heads:
            raise ConfigError(
                f"model.freeze=backbone requires a last layer with {len(classes)} outputs, but this net has none. "
                "Hint: set model.freeze=null."
            )
        if model["unfreeze_epoch"] is None:  # else the optimizer and DistributedDataParallel need all parameters
            for name, parameter in module.net.named_parameters():
                parameter.requires_grad_(is_in_head(name, heads))
        until = f"until epoch {model['unfreeze_epoch'] + 1}" if model["unfreeze_epoch"] else "throughout"
        messages.append(f"All layers except {' and '.join(heads)} are frozen {until}.")
    keeps_statistics = model["batch_norm"] == "frozen" and any(map(has_statistics, module.net.modules()))
    if keeps_statistics:
        messages.append("Batch norm uses and keeps its stored statistics throughout.")
    if model["freeze"] or keeps_statistics:
        frozen = heads if model["freeze"] else None
        callbacks.append(FrozenLayers(frozen, model["unfreeze_epoch"], batch_norm=keeps_statistics))
    averaging = config["averaging"]
    if averaging["name"] != "none":
        decay = averaging["decay"] if averaging["name"] == "ema" else None
        callbacks.append(WeightAverage(decay, averaging["every_n_steps"], plan.averaging_start_epoch))
    return callbacks, messages
