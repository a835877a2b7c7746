"""Evaluate a trained net in one process: each validation image is counted once over all ranks. From the predictions of
all ranks, compute calibration, further metrics and ReaL top-1, and write evaluation.json and predictions.csv."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor, distributed

from imagenet_ddp.callbacks.loggers import connect
from imagenet_ddp.callbacks.run_files import BadImagesList
from imagenet_ddp.config.schema.commands import EvaluateConfig
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.config.validators import is_mapping
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.imagenet import reassessed_labels
from imagenet_ddp.distributed.strategies.process_group import destroy_process_group
from imagenet_ddp.engine import build
from imagenet_ddp.engine.diagnosis import refusing
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.engine.stored_config import folder_of
from imagenet_ddp.engine.trained_model import load
from imagenet_ddp.engine.world import World
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.calibration import calibrate, log_sums
from imagenet_ddp.models.layers import ClassSubset
from imagenet_ddp.models.metrics import MAX_AUROC_CLASSES, further_metrics, has_class
from imagenet_ddp.runs import result_files
from imagenet_ddp.runs.checkpoint_file import load_weights
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.result_files import NOT_FINITE
from imagenet_ddp.system.text import count_noun, format_loss, percent


def run(job: Job, plan: Plan, world: World) -> float:
    """Evaluate the job's checkpoint or weights. Return top-1 as a fraction, and write all results to evaluation.json
    in the job's folder."""
    log = Log(job.run_dir / "logs", world.info.rank)
    log.capture_libraries()
    config = job.config
    assert isinstance(config, EvaluateConfig)
    trained = load(config, job.checkpoint)
    data = build.make_data(plan, world, log.say, need_train=False)
    positions = trained.positions(data.source)
    named = trained if trained.has_names else data.source
    classes, labels = named.classes, named.labels
    data.remap_targets(positions)
    num_images, num_classes = len(data.val_images), len(data.source.classes)
    metric_names, real_labels = config.metrics or [], None
    if "auroc" in metric_names and len(classes) > MAX_AUROC_CLASSES:
        raise ConfigError(
            f"metrics=[auroc] requires at most {MAX_AUROC_CLASSES:,} classes, got {len(classes):,}. "
            "Hint: leave auroc out of metrics."
        )
    if config.real_labels:
        real_labels = reassessed_labels(Path(config.real_labels), map(data.val_images.path, range(num_images)))
    module = build.make_module(plan, classes, num_images)
    load_weights(module.net, trained.weights, trained.origin)
    is_subset = config.classes == "subset"
    if is_subset:
        module.net = ClassSubset(module.net, positions.tolist(), len(classes))
        module.top_k = min(module.top_k, num_classes)
    bad_images = BadImagesList(job.run_dir / "bad_images.csv", data.bad_images.board.all)
    collected = Predictions(keep_scores="auroc" in metric_names)
    trainer = build.make_trainer(plan, world, [bad_images, collected], job.run_dir)
    log.say(world.info.sentence())
    log.say(
        f"Evaluating {trained.origin} ({trained.what}) on {num_images} validation images of {num_classes} classes"
        f" at {config.data.image_size} pixels, precision {trainer.precision}."
    )
    for note in (*trained.notes, *data.source.notes):
        log.say(note)
    if not trained.has_names:
        log.say(f"Its {num_classes} classes are assumed to be those of the data, sorted by name.")
    folder, fraction, own = folder_of(config.data, is_train=False), config.data.val_fraction, trained.contents
    trained_on = folder_of(to_config(own["config"]["data"], DataConfig), is_train=True) if own else None
    if folder and fraction is None and folder == trained_on:
        log.say(f"The checkpoint was trained on images of {folder}. Its accuracy on other images is usually lower.")
    if is_subset:
        log.say(f"Only {num_classes} of its {len(classes)} classes can be predicted (classes=subset).")
    try:
        with refusing():
            connect(trainer.loggers)
            trainer.validate(module, datamodule=data, verbose=False)
    finally:
        data.close()
    metrics = {name: float(trainer.callback_metrics[name]) for name in ("val/top1", "val/top5", "val/loss")}
    # top-k of k classes is always 100 %
    is_useful = module.top_k < (num_classes if is_subset else len(classes))
    top_k = f" | top-{module.top_k} {percent(metrics['val/top5'])}" if is_useful else ""
    log.say(f"top-1 {percent(metrics['val/top1'])}{top_k} | loss {format_loss(metrics['val/loss'])}")
    counted, num_unreadable = module.num_counted, 0
    if (predicted := collected.result) is not None:  # rank 0
        num_unreadable = len(predicted.loaded) - counted[0]  # num_images may include images that were not loaded
        further = further_results(predicted, data.val_images.targets, classes, metric_names, real_labels)
        for line in results_lines(further):
            log.say(line)
        file = None if config.predictions == "none" else "predictions.csv"
        if file is not None:
            reasons = dict(data.bad_images.board.all())
            columns = prediction_columns(predicted, data.val_images, classes, reasons)
            result_files.write_predictions(job.run_dir / file, columns)
        result = {
            **metrics,
            "num_val_images": counted[0],
            "num_val_images_unreadable": num_unreadable,
            "num_classes": num_classes,
            "world_size": world.info.world_size,
            "num_devices": plan.num_devices,
            "num_nodes": world.info.num_nodes,
            "precision": trainer.precision,
            "checkpoint": None if job.checkpoint is None else str(job.checkpoint.resolve()),
            "weights": trained.origin,
            "epochs": trained.epochs,
            "classes": classes,
            "labels": labels,
            "predictions": file,
            **further,
            "plan": plan.choices(training=False),
            **result_files.provenance(job.command),
        }
        result_files.write_config(job.run_dir, config)
        result_files.write_json(job.run_dir / "evaluation.json", result)
    log.say(f"Written to {job.run_dir / 'evaluation.json'}")
    share = ""
    if fraction is not None and data.source.train is not None:
        total = num_images + len(data.source.train)
        share = f" (a share of the {total:,} images of {data.val_images.location}, data.val_fraction={fraction:g})"
    log.say(result_files.counted_sentence(counted, num_images, num_unreadable, share))
    log.close()
    destroy_process_group()
    return metrics["val/top1"]


