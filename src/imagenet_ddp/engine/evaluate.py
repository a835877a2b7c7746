"""An evaluation in one process: a checkpoint against validation images, each counted once over all ranks."""

from pathlib import Path
from typing import Any

import torch

from imagenet_ddp.callbacks.bad_images_list import BadImagesList
from imagenet_ddp.data.sources.registry import check_classes
from imagenet_ddp.distributed import devices
from imagenet_ddp.engine import build
from imagenet_ddp.engine.build import World
from imagenet_ddp.runs import summary
from imagenet_ddp.runs.checkpoint_file import KEY, load_weights, read
from imagenet_ddp.runs.log import Log
from imagenet_ddp.system.text import format_loss, percent


def run(config: dict[str, Any], world: World, run_dir: Path, checkpoint: Path, command: str) -> float:
    """The top-1, a fraction; evaluation.json in run_dir has the rest."""
    place = world.place
    log = Log(run_dir / "logs", place.rank)
    log.capture_libraries()
    devices.use_threads(devices.choose_num_threads(config["cluster"]["num_threads"], place.local_world_size))
    stored = read(checkpoint)
    classes = stored[KEY]["classes"]
    data = build.make_data(config, world, log.say, need_train=False)
    data.remap_targets(check_classes(data.source, classes, str(checkpoint)))
    num_images = len(data.val_images)
    classifier = build.make_classifier(config, len(classes), num_images, 1)
    load_weights(classifier, stored["state_dict"], str(checkpoint))
    bad_images = BadImagesList(run_dir / "bad_images.csv", data.bad_images.board.all)
    trainer = build.make_trainer(config, world, [bad_images], run_dir, log.say)
    log.say(place.sentence())
    log.say(
        f"Evaluating {checkpoint} (epoch {stored[KEY]['epoch'] + 1}, imagenet_ddp {stored[KEY]['version']})"
        f" on {num_images} validation images of {len(data.source.classes)} classes"
        f" at {config['data']['image_size']} pixels, precision {trainer.precision}."
    )
    try:
        trainer.validate(classifier, datamodule=data, verbose=False)
    finally:
        data.close()
    metrics = {name: float(trainer.callback_metrics[name]) for name in ("val/top1", "val/top5", "val/loss")}
    counted = classifier.num_counted
    if place.rank == 0:
        result = {
            **metrics,
            "num_val_images": counted[0],
            "num_val_images_unreadable": num_images - counted[0],
            "num_classes": len(data.source.classes),
            "world_size": place.world_size,
            "num_devices": place.world_size * build.own_devices(config),
            "num_nodes": place.num_nodes,
            "precision": trainer.precision,
            "checkpoint": str(checkpoint.resolve()),
            "epochs": stored[KEY]["epoch"] + 1,
            **summary.provenance(command),
        }
        summary.write_config(run_dir, config)
        summary.write_json(run_dir / "evaluation.json", result)
    log.say(
        f"top-1 {percent(metrics['val/top1'])} | top-{classifier.top_k} {percent(metrics['val/top5'])}"
        f" | loss {format_loss(metrics['val/loss'])}"
    )
    log.say(f"Written to {run_dir / 'evaluation.json'}")
    log.say(summary.counted_sentence(counted, num_images, skips=config["data"]["on_bad_image"] == "skip"))
    log.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return metrics["val/top1"]
