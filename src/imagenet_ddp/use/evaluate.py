"""Evaluate a trained net in one process: each validation image is counted once over all ranks. Write evaluation.json
and predictions.csv."""

from collections.abc import Sequence
from pathlib import Path

import lightning.pytorch as L
from torch import nn

from imagenet_ddp.callbacks.run_files import BadImagesList
from imagenet_ddp.config.figures import UNLIKE
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.schema.evaluate import EvaluateConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.curation.accuracies import uneven_sentence
from imagenet_ddp.curation.unknown import Reference
from imagenet_ddp.data.module import ImageDataModule
from imagenet_ddp.data.sources.imagenet import reassessed_labels
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.launch.stored_config import folder_of
from imagenet_ddp.launch.trained_model import TrainedModel, load
from imagenet_ddp.launch.world import World
from imagenet_ddp.mistakes import Mistake, setting
from imagenet_ddp.models.factory import of_size
from imagenet_ddp.models.head import head_names
from imagenet_ddp.models.layers import ClassSubset
from imagenet_ddp.models.task import OneLabel
from imagenet_ddp.runs import result_files
from imagenet_ddp.runs.checkpoint_file import load_weights
from imagenet_ddp.runs.log import Log
from imagenet_ddp.strategies.process_group import destroy_process_group
from imagenet_ddp.system.files import where
from imagenet_ddp.system.text import count_noun
from imagenet_ddp.training import build, held_out
from imagenet_ddp.use.evaluation_results import further_results, prediction_columns, results_lines
from imagenet_ddp.use.further_metrics import MAX_AUROC_CLASSES
from imagenet_ddp.use.predictions import Predictions
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
    data = build.make_data(plan, world, log.say, scan=job.scan)
    left_out = held_out.choose(data.source, config.data, trained.contents, trained.origin)
    positions = trained.positions(data.source)
    named = trained if trained.has_names else data.source
    classes, labels = named.classes, named.labels
    data.remap_targets(positions, len(classes))
    num_images, num_classes = len(data.val_images), len(data.source.classes)
    metric_names, real_labels = config.metrics or [], None
    _refuse_auroc(metric_names, len(classes))
    if config.real_labels:
        real_labels = reassessed_labels(Path(config.real_labels), map(data.val_images.path, range(num_images)))
    with of_size(config.model, trained.weights, trained.origin):
        module = build.make_module(plan, classes, num_images)
    load_weights(module.net, trained.weights, trained.origin)
    reference, no_reference = _find_reference(job, plan, trained, module.net)
    layer = None if reference is None else module.net.get_submodule(head_names(module.net, len(classes))[0])
    if config.classes == "subset":
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
    for line in _first_lines(config, trained, data, str(trainer.precision), left_out, no_reference):
        log.say(line)
    ignored_lines = validation.run(module, data)
    metrics = {name: float(trainer.callback_metrics[name]) for name in task.val_metrics}
    loss, *scores = task.figures
    log.say(" | ".join(f"{each.title} {each.text(metrics[f'val/{each.name}'])}" for each in (*scores, loss)))
    counted, num_unreadable, file = module.val_counts, 0, None
    further = module.val_results(classes)
    if (predicted := collected.result) is not None:  # on rank 0
        num_unreadable = len(predicted.loaded) - counted[0]  # num_images may include images that were not loaded
        threshold = None if reference is None else reference.threshold
        targets = data.val_images.targets[predicted.index]
        if uneven := uneven_sentence(targets, predicted.classes[:, 0] == targets, labels):
            log.say(uneven)
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
    log.say(result_files.counted_sentence(counted, num_images, num_unreadable, _share_words(config, data)))
    log.close()
    destroy_process_group()
    return metrics[f"val/{task.score.name}"]


def _find_reference(job: Job, plan: Plan, trained: TrainedModel, net: nn.Module) -> tuple[Reference | None, str]:
    """Return (the reference that tells unknown images, ""), or (None, why the one that the run has cannot be used)."""
    found, reason = find_reference(plan.config, trained, net, job.checkpoint)
    if found is not None and plan.num_own_devices > 1:
        found, reason = None, "strategy=dp shares a batch among several devices"
    return found, reason if job.checkpoint is not None and result_files.known_file(job.checkpoint).exists() else ""


def _refuse_auroc(metric_names: Sequence[str], num_classes: int) -> None:
    """Raise ConfigError if auroc, which needs all probabilities of all images, is wanted of too many classes."""
    if "auroc" in metric_names and num_classes > MAX_AUROC_CLASSES:
        what = f"metrics=[auroc] requires at most {MAX_AUROC_CLASSES:,} classes, got {num_classes:,}"
        others = f"metrics=[{','.join(name for name in metric_names if name != 'auroc')}]"
        raise ConfigError(Mistake(what, ("metrics",), (setting(others),)))


def _first_lines(
    config: EvaluateConfig,
    trained: TrainedModel,
    data: ImageDataModule,
    precision: str,
    left_out: str,
    no_reference: str,
) -> list[str]:
    """Return what the log says before the validation. left_out: a sentence about images that the net was trained on.
    no_reference: why it is unknown which images are unlike the training images. Both may be ""."""
    num_images, num_classes = len(data.val_images), len(data.source.classes)
    lines = [
        f"Evaluating {trained.origin} ({trained.what}) on {count_noun(num_images, 'validation image')} of "
        f"{count_noun(num_classes, 'class')}{where(data.val_images.location)} at {config.data.image_size} pixels, "
        f"precision {precision}.",
        *trained.notes,
        *data.source.notes,
    ]
    if (limit := config.trainer.limit_val_batches) is not None:
        lines.append(f"At most trainer.limit_val_batches={limit} of their batches are used.")
    if left_out:
        lines.append(left_out)
    if not trained.has_names:
        lines.append(f"Its {count_noun(num_classes, 'class')} are assumed to be those of the data, sorted by name.")
    folder, own = folder_of(config.data, is_train=False), trained.contents
    trained_on = folder_of(to_config(own["config"]["data"], DataConfig), is_train=True) if own else None
    if folder and config.data.share is None and folder == trained_on:
        lines.append(
            f"The checkpoint was trained on images of {folder}. Its accuracy on other images is usually lower."
        )
    if no_reference:
        lines.append(f"How many images are {UNLIKE} cannot be said: {no_reference}.")
    if config.classes == "subset":
        num_known = len(trained.classes)
        lines.append(f"Only {num_classes} of its {num_known} classes can be predicted (classes=subset).")
    return lines


def _share_words(config: EvaluateConfig, data: ImageDataModule) -> str:
    """Return of which images those that are evaluated are a share, " (...)", or "" if they are all."""
    fraction, train = config.data.share, data.source.train
    if fraction is None or train is None:
        return ""
    total = len(data.val_images) + len(train)
    return f" (a share of the {total:,} images of {data.val_images.location}, data.val_fraction={fraction:g})"
