"""Evaluate a trained net in one process: each validation image is counted once over all ranks."""

from pathlib import Path

from imagenet_ddp.callbacks.image_files import BadImagesList
from imagenet_ddp.callbacks.loggers import connect
from imagenet_ddp.config.schema.commands import EvaluateConfig
from imagenet_ddp.config.schema.data import DataConfig
from imagenet_ddp.config.section import to_config
from imagenet_ddp.data.sources.imagenet import reassessed_labels
from imagenet_ddp.distributed.strategies.process_group import destroy_process_group
from imagenet_ddp.engine import build
from imagenet_ddp.engine.diagnosis import refusing
from imagenet_ddp.engine.evaluation_results import Predictions, further_results, prediction_columns, results_lines
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.engine.stored_config import folder_of
from imagenet_ddp.engine.trained_model import load
from imagenet_ddp.engine.world import World
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.layers import ClassSubset
from imagenet_ddp.models.metrics import MAX_AUROC_CLASSES
from imagenet_ddp.runs import summary
from imagenet_ddp.runs.checkpoint_file import load_weights
from imagenet_ddp.runs.log import Log
from imagenet_ddp.system.text import format_loss, percent


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
    classes, labels = trained.classes, trained.labels
    if not trained.has_names:
        classes, labels = data.source.classes, data.source.labels
    data.remap_targets(positions)
    num_images, num_classes = len(data.val_images), len(data.source.classes)
    metric_names, real_labels = config.metrics or [], None
    if "auroc" in metric_names and len(classes) > MAX_AUROC_CLASSES:
        raise ConfigError(
            f"metrics=[auroc] requires at most {MAX_AUROC_CLASSES:,} classes, got {len(classes):,}. "
            "Hint: leave auroc out of metrics."
        )
    if config.real_labels:
        paths = map(data.val_images.path, range(num_images))
        real_labels = reassessed_labels(Path(config.real_labels), paths)
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
        f"Evaluating {trained.origin} ({trained.what})"
        f" on {num_images} validation images of {num_classes} classes"
        f" at {config.data.image_size} pixels, precision {trainer.precision}."
    )
    folder = folder_of(config.data, is_train=False)
    fraction = config.data.val_fraction
    is_split = fraction is not None
    for note in (*trained.notes, *data.source.notes):
        log.say(note)
    if not trained.has_names:
        log.say(f"Its {num_classes} classes are assumed to be those of the data, sorted by name.")
    own = trained.contents.get("config")
    if folder and not is_split and own and folder == folder_of(to_config(own["data"], DataConfig), is_train=True):
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
    counted, num_unreadable, lines = module.num_counted, 0, []
    if (predicted := collected.result) is not None:  # rank 0
        num_unreadable = len(predicted.loaded) - counted[0]  # num_images may include images that were not loaded
        targets = data.val_images.targets
        further = further_results(predicted, targets, classes, metric_names, real_labels)
        lines = results_lines(further)
        file = None if config.predictions == "none" else "predictions.csv"
        if file is not None:
            reasons = dict(data.bad_images.board.all())
            columns = prediction_columns(predicted, data.val_images, classes, reasons)
            summary.write_predictions(job.run_dir / file, columns)
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
            **summary.provenance(job.command),
        }
        summary.write_config(job.run_dir, config)
        summary.write_json(job.run_dir / "evaluation.json", result)
    # top-k of k classes is always 100 %
    is_useful = module.top_k < (num_classes if is_subset else len(classes))
    top_k = f" | top-{module.top_k} {percent(metrics['val/top5'])}" if is_useful else ""
    log.say(f"top-1 {percent(metrics['val/top1'])}{top_k} | loss {format_loss(metrics['val/loss'])}")
    for line in lines:
        log.say(line)
    log.say(f"Written to {job.run_dir / 'evaluation.json'}")
    share = ""
    if is_split and data.source.train is not None:
        total = num_images + len(data.source.train)
        share = f" (a share of the {total:,} images of {data.val_images.location}, data.val_fraction={fraction:g})"
    log.say(summary.counted_sentence(counted, num_images, num_unreadable, share))
    log.close()
    destroy_process_group()
    return metrics["val/top1"]
