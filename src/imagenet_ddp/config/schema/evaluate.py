"""Declare the keys of evaluate."""

from typing import Annotated, Any

from imagenet_ddp.config.schema.purpose import Purpose
from imagenet_ddp.config.schema.run import TrainedConfig
from imagenet_ddp.config.validators import Example, choice, list_of

# Further metrics of evaluate: name -> (class of torchmetrics.classification, its arguments). macro is the mean over the
# classes that occur as label or prediction. auroc is computed for each class in use/further_metrics.py.
METRICS: dict[str, tuple[str, dict[str, Any]]] = {
    "f1": ("MulticlassF1Score", {"average": "macro"}),
    "f1_weighted": ("MulticlassF1Score", {"average": "weighted"}),
    "precision": ("MulticlassPrecision", {"average": "macro"}),
    "recall": ("MulticlassRecall", {"average": "macro"}),
    "per_class": ("MulticlassAccuracy", {"average": "none"}),
    "auroc": ("BinaryAUROC", {}),
    "cohen_kappa": ("MulticlassCohenKappa", {}),
    "matthews": ("MulticlassMatthewsCorrCoef", {}),
}


class EvaluateConfig(TrainedConfig):
    predictions: Annotated[str, choice("csv", "none"), "Write predictions.csv, a row per image."] = "csv"
    metrics: Annotated[
        list[str] | None,
        list_of(choice(*METRICS), f"a list of {', '.join(METRICS)}"),
        Example("[f1,auroc]"),
        "Further metrics (docs/evaluating.md).",
    ] = None
    classes: Annotated[
        str, choice("all", "subset"), "Classes that may be predicted: all, or those of the data set."
    ] = "all"
    real_labels: Annotated[
        str | None, Example("real.json"), "File of ImageNet's reassessed labels (ReaL), for a second top-1."
    ] = None

    @property
    def purpose(self) -> Purpose:
        return Purpose.EVALUATE
