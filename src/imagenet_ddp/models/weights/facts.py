"""Find out with which images pretrained weights were trained: their preprocessing, and the names of their classes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torchvision  # pyright: ignore[reportMissingTypeStubs]

from imagenet_ddp.config.validators import is_mapping, shown
from imagenet_ddp.models.factory import import_timm, timm_name

KEY = "imagenet_ddp"  # of this project's part of a checkpoint, and of the metadata of an exported file
PREPROCESSING = ("image_size", "val_resize", "interpolation", "fit", "mean", "std")  # keys of Facts.data


@dataclass(frozen=True)
class Facts:
    """What is known of pretrained weights. Empty fields are unknown.

    origin: whose facts these are. data: values of data.*, by the keys of PREPROCESSING. as_used: further ones,
    for a use of the weights as they are: how photographs are read, and over which views the logits are averaged.
    classes, labels: names of the outputs, and the same for display.
    """

    origin: str = ""
    data: Mapping[str, Any] = field(default_factory=dict[str, Any])
    as_used: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True)
    classes: list[str] = field(default_factory=list[str])
    labels: list[str] = field(default_factory=list[str])

    def data_at(self, image_size: int) -> dict[str, Any]:
        """Return the values of data.* for images of another size, with the same share of the image in the crop."""
        if not self.data:
            return {}
        resize = round(image_size * self.data["val_resize"] / self.data["image_size"])
        return {**self.data, "image_size": image_size, "val_resize": resize}

    def lines(self, data: Mapping[str, Any]) -> list[str]:
        """Return a line for the log on the preprocessing, and on how that of resolved data.* keys differs from it."""
        if not self.data:
            return []
        own, here = self.data, self.data_at(data["image_size"])
        other = [f"data.{key}={shown(data[key])}" for key in own if data[key] not in (None, here[key])]
        if data["image_size"] != own["image_size"]:
            other.insert(0, f"data.image_size={data['image_size']}")
        how = f"from a short side of {own['val_resize']}" if own["fit"] == "crop" else f"(data.fit={own['fit']})"
        return [
            f"Images as for {self.origin}: {own['image_size']} pixels {how}, {own['interpolation']}, "
            f"mean {shown(own['mean'])}, std {shown(own['std'])}{', except ' + ', '.join(other) if other else ''}."
        ]


def of_torchvision(name: str, weights: Any = None) -> Facts:
    """Return the facts of torchvision's weights. weights: one of the model's enumeration; None: the first ones, whose
    preprocessing is that of most files of this net."""
    kinds: Any = torchvision.models.get_model_weights(name)  # pyright: ignore[reportUnknownMemberType]
    weights = weights or next(iter(kinds))
    seen = weights.transforms()
    data = {
        "image_size": seen.crop_size[0], "val_resize": seen.resize_size[0], "interpolation": seen.interpolation.value,
        "fit": "crop", "mean": list(seen.mean), "std": list(seen.std),
    }  # fmt: skip
    return Facts(f"torchvision's {name} {weights.name}", data)


def of_timm(name: str, weights: str | None = None, own: Mapping[str, Any] | None = None, origin: str = "") -> Facts:
    """Return the facts of timm's weights, or of a net without weights. own: pretrained_cfg of a repository of the hub,
    which origin names."""
    timm = import_timm(f"model.name={name}")
    try:
        config = timm.get_pretrained_cfg(timm_name(name, weights))
    except RuntimeError:  # unknown weights, which are reported when they are read
        config = None
    if config is None:
        return Facts()
    values = {**config.to_dict(), **{key: value for key, value in (own or {}).items() if value is not None}}
    seen = timm.data.resolve_data_config(pretrained_cfg=values)
    size = seen["input_size"][-1]
    data = {
        "image_size": size, "val_resize": math.floor(size / seen["crop_pct"]),
        "interpolation": "bilinear" if seen["interpolation"] == "bilinear" else "bicubic",
        "fit": "squash" if (seen["crop_mode"], seen["crop_pct"]) == ("squash", 1) else "crop",
        "mean": [*map(float, seen["mean"])], "std": [*map(float, seen["std"])],
    }  # fmt: skip
    classes: list[Any] = list(values.get("label_names") or [])
    shown_as: Mapping[str, Any] = values.get("label_descriptions") or {}
    labels = [shown_as.get(each, each) for each in classes]
    if not all(isinstance(each, str) for each in [*classes, *labels]):
        raise TypeError("label_names and label_descriptions must be texts")
    tag = f".{config.tag}" if config.tag else ""
    return Facts(origin or f"timm's {config.architecture}{tag}", data, classes, labels)


def states_use(stored: Mapping[str, Any]) -> bool:
    """Return whether a file states with which images its weights are used, as files of this project do."""
    own = stored.get(KEY)
    return is_mapping(own) and "eval_transform" in own


def of_file(stored: Mapping[str, Any], library: str, name: str, origin: str) -> Facts:
    """Return the facts that a file states about itself, else those of the net's own weights. stored: its entries beside
    the tensors; library: "" for a net of the user's own."""
    if states_use(stored):
        own = stored[KEY]
        data: dict[str, Any] = {"fit": "crop", **own["eval_transform"]}
        reading = own.get("config", {}).get("data", own)  # a checkpoint has a config, an exported file these keys
        parts = (data, ("vflip", "rot90", "val_mirror")), (reading, ("exif_orientation", "white_level"))
        as_used = {key: part[key] for part, keys in parts for key in keys if key in part}
        data = {key: data[key] for key in PREPROCESSING}
        return Facts(origin, data, list(own["classes"]), list(own["labels"]), as_used=as_used)
    of_net = of_timm(name) if library == "timm" else of_torchvision(name) if library else Facts()
    classes: Any = next((stored[key] for key in ("classes", "class_names", "class_to_idx") if key in stored), None)
    if is_mapping(classes):
        is_order = all(isinstance(each, int) for each in classes.values())
        classes = sorted(classes, key=classes.__getitem__) if is_order else []
    names = cast("list[Any]", list(classes)) if isinstance(classes, list | tuple) else []  # pyright: ignore[reportUnknownArgumentType]
    if not all(isinstance(each, str) for each in names):
        names = []
    return Facts(of_net.origin, of_net.data, names, names)


def larger_imagenet(num_classes: int) -> dict[str, str]:
    """Return WordNet id -> label of the larger selection of ImageNet's classes that has this number of them; {} if
    there is none. timm has their order."""
    timm = import_timm("model.library=timm")
    subset: Any = timm.data.infer_imagenet_subset({"num_classes": num_classes})
    info: Any = timm.data.ImageNetInfo(subset) if subset else None
    return dict(zip(info.label_names(), info.label_descriptions(), strict=True)) if info else {}
