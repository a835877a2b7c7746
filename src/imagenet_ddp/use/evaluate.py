"""Evaluate a trained net in one process: each validation image is counted once over all ranks. Write evaluation.json
and predictions.csv."""

from pathlib import Path
from typing import Any

import lightning.pytorch as L
import numpy as np
import torch
from torch import Tensor, nn

from imagenet_ddp.callbacks.run_files import BadImagesList
from imagenet_ddp.config.schema.commands import EvaluateConfig
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.curation.unknown import Reference, familiarity, file_of
from imagenet_ddp.data.sources.imagenet import reassessed_labels
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.launch.stored_config import folder_of
from imagenet_ddp.launch.trained_model import load
from imagenet_ddp.launch.world import World
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.models.calibration import log_sums
from imagenet_ddp.models.factory import of_size
from imagenet_ddp.models.head import head_names
from imagenet_ddp.models.layers import ClassSubset
from imagenet_ddp.models.metrics import MAX_AUROC_CLASSES, has_class
from imagenet_ddp.models.task import OneLabel
from imagenet_ddp.runs import result_files
from imagenet_ddp.runs.checkpoint_file import load_weights
from imagenet_ddp.runs.log import Log
from imagenet_ddp.strategies.process_group import destroy_process_group, gather_on_first
from imagenet_ddp.system.files import where
from imagenet_ddp.system.text import count_noun
from imagenet_ddp.training import build, held_out
from imagenet_ddp.use.evaluation_results import Predicted, further_results, prediction_columns, results_lines
from imagenet_ddp.use.predictor import find_reference
from imagenet_ddp.use.validate import Validation


def run(job: Job, plan: Plan, world: World) -> float:
    """Evaluate the job's checkpoint or weights. Return the score, such as top-1 as a fraction, and write all results
    to evaluation.json in the job's folder."""
    log = Log(job.run_dir / "logs", world.place.rank)
    log.capture_libraries()
    config = job.config
    assert isinstance(config, EvaluateConfig)
    trained = load(config, job.checkpoint)
    data = build.make_data(plan, world, log.say, need_train=False, scan=job.scan)
    left_out = held_out.choose(data.source, config.data, trained.contents, trained.origin)
    positions = trained.positions(data.source)
    named = trained if trained.has_names else data.source
    classes, labels = named.classes, named.labels
    data.remap_targets(positions, len(classes))
    num_images, num_classes = len(data.val_images), len(data.source.classes)
    metric_names, real_labels = config.metrics or [], None
    if "auroc" in metric_names and len(classes) > MAX_AUROC_CLASSES:
        what = f"metrics=[auroc] requires at most {MAX_AUROC_CLASSES:,} classes, got {len(classes):,}"
        others = f"metrics=[{','.join(name for name in metric_names if name != 'auroc')}]"
        raise ConfigError(Mistake(what, ("metrics",), (setting(others),)))
    if config.real_labels:
        real_labels = reassessed_labels(Path(config.real_labels), map(data.val_images.path, range(num_images)))
    with of_size(config.model, trained.weights, trained.origin):
        module = build.make_module(plan, classes, num_images)
    load_weights(module.net, trained.weights, trained.origin)
    reference, no_reference = find_reference(config, trained, module.net, job.checkpoint)
    if reference is not None and plan.num_own_devices > 1:
        reference, no_reference = None, "strategy=dp shares a batch among several devices"
    no_reference = no_reference if job.checkpoint is not None and file_of(job.checkpoint).exists() else ""
    layer = None if reference is None else module.net.get_submodule(head_names(module.net, len(classes))[0])
    is_subset = config.classes == "subset"
    if is_subset:
        module.net = ClassSubset(module.net, positions.tolist(), len(classes))
        module.task = OneLabel(num_classes)  # of which the checks have made sure
    bad_images = BadImagesList(job.run_dir / "bad_images.csv", data.bad_images.board.all, config.csv_delimiter)
    task = module.task
    collected = Predictions(reference, layer, keep_scores="auroc" in metric_names)
    callbacks: list[L.Callback] = [bad_images, collected] if task.has_one_prediction else [bad_images]
    validation = Validation(plan, world, callbacks, job.run_dir)
    trainer = validation.trainer
    if world.place.world_size > 1:
        log.say(world.place.sentence())
    log.say(
        f"Evaluating {trained.origin} ({trained.what}) on {count_noun(num_images, 'validation image')}"
        f" of {count_noun(num_classes, 'class')}{where(data.val_images.location)} at {config.data.image_size} pixels,"
        f" precision {trainer.precision}."
    )
    for note in (*trained.notes, *data.source.notes, *[left_out] * bool(left_out)):
        log.say(note)
    if not trained.has_names:
        log.say(f"Its {count_noun(num_classes, 'class')} are assumed to be those of the data, sorted by name.")
    folder, fraction, own = folder_of(config.data, is_train=False), config.data.share, trained.contents
    trained_on = folder_of(to_config(own["config"]["data"], DataConfig), is_train=True) if own else None
    if folder and fraction is None and folder == trained_on:
        log.say(f"The checkpoint was trained on images of {folder}. Its accuracy on other images is usually lower.")
    if no_reference:
        log.say(f"How many images are like none of the training images is unknown: {no_reference}.")
    if is_subset:
        log.say(f"Only {num_classes} of its {len(classes)} classes can be predicted (classes=subset).")
    ignored_lines = validation.run(module, data)
    metrics = {name: float(trainer.callback_metrics[name]) for name in task.val_metrics}
    loss, *scores = task.figures
    log.say(" | ".join(f"{each.title} {each.text(metrics[f'val/{each.name}'])}" for each in (*scores, loss)))
    counted, num_unreadable, file = module.val_counts, 0, None
    further = module.val_results(classes)
    if (predicted := collected.result) is not None:  # on rank 0
        num_unreadable = len(predicted.loaded) - counted[0]  # num_images may include images that were not loaded
        threshold = None if reference is None else reference.threshold
        further |= further_results(predicted, data.val_images.targets, classes, metric_names, real_labels, threshold)
        if config.predictions == "csv":
            file = "predictions.csv"
            reasons = dict(data.bad_images.board.all())
            columns = prediction_columns(predicted, data.val_images, classes, reasons, threshold)
            result_files.write_predictions(job.run_dir / file, columns, config.csv_delimiter)
    elif not task.has_one_prediction:
        num_unreadable = len(data.bad_images.board.all())
    if world.place.rank == 0:
        for line in results_lines(further):
            log.say(line)
        result = {
            **metrics,
            "num_val_images": counted[0],
            "num_val_images_unreadable": num_unreadable,
            "num_classes": num_classes,
            "world_size": world.place.world_size,
            "num_devices": plan.num_devices,
            "num_nodes": world.place.num_nodes,
            "precision": trainer.precision,
            "checkpoint": None if job.checkpoint is None else str(job.checkpoint.resolve()),
            "weights": trained.origin,
            "epochs": trained.epochs,
            "classes": classes,
            "labels": labels,
            "predictions": file,
            "left_out": left_out,
            **further,
            "plan": plan.choices(training=False),
            **result_files.provenance(job.command),
        }
        result_files.write_config(job.run_dir, config)
        result_files.write_json(job.run_dir / "evaluation.json", result)
    for line in (*ignored_lines, f"Written to {job.run_dir / 'evaluation.json'}"):
        log.say(line)
    share = ""
    if fraction is not None and data.source.train is not None:
        total = num_images + len(data.source.train)
        share = f" (a share of the {total:,} images of {data.val_images.location}, data.val_fraction={fraction:g})"
    log.say(result_files.counted_sentence(counted, num_images, num_unreadable, share))
    log.close()
    destroy_process_group()
    return metrics[f"val/{task.score.name}"]


