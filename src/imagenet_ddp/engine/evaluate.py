"""Evaluate in one process: a checkpoint against validation images, each counted once over all ranks."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from imagenet_ddp.callbacks.bad_images_list import BadImagesList
from imagenet_ddp.callbacks.predictions import Predicted, Predictions
from imagenet_ddp.data.sources.base import Images
from imagenet_ddp.data.sources.registry import check_classes
from imagenet_ddp.engine import build
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.engine.world import World
from imagenet_ddp.models.calibration import calibrate
from imagenet_ddp.runs import predictions, summary
from imagenet_ddp.runs.checkpoint_file import KEY, load_weights, read
from imagenet_ddp.runs.log import Log
from imagenet_ddp.system.text import format_loss, percent


def run(job: Job, plan: Plan, world: World) -> float:
    """The top-1, a fraction; evaluation.json in the job's folder has the rest."""
    assert job.checkpoint is not None
    log = Log(job.run_dir / "logs", world.info.rank)
    log.capture_libraries()
    stored = read(job.checkpoint)
    classes = stored[KEY]["classes"]
    data = build.make_data(plan, world, log.say, need_train=False)
    data.remap_targets(check_classes(data.source, classes, str(job.checkpoint)))
    num_images, num_classes = len(data.val_images), len(data.source.classes)
    module = build.make_module(plan, classes, num_images)
    load_weights(module, stored["state_dict"], str(job.checkpoint))
    bad_images = BadImagesList(job.run_dir / "bad_images.csv", data.bad_images.board.all)
    collected = Predictions()
    trainer = build.make_trainer(plan, world, [bad_images, collected], job.run_dir)
    log.say(world.info.sentence())
    log.say(
        f"Evaluating {job.checkpoint} (epoch {stored[KEY]['epoch'] + 1}, imagenet_ddp {stored[KEY]['version']})"
        f" on {num_images} validation images of {num_classes} classes"
        f" at {job.config['data']['image_size']} pixels, precision {trainer.precision}."
    )
    try:
        with build.refusing():
            trainer.validate(module, datamodule=data, verbose=False)
    finally:
        data.close()
    metrics = {name: float(trainer.callback_metrics[name]) for name in ("val/top1", "val/top5", "val/loss")}
    counted, calibration = module.num_counted, None
    if (predicted := collected.result) is not None:  # rank 0
        is_right = predicted.classes[:, 0] == data.val_images.targets[predicted.index]
        calibration = calibrate(
            predicted.probabilities[:, 0], is_right, predicted.losses, predicted.log_sums, predicted.gaps
        )
        file = predictions.FILES.get(job.config["predictions"])
        if file is not None:
            reasons = dict(data.bad_images.board.all())
            predictions.write(job.run_dir / file, prediction_columns(predicted, data.val_images, classes, reasons))
        result = {
            **metrics,
            "num_val_images": counted[0],
            "num_val_images_unreadable": num_images - counted[0],
            "num_classes": num_classes,
            "world_size": world.info.world_size,
            "num_devices": plan.num_devices,
            "num_nodes": world.info.num_nodes,
            "precision": trainer.precision,
            "checkpoint": str(job.checkpoint.resolve()),
            "epochs": stored[KEY]["epoch"] + 1,
            "classes": classes,
            "labels": stored[KEY]["labels"],
            "predictions": file,
            "calibration": calibration,
            "plan": plan.choices(training=False),
            **summary.provenance(job.command),
        }
        summary.write_config(job.run_dir, job.config)
        summary.write_json(job.run_dir / "evaluation.json", result)
    log.say(
        f"top-1 {percent(metrics['val/top1'])} | top-{module.top_k} {percent(metrics['val/top5'])}"
        f" | loss {format_loss(metrics['val/loss'])}"
    )
    if calibration:
        ece, then = percent(calibration["ece"]), percent(calibration["ece_at_temperature"])
        log.say(f"Calibration error {ece}, {then} at the best temperature, {calibration['temperature']:.3f}")
    log.say(f"Written to {job.run_dir / 'evaluation.json'}")
    log.say(summary.counted_sentence(counted, num_images, skips=job.config["data"]["on_bad_image"] == "skip"))
    log.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return metrics["val/top1"]


def prediction_columns(
    predicted: Predicted, images: Images, classes: Sequence[str], reasons: Mapping[str, str]
) -> dict[str, list[Any]]:
    """Return the columns of the predictions file, a row for each image that was loaded, in their order.

    images: of the split, whose targets are positions in classes. reasons: by path, why an image could not be read.
    """
    index = predicted.loaded
    rows: list[int | None] = [None] * len(index)  # of predicted
    for row, place in enumerate(np.searchsorted(index, predicted.index).tolist()):
        rows[place] = row

    def column(values: np.ndarray) -> list[Any]:
        found = values.tolist()
        return [None if row is None else found[row] for row in rows]

    paths = [images.path(each) for each in index.tolist()]
    tops = [[None if each is None else classes[each] for each in column(top)] for top in predicted.classes.T]
    probabilities = [column(each) for each in predicted.probabilities.T]
    unreadable = [
        reasons.get(path, "cannot be read") if row is None else None for path, row in zip(paths, rows, strict=True)
    ]
    columns = {
        "index": index.tolist(),
        "path": paths,
        "label": [classes[target] for target in images.targets[index].tolist()],
        "prediction": tops[0],
        "confidence": probabilities[0],
        "loss": column(predicted.losses),
        "label_probability": column(np.exp(-predicted.losses)),
    }
    for rank, (top, probability) in enumerate(zip(tops, probabilities, strict=True), 1):
        columns |= {f"class_{rank}": top, f"probability_{rank}": probability}
    return {**columns, "error": unreadable}