@dataclass
class Predicted:
    """The predictions for N readable images of all ranks, sorted by position in the split. k is 5, or the number of
    classes if there are fewer."""

    index: np.ndarray  # int64 (N,), position in the split
    classes: np.ndarray  # int64 (N, k), most probable first; -1 if the output is NaN or inf
    probabilities: np.ndarray  # float32 (N, k)
    losses: np.ndarray  # float32 (N,), cross entropy
    log_sums: np.ndarray  # float32 (N, 41), see models.calibration
    gaps: np.ndarray  # float32 (N,), greatest logit minus the logit of the true class
    scores: np.ndarray | None  # float32 (N, num_classes), all probabilities; None unless keep_scores is set
    loaded: np.ndarray  # int64, positions of all loaded images, including unreadable ones


class Predictions(L.Callback):
    """Collect the outputs of ImageClassifier.validation_step. After the validation, `result` contains the predictions
    of all ranks on rank 0, and is None on other ranks.

    keep_scores: also keep all probabilities of each image. The collected tensors are small and stay on the device until
    the validation ends, so no batch waits for the device.
    """

    def __init__(self, *, keep_scores: bool = False) -> None:
        self._keeps_scores = keep_scores
        self.result: Predicted | None = None
        self._batches: list[tuple[Tensor, ...]] = []
        self._loaded: list[Tensor] = []

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.result, self._batches, self._loaded = None, [], []

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._loaded.append(batch["index"])
        if outputs is None:  # no image of this batch counts on this rank
            return
        logits, losses, counted = outputs["logits"], outputs["losses"], batch["num_counted"]
        # topk may order equal logits differently from the argmax that val/top1 is computed with
        values, classes = logits.sort(dim=1, descending=True, stable=True)
        values, classes = values[:, : pl_module.top_k], classes[:, : pl_module.top_k].clone()
        classes.masked_fill_(~has_class(logits)[:, None], -1)  # no wait for the device
        probabilities = (values - logits.logsumexp(1, keepdim=True)).exp()
        gaps = values[:, 0] - logits.gather(1, batch["target"][:counted, None])[:, 0]
        found = [batch["index"][:counted], classes, probabilities, losses, log_sums(logits), gaps]
        found += [logits.softmax(1)] if self._keeps_scores else []
        self._batches.append(tuple(each.float() if each.is_floating_point() else each for each in found))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        columns = [torch.cat(column).cpu().numpy() for column in zip(*self._batches, strict=True)]
        mine = columns, torch.cat(self._loaded).cpu().numpy()
        self._batches, self._loaded = [], []
        ranks: list[Any] | None = [mine]
        if trainer.world_size > 1:
            ranks = [None] * trainer.world_size if trainer.is_global_zero else None
            distributed.gather_object(mine, ranks)
        if ranks is not None:
            self.result = _merge([columns for columns, _ in ranks if columns], [loaded for _, loaded in ranks])


def _merge(parts: list[list[np.ndarray]], loaded: list[np.ndarray]) -> Predicted:
    """Merge the predictions of the ranks, and sort them by position. parts: columns of each rank that has any, at least
    one, in the order of Predicted's fields, with or without scores. loaded: positions loaded by each rank."""
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    order = columns[0].argsort()
    index, classes, probabilities, losses, sums, gaps, *scores = (column[order] for column in columns)
    seen = np.unique(np.concatenate(loaded))
    return Predicted(index, classes, probabilities, losses, sums, gaps, scores[0] if scores else None, seen)


