"""Find mistakes in the options of net, optimizer, schedule and loss. No torch."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from imagenet_ddp.config.keys import validate_group
from imagenet_ddp.config.validators import choice, expect, integer, shown
from imagenet_ddp.models.torchvision_names import CLASSIFIERS


def validate(config: Mapping[str, Any], environ: Mapping[str, str], *, partial: bool = False) -> list[str]:
    """Return a sentence for each mistake. partial: a checkpoint fills in the rest, so check each key alone."""
    found: list[str] = []
    model, optim, schedule = config["model"], config["optim"], config["schedule"]
    if not model["_target_"] and model["name"] not in CLASSIFIERS:
        close = get_close_matches(str(model["name"]).lower(), CLASSIFIERS, 3)
        hint = f"did you mean model.name={' or '.join(close)}?" if close else "model.name=resnet18."
        found.append(
            "model.name must be a classifier of torchvision.models, or model._target_ your own net, "
            f"got {model['name']}. Hint: {hint}"
        )
    if not optim["_target_"]:
        found += expect(
            "optim.name", optim["name"], choice("sgd", "adamw"), "optim.name=sgd, or optim._target_=torch.optim.Adam"
        )
    for group in ("optim", "schedule", "loss"):
        found += validate_group(group, config[group])
    if partial:
        return found
    if optim["nesterov"] and optim["momentum"] == 0 and not optim["_target_"] and optim["name"] == "sgd":
        found.append("optim.nesterov=true needs a momentum > 0, but optim.momentum is 0. Hint: set optim.momentum=0.9.")
    max_epochs = config["trainer"].get("max_epochs")
    if not integer(1).accepts(max_epochs) and schedule["name"] in ("cosine", "linear") and max_epochs in (-1, None):
        found.append(
            f"schedule.name={schedule['name']} needs to know the last epoch, but trainer.max_epochs "
            f"is {shown(max_epochs)}. Hint: set trainer.max_epochs=90, or schedule.name=constant."
        )
    return found
