"""Evaluate in one process: a checkpoint against validation images, each counted once over all ranks."""

import torch

from imagenet_ddp.callbacks.bad_images_list import BadImagesList
from imagenet_ddp.callbacks.loggers.background import connect
from imagenet_ddp.data.sources.registry import check_classes
from imagenet_ddp.engine import build
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.engine.world import World
from imagenet_ddp.runs import summary
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
    trainer = build.make_trainer(plan, world, [bad_images], job.run_dir)
    log.say(world.info.sentence())
    log.say(
        f"Evaluating {job.checkpoint} (epoch {stored[KEY]['epoch'] + 1}, imagenet_ddp {stored[KEY]['version']})"
        f" on {num_images} validation images of {num_classes} classes"
        f" at {job.config['data']['image_size']} pixels, precision {trainer.precision}."
    )
    try:
        with build.refusing():
            connect(trainer.loggers)
            trainer.validate(module, datamodule=data, verbose=False)
    finally:
        data.close()
    metrics = {name: float(trainer.callback_metrics[name]) for name in ("val/top1", "val/top5", "val/loss")}
    counted = module.num_counted
    if world.info.rank == 0:
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
            "plan": plan.choices(training=False),
            **summary.provenance(job.command),
        }
        summary.write_config(job.run_dir, job.config)
        summary.write_json(job.run_dir / "evaluation.json", result)
    log.say(
        f"top-1 {percent(metrics['val/top1'])} | top-{module.top_k} {percent(metrics['val/top5'])}"
        f" | loss {format_loss(metrics['val/loss'])}"
    )
    log.say(f"Written to {job.run_dir / 'evaluation.json'}")
    log.say(summary.counted_sentence(counted, num_images, skips=job.config["data"]["on_bad_image"] == "skip"))
    log.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return metrics["val/top1"]