def further_results(
    predicted: Predicted,
    targets: np.ndarray,
    classes: Sequence[str],
    metric_names: Sequence[str],
    real_labels: Sequence[set[str]] | None,
) -> dict[str, Any]:
    """Return the entries calibration and, if requested, metrics and real of evaluation.json. If outputs are NaN or
    inf, their number replaces calibration, and auroc is left out.

    targets: int64, index into `classes` for each image of the split. real_labels: names of the correct classes of each
    image.
    """
    labels, top1 = targets[predicted.index], predicted.classes[:, 0]
    found: dict[str, Any] = {}
    if without := int((top1 < 0).sum()):
        found["num_without_class"] = without
        metric_names = [name for name in metric_names if name != "auroc"]  # needs probabilities of all images
    else:
        found["calibration"] = calibrate(
            predicted.probabilities[:, 0], top1 == labels, predicted.losses, predicted.log_sums, predicted.gaps
        )
    if metric_names:
        scores = None if predicted.scores is None else torch.as_tensor(predicted.scores)
        values = further_metrics(
            metric_names, torch.as_tensor(top1), torch.as_tensor(labels), len(classes), scores=scores
        )
        found["metrics"] = {
            name: dict(zip(classes, value, strict=True)) if isinstance(value, list) else value
            for name, value in values.items()
        }
    if real_labels is not None:
        pairs = zip(predicted.index.tolist(), top1.tolist(), strict=True)
        is_right = [top >= 0 and classes[top] in real_labels[index] for index, top in pairs if real_labels[index]]
        top1_real = sum(is_right) / len(is_right) if is_right else math.nan
        found["real"] = {"top1": top1_real, "num_images": len(is_right)}
    return found


def results_lines(results: Mapping[str, Any]) -> list[str]:
    """Return the log lines for the results of further_results."""
    if calibration := results.get("calibration"):
        ece, then = percent(calibration["ece"]), percent(calibration["ece_at_temperature"])
        lines = [f"Calibration error {ece}, or {then} at the best temperature ({calibration['temperature']:.3f})"]
    else:
        lines = [
            f"For {count_noun(results['num_without_class'], 'image')} {NOT_FINITE}: counted as wrong, without a class. "
            "Calibration and auroc need finite outputs and are left out."
        ]
    for name, value in results.get("metrics", {}).items():
        if is_mapping(value):
            worst = sorted((share, each) for each, share in value.items() if share is not None)[:5]
            words = ", ".join(f"{each} {percent(share)}" for share, each in worst)
            lines.append(f"{name}: lowest {words}")
        else:
            lines.append(f"{name}: {value:.4f}")
    if "real" in results:
        lines.append(f"ReaL top-1 {percent(results['real']['top1'])} of {results['real']['num_images']} images")
    return lines


def prediction_columns(
    predicted: Predicted, images: Images, classes: Sequence[str], reasons: Mapping[str, str]
) -> dict[str, list[Any]]:
    """Return the columns of the predictions file, with one row per loaded image, in order.

    images: the images of the split, whose targets are indices into `classes`. reasons: maps a path to the reason why
    the image could not be read.
    """
    loaded = predicted.loaded.tolist()
    rows = {index: row for row, index in enumerate(predicted.index.tolist())}  # without unreadable images

    def column(values: Sequence[Any]) -> list[Any]:
        return [values[rows[index]] if index in rows else None for index in loaded]

    paths = [images.path(index) for index in loaded]
    no_class = [NOT_FINITE if top < 0 else None for top in predicted.classes[:, 0].tolist()]
    columns = {
        "index": loaded,
        "path": paths,
        "label": [classes[target] for target in images.targets[predicted.loaded].tolist()],
        "prediction": [],
        "confidence": column(predicted.probabilities[:, 0].tolist()),
        "loss": column(predicted.losses.tolist()),
        "label_probability": column(np.exp(-predicted.losses).tolist()),
    }
    for rank, top in enumerate(predicted.classes.T.tolist()):
        columns[f"class_{rank + 1}"] = column([None if each < 0 else classes[each] for each in top])
        columns[f"probability_{rank + 1}"] = column(predicted.probabilities[:, rank].tolist())
    columns["prediction"] = columns["class_1"]
    unreadable = [
        None if index in rows else reasons.get(path, "cannot be read")
        for index, path in zip(loaded, paths, strict=True)
    ]
    return {**columns, "error": [a or b for a, b in zip(unreadable, column(no_class), strict=True)]}
