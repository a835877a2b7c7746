"""Describe a net and its preprocessing in timm's form, config.json of a repository of the hub, as far as timm has the
net and can express the preprocessing."""

import math
import re
from collections.abc import Mapping
from typing import Any

from imagenet_ddp.data.transforms import EvalTransform
from imagenet_ddp.models.factory import import_timm

# Nets of torchvision that timm has under the same name, with the same layers under the same names.
_SAME_IN_TIMM = re.compile(r"resnet\d+|resnext\d+_\d+x\d+d|wide_resnet\d+_2|densenet\d+")
_RESNET = {"first_conv": "conv1", "classifier": "fc"}
_DENSENET = {"first_conv": "features.conv0", "classifier": "classifier"}
# What timm's settings of a net say about its layers; all others are about timm's own weights of it.
_OF_LAYERS = ("first_conv", "classifier", "fixed_input_size", "min_input_size")
_CROP_MODES = {"crop": "center", "pad": "border", "squash": "squash"}


def architecture(model: Mapping[str, Any]) -> str | None:
    """Return timm's name of the net that has these weights and the same outputs; None if timm has none. model: the
    model.* keys that define the net."""
    if model["_target_"] or model["blur_pool"]:
        return None
    if model["library"] == "timm":
        return str(model["name"]).partition(".")[0]
    return model["name"] if _SAME_IN_TIMM.fullmatch(model["name"]) and not model["args"] else None


def content(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of config.json, in timm's form. The architecture of a net that timm does not have is where it
    is made, such as torchvision.models.vgg16. metadata: of the exported file."""
    model, seen, classes = metadata["model"], metadata["eval_transform"], metadata["classes"]
    labels = dict(zip(classes, metadata["labels"], strict=True))
    size, name = seen["image_size"], architecture(model)
    of_layers: dict[str, Any] = {}
    if name and model["library"] == "timm":
        found = import_timm("push").get_pretrained_cfg(name)
        of_layers = {key: value for key, value in (found.to_dict() if found else {}).items() if key in _OF_LAYERS}
    elif name:
        of_layers = _DENSENET if name.startswith("densenet") else _RESNET
    return {
        "architecture": name or model["_target_"] or f"torchvision.models.{model['name']}",
        "num_classes": len(classes),
        "label_names": classes,
        **({} if metadata["labels"] == classes else {"label_descriptions": labels}),
        **({"model_args": model["args"]} if model["args"] else {}),
        "pretrained_cfg": {
            **of_layers,
            "num_classes": len(classes),
            "input_size": [3, size, size],
            "interpolation": seen["interpolation"],
            "crop_mode": _CROP_MODES[seen["fit"]],
            "crop_pct": _crop_pct(size, seen["val_resize"]) if seen["fit"] == "crop" else 1.0,
            "mean": seen["mean"],
            "std": seen["std"],
        },
    }


def not_in_timm(metadata: Mapping[str, Any]) -> list[str]:
    """Return a clause about each part of the preprocessing that timm's form cannot express."""
    transform, white = EvalTransform.of_stored(metadata["eval_transform"]), metadata["white_level"]
    views = f"timm uses the image alone, not the mean of the logits over its {transform.views} orientations"
    pad = "timm rounds the short side of a padded image up or down, here it is rounded down: it may be one pixel longer"
    turned = "timm does not turn photographs as the camera recorded; PIL.ImageOps.exif_transpose does"
    grey = f"timm does not scale grey images of more than 8 bits, in which white is {white} here"
    is_so = {
        views: transform.views > 1, pad: transform.fit == "pad", turned: metadata["exif_orientation"], grey: white,
    }  # fmt: skip
    return [clause for clause, found in is_so.items() if found]


def _crop_pct(size: int, resize: int) -> float:
    """Return the number of which timm makes this short side again: floor(size / crop_pct)."""
    share = size / resize
    return share if math.floor(size / share) == resize else size / (resize + 0.5)
