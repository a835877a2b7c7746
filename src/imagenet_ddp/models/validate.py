"""Find mistakes in the options of net, optimiser, schedule and loss. No torch."""

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from imagenet_ddp.config.validators import AUTO, NULL, Kind, choice, expect, number, shown, whole
from imagenet_ddp.models.torchvision_names import CLASSIFIERS

# Key -> what it may be, and an example for the hint.
KINDS: dict[str, tuple[Kind, str]] = {
    "optim.lr": (number(above=0), "0.1"),
    "optim.reference_batch": (whole(1) | NULL, "null"),
    "optim.momentum": (number(least=0, below=1), "0.9"),
    "optim.weight_decay": (number(least=0), "1e-4"),
    "schedule.name": (choice("step", "cosine", "linear", "constant"), "step"),
    "schedule.step_epochs": (whole(1), "30"),
    "schedule.gamma": (number(above=0), "0.1"),
    "schedule.warmup_epochs": (AUTO | number(least=0), "auto"),
    "schedule.final_fraction": (number(0, 1), "0"),
    "loss.name": (choice("cross_entropy"), "cross_entropy"),
    "loss.label_smoothing": (number(least=0, below=1), "0.1"),
}


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
    for key, (kind, example) in KINDS.items():
        node, name = key.split(".")
        found += expect(key, config[node][name], kind, f"{key}={example}")
    if partial:
        return found
    if optim["nesterov"] and optim["momentum"] == 0 and not optim["_target_"] and optim["name"] == "sgd":
        found.append("optim.nesterov=true needs a momentum > 0, but optim.momentum is 0. Hint: set optim.momentum=0.9.")
    max_epochs = config["trainer"].get("max_epochs")
    if not whole(1).accepts(max_epochs) and schedule["name"] in ("cosine", "linear") and max_epochs in (-1, None):
        found.append(
            f"schedule.name={schedule['name']} needs to know the last epoch, but trainer.max_epochs "
            f"is {shown(max_epochs)}. Hint: set trainer.max_epochs=90, or schedule.name=constant."
        )
    return found
