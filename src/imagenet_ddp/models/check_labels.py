"""Find the options that do not go with several labels per image (data.labels=several). Does not import torch."""

from typing import Any

from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.config.schema.predict import PredictConfig
from imagenet_ddp.config.schema.run import CommonConfig
from imagenet_ddp.config.validators import shown
from imagenet_ddp.mistakes import Fix, Mistake, must_be, setting, without

_ONLY_ONE = ("export", "prepare", "benchmark", "features")  # commands that support one label per image only


def validate(config: CommonConfig, verb: str) -> list[Mistake]:
    """Return every mistake. Values of the wrong type are reported elsewhere."""
    data, loss = config.data, config.loss
    if data.labels != "several":
        return []
    if verb in _ONLY_ONE:
        what = f"data.labels must be one for {verb}, which supports one label per image only, got several"
        hint = "predict with `python -m imagenet_ddp.predict` or imagenet_ddp.load" if verb == "export" else ""
        return [Mistake(what, ("data.labels",), () if hint else (setting("data.labels=one"),), hint)]
    found: list[Mistake] = []
    if isinstance(config, PredictConfig) and config.label_next is not None:  # two sure labels would count as unsure
        what = "label_next needs a net with one label per image, but data.labels is several"
        found.append(Mistake(what, ("label_next",), (without("label_next"),)))
    if not data.target and data.name != "table":
        ways = Fix(("data=table", "data.root=FILE.csv")), setting("data.labels=one")
        found.append(must_be("data.name", "table with data.labels=several", shown(data.name), *ways))
    rows: list[tuple[str, Any, Any]]  # key, its value, the only one that fits
    if isinstance(config, EvaluateConfig):
        rows = [
            ("metrics", config.metrics, None), ("real_labels", config.real_labels, None),
            ("classes", config.classes, "all"),
        ]  # fmt: skip
    else:
        balanced = weights if (weights := loss.get("class_weights")) == "balanced" else None
        rows = [
            ("data.mixup_alpha", data.mixup_alpha, 0), ("data.cutmix_alpha", data.cutmix_alpha, 0),
            ("data.sampling", data.sampling, "shuffled"), ("model.head", config.model.head, "new"),
            ("teacher.weights", config.teacher.weights, None), ("loss._target_", loss.target, None),
            ("loss.name", loss.name, "bce"), ("loss.class_weights", balanced, None),
        ]  # fmt: skip
    return found + [
        must_be(key, f"{shown(only)} with data.labels=several", shown(value), setting(f"{key}={shown(only)}"))
        for key, value, only in rows
        if value != only
    ]
