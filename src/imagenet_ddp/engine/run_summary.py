"""Collect the results of a finished run for summary.json and for the last lines of the log."""

import shlex
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.distributed.devices import describe_hardware
from imagenet_ddp.engine.build import Run
from imagenet_ddp.engine.job import Job
from imagenet_ddp.engine.plan import Plan
from imagenet_ddp.engine.world import World
from imagenet_ddp.models.compiled import compile_lines, compile_statistics
from imagenet_ddp.runs import summary
from imagenet_ddp.system.text import count_noun, percent

NEXT_STEPS = (  # options of train, comment
    ("experiment=finetune data=imagefolder data.root=FOLDER", "your images, from ImageNet weights"),
    ("experiment=quick data=imagefolder data.root=FOLDER", "your images, from scratch"),
    ("data=stl10", "STL-10, which is downloaded"),
    ("data=imagenet data.root=FOLDER", "ImageNet"),
)
MIN_EPOCHS = 3  # epochs after which an accuracy at chance level is meaningful


def results(job: Job, plan: Plan, world: World, parts: Run, train_s: float, train_cpu_s: float) -> dict[str, Any]:
    """Return the content of summary.json. train_s: seconds of training. train_cpu_s: CPU seconds of all ranks. Both
    include the parts before a resume, whereas `hardware` describes the last part only."""
    info, data = plan.world_info, parts.data
    metrics = {**parts.train_log.scores, **parts.trainer.callback_metrics}  # scores may be from before a resume
    times = parts.train_log.train_times.run
    best = parts.train_log.best.value
    gpu_models = world.gpu_models or [gpu.model for gpu in plan.own_gpus()]  # empty if this is the only process
    options = plan.config.data
    root = options["root"]
    return {
        "experiment": job.experiment,
        "data": {
            "name": options["_target_"] or options["name"],
            "folder": Path(root).absolute().name if root else None,
        },
        "hardware": describe_hardware(plan.accelerator.value, gpu_models, info.num_nodes),
        **{name: float(metrics[name]) for name in ("val/top1", "val/top5", "val/loss") if name in metrics},
        "best/val/top1": best,
        "best_epoch": parts.train_log.best.epoch if best is not None else None,
        "num_val_images": parts.module.num_counted[0],
        "num_train_images": len(data.train_images),
        "num_unreadable_images": len(data.bad_images.board.all()),
        "num_classes": len(data.source.classes),
        "world_size": info.world_size,
        "num_devices": plan.num_devices,
        "num_nodes": info.num_nodes,
        "global_batch_size": plan.global_batch_size,
        "epochs": parts.train_log.num_epochs,
        "steps": parts.trainer.global_step,
        "images_per_s": round(times.images_per_s, 2) if times.steps else None,
        "data_wait_frac": round(times.data_wait_frac, 4) if times.steps else None,
        "train_s": round(train_s, 2),
        "train_cpu_s": round(train_cpu_s, 2),
        "precision": parts.trainer.precision,  # the precision that was used
        "compiled": compile_statistics(parts.module),
        "seed": plan.config.seed,
        "num_parameters": sum(parameter.numel() for parameter in parts.module.net.parameters()),
        "finished": True,
        "plan": plan.choices(),
        **summary.provenance(job.command),
    }


def closing_lines(job: Job, parts: Run, train_s: float) -> list[str]:
    """Return the last lines of the log."""
    lines: list[str] = []
    best, data = parts.train_log.best.value, job.config.data
    if best is not None:
        epoch = parts.train_log.best.epoch or f"0: {parts.train_log.start}"
        lines.append(f"Best val top-1 {percent(best)} (epoch {epoch}), in {train_s:.0f} s of training.")
    lines += _chance_lines(job, parts)
    if num_bad := len(parts.data.bad_images.board.all()):
        lines.append(f"{count_noun(num_bad, 'image')} could not be read. See {job.run_dir / 'bad_images.csv'}.")
    lines += compile_lines(parts.module)
    lines.append(f"Run folder: {job.run_dir}")
    is_generated = data.name == "shapes" and not data.target
    if parts.trainer.global_step and not is_generated:
        lines.append(f"Make a report: `{job.program} -m imagenet_ddp.report {shlex.quote(str(job.run_dir))}`")
    if (counted := parts.module.num_counted)[0]:
        num_images, is_whole = len(parts.data.val_images), str(parts.trainer.limit_val_batches) == "1.0"  # 1: one batch
        lines.append(summary.counted_sentence(counted, num_images, is_whole * (num_images - counted[0])))
    if not parts.trainer.global_step and best is None:
        lines.append("Nothing was trained. Hint: trainer.max_epochs, max_steps and limit_train_batches must not be 0.")
    elif is_generated:
        lines += _next_steps(job.program)
    return lines


def _chance_lines(job: Job, parts: Run) -> list[str]:
    """Return a line if the best val/top1 is no better than always answering the most frequent class."""
    best, means, targets = parts.train_log.best.value, parts.train_log.epoch_means, parts.data.val_images.targets
    # An average may lag behind the weights for a long time, and balanced classes cost accuracy on the frequent ones.
    is_balanced = job.config.data.sampling == "balanced" or job.config.loss.class_weights is not None
    is_comparable = job.config.averaging.name == "none" and not is_balanced
    if best is None or means is None or parts.train_log.num_epochs < MIN_EPOCHS or not is_comparable:
        return []
    counts = np.bincount(targets)
    guess = counts.max() / counts.sum()
    luck = 3 * (guess * (1 - guess) / max(parts.module.num_counted[0], 1)) ** 0.5  # three standard deviations
    if len(parts.data.source.classes) < 2 or best > guess + min(luck, 0.1 * (1 - guess)):
        return []
    data, hints = job.config.data, ["check the labels in train_batch.png and in the validation images"]
    if data.augment != "none" and data.flip:
        hints.append("set data.flip=0 if mirrored images belong to other classes")
    if data.fit == "crop":
        hints.append("set data.fit=pad if the centre crop leaves out the object")
    return [
        f"Val top-1 is no better than always answering the most frequent class ({percent(guess)}); train top-1 is "
        f"{percent(means.top1)}. Hint: {', or '.join(hints)}."
    ]


def _next_steps(program: str) -> list[str]:
    """Return the lines that suggest what to train next. program: how this run called Python."""
    width = max(len(options) for options, _ in NEXT_STEPS)
    return [
        "This run used generated images. Next, train on your own images, on STL-10 or on ImageNet:",
        *(f" {program} -m imagenet_ddp.train {options:{width}}  # {comment}" for options, comment in NEXT_STEPS),
    ]