class Predictions(L.Callback):
    """Collect the outputs of ImageClassifier.validation_step. After the validation, `result` contains the predictions
    of all ranks on rank 0, and is None on other ranks.

    reference, layer: compute the familiarity of each image from what this layer of the net receives. keep_scores: also
    keep all probabilities of each image. The collected tensors are small and stay on the device until the validation
    ends, so no batch waits for the device.
    """

    def __init__(
        self, reference: Reference | None = None, layer: nn.Module | None = None, *, keep_scores: bool = False
    ) -> None:
        self._reference, self._layer, self._keeps_scores = reference, layer, keep_scores
        self._functions, self._inputs = list[Tensor](), list[Tensor]()
        self._hook: Any = None
        self.result: Predicted | None = None
        self._batches: list[tuple[Tensor, ...]] = []
        self._loaded: list[Tensor] = []

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.result, self._batches, self._loaded = None, [], []
        if self._reference is not None and self._layer is not None:
            arrays = self._reference.weight, self._reference.bias
            self._functions = [torch.as_tensor(each, device=pl_module.device) for each in arrays]
            self._hook = self._layer.register_forward_pre_hook(lambda _, given: self._inputs.append(given[0].detach()))

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        self._loaded.append(batch["index"])
        inputs, self._inputs[:] = self._inputs[-1:], []  # the last of several views is the image as it is
        if outputs is None:  # no image of this batch counts on this rank
            return
        logits, losses, counted = outputs["logits"], outputs["losses"], batch["num_counted"]
        # the order of task.places_of, by which val/top1 and val/top5 are computed
        values, classes = logits.sort(dim=1, descending=True, stable=True)
        values, classes = values[:, : pl_module.task.top_k], classes[:, : pl_module.task.top_k].clone()
        classes.masked_fill_(~has_class(logits)[:, None], -1)  # no wait for the device
        probabilities = (values - logits.logsumexp(1, keepdim=True)).exp()
        gaps = values[:, 0] - logits.gather(1, batch["target"][:counted, None])[:, 0]
        scores = familiarity(inputs[0][:counted], *self._functions) if inputs else torch.full_like(losses, torch.nan)
        found = [batch["index"][:counted], classes, probabilities, losses, log_sums(logits), gaps, scores]
        found += [logits.softmax(1)] if self._keeps_scores else []
        self._batches.append(tuple(each.float() if each.is_floating_point() else each for each in found))

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._hook is not None:
            self._hook.remove()
        columns = [torch.cat(column).cpu().numpy() for column in zip(*self._batches, strict=True)]
        mine = columns, torch.cat(self._loaded).cpu().numpy()
        self._batches, self._loaded = [], []
        ranks = gather_on_first(mine, trainer.world_size)
        if ranks is not None:
            self.result = _merge([columns for columns, _ in ranks if columns], [loaded for _, loaded in ranks])


def _merge(parts: list[list[np.ndarray]], loaded: list[np.ndarray]) -> Predicted:
    """Merge the predictions of the ranks, and sort them by position. parts: columns of each rank that has any, at least
    one, in the order of Predicted's fields, with or without scores. loaded: positions loaded by each rank."""
    columns = [np.concatenate(each) for each in zip(*parts, strict=True)]
    order = columns[0].argsort()
    index, classes, probabilities, losses, sums, gaps, familiarities, *scores = (column[order] for column in columns)
    seen = np.unique(np.concatenate(loaded))
    return Predicted(
        index, classes, probabilities, losses, sums, gaps, scores[0] if scores else None, seen, familiarities
    )
