"""Make the last lines of a run's log, and summary.json."""

import math
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from imagenet_ddp.callbacks.fine_tuning import has_statistics
from imagenet_ddp.callbacks.loop_state import find_callback
from imagenet_ddp.callbacks.regression_head import RegressionHead
from imagenet_ddp.callbacks.run_end import ended_by
from imagenet_ddp.callbacks.time_budget import TimeBudget
from imagenet_ddp.cli.overrides import shell_line
from imagenet_ddp.cli.photograph_lines import check_line, train_line, untrained_sentence
from imagenet_ddp.config.figures import TOP1, figure_of
from imagenet_ddp.config.section import leaves, to_plain
from imagenet_ddp.config.validators import shown
from imagenet_ddp.curation.accuracies import TITLE, grouped_sentence, in_order, of_folds, of_net, uneven_sentence
from imagenet_ddp.curation.interval import interval_words
from imagenet_ddp.data.sources.groups import groups_of
from imagenet_ddp.errors import RunError
from imagenet_ddp.launch import devices
from imagenet_ddp.launch.job import Job
from imagenet_ddp.launch.plan import Plan
from imagenet_ddp.launch.world import World
from imagenet_ddp.runs import result_files
from imagenet_ddp.system.files import short_path
from imagenet_ddp.system.text import count_noun, format_loss, percent, without_secrets
from imagenet_ddp.training.build import Run

HIGH_LOSS = 3.0  # times the loss of a guess, which nets with settled batch norm hardly reach
SETTLED = 0.01  # share of batch norm's initial statistics in its running averages, from which on they count as settled
MIN_EPOCHS = 3  # epochs after which an accuracy at chance level is meaningful


def results(job: Job, plan: Plan, world: World, parts: Run, train_s: float, train_cpu_s: float) -> dict[str, Any]:
    """Return the content of summary.json. train_s: seconds of training. train_cpu_s: CPU seconds of all ranks. Both
    include the parts before a resume, whereas `hardware` describes the last part only."""
    place, data = plan.place, parts.data
    metrics = {**parts.train_log.scores, **parts.trainer.callback_metrics}  # scores may be from before a resume
    times = parts.train_log.train_times.run
    best = parts.train_log.best.value
    gpu_models = world.gpu_models or [gpu.model for gpu in plan.own_gpus()]  # empty if this is the only process
    options = plan.config.data
    folder = Path(without_secrets(options.root)).absolute().name if options.root else None
    head = find_callback(parts.trainer, RegressionHead)
    return {
        "ended_by": ended_by(parts.trainer, parts.train_log.num_epochs),
        "experiment": job.experiment,
        "data": {"name": options.target or options.name, "folder": folder},
        "hardware": devices.describe_hardware(plan.accelerator.value, gpu_models, place.num_nodes),
        **{name: float(value) for name, value in metrics.items() if name.startswith("val/")},
        f"best/{parts.train_log.best.monitor}": best,
        "best_epoch": parts.train_log.best.epoch if best is not None else None,
        "best_step": parts.train_log.best.step,
        "start": parts.train_log.start,
        **({"least_budget_min": least_min} if (least_min := _least_min(parts)) is not None else {}),
        **({"expected": head.estimate.plain} if head is not None and head.estimate is not None else {}),
        "num_val_images": parts.module.val_counts[0],
        "num_train_images": len(data.train_images),
        "num_unreadable_images": len(data.bad_images.board.all()),
        "num_classes": len(data.source.classes),
        "world_size": place.world_size,
        "num_devices": plan.num_devices,
        "num_nodes": place.num_nodes,
        "global_batch_size": plan.global_batch_size,
        "epochs": parts.train_log.num_epochs,
        "steps": parts.trainer.global_step,
        "images_per_s": round(times.images_per_s, 2) if times.steps else None,
        "data_wait_frac": round(times.data_wait_frac, 4) if times.steps else None,
        "train_s": round(train_s, 2),
        "train_cpu_s": round(train_cpu_s, 2),
        "precision": parts.trainer.precision,  # the precision that was used
        "seed": plan.config.seed,
        "num_parameters": sum(parameter.numel() for parameter in parts.module.net.parameters()),
        "finished": True,
        "plan": plan.choices(),
        **result_files.provenance(job.command),
    }


def closing_lines(job: Job, parts: Run, train_s: float, ignored: Sequence[str]) -> list[str]:
    """Return the last lines of the log. ignored: sentences about the parts of image files that are left out."""
    best, data = parts.train_log.best.value, job.config.data
    lines = _end_lines(job, parts)
    if estimated := _estimate_lines(parts):
        lines += estimated
    elif best is not None:
        epoch = parts.train_log.best.epoch or f"0: {parts.train_log.start}"
        score = parts.module.task.score
        time = f", in {train_s:.0f} s of training" if parts.trainer.global_step else ""
        lines.append(f"Best val {score.title} {score.text(best)} (epoch {epoch}){time}.")
        if (number := parts.module.val_counts[0]) and score == TOP1:
            range_of = interval_words(round(best * number), number)
            lines[-1] += f" 95 % interval, from {count_noun(number, 'image')}: {range_of}."
        targets, labels = parts.data.val_images.targets, parts.data.source.labels
        if score == TOP1:
            grouped = grouped_sentence(groups_of(parts.data.val_images))
            lines[-1] += "".join(f" {each}" for each in (grouped, uneven_sentence(targets, None, labels)) if each)
        lines += _no_gain_lines(job, parts) or _no_time_lines(job, parts)
    lines += _other_best_lines(parts)
    loss, guess = parts.train_log.scores.get("val/loss"), parts.module.task.guess_loss
    untrained = parts.module.net if job.config.model.weights is None else nn.Module()  # others come with averages
    steps, epochs = parts.trainer.global_step, parts.train_log.num_epochs
    lines += batch_norm_lines(untrained, loss, guess, steps, epochs) or _chance_lines(job, parts)
    lines += [str(parts.data.source.wrong_root)] if parts.data.source.wrong_root else []  # said at the start, too
    if num_bad := len(parts.data.bad_images.board.all()):
        lines.append(f"{count_noun(num_bad, 'image')} could not be read. See {job.run_dir / 'bad_images.csv'}.")
    lines += [*ignored, f"Run folder: {short_path(job.run_dir)}"]
    is_generated = data.name == "shapes" and not data.target
    has_net = bool(parts.trainer.global_step) or best is not None
    if has_net and not is_generated and not job.in_sweep:  # which ends with one line for all
        lines.append(f"Make a report: `python -m imagenet_ddp.report {shlex.quote(str(short_path(job.run_dir)))}`")
    if (counted := parts.module.val_counts)[0]:
        num_images, is_whole = len(parts.data.val_images), str(parts.trainer.limit_val_batches) == "1.0"  # 1: one batch
        lines.append(result_files.counted_sentence(counted, num_images, is_whole * (num_images - counted[0])))
    if parts.trainer.global_step and not parts.train_log.begun:
        lines.append("No epoch was left to train. Hint: set a larger trainer.max_epochs to continue.")
    if not parts.trainer.global_step and best is None:
        lines.append("Nothing was trained. Hint: trainer.max_epochs, max_steps and limit_train_batches must not be 0.")
    elif is_generated:
        lines += [
            "This run used generated images. Next, use others:",
            f"your images, to find faults: `{check_line('data.root=FOLDER')}`",
            f"your images, from ImageNet weights: `{train_line('data.root=FOLDER')}`",
            f"STL-10, which is downloaded: `{shell_line('train', ['data=stl10'])}`",
            f"ImageNet: `{shell_line('train', ['data=imagenet', 'data.root=FOLDER'])}`",
        ]
    return lines


def _end_lines(job: Job, parts: Run) -> list[str]:
    """Return a line on the option that has ended the training."""
    if (key := ended_by(parts.trainer, parts.train_log.num_epochs)) is None:
        return []
    value = leaves(to_plain(job.config)).get(key)
    if value == 0:  # nothing was to be trained
        return []
    of = "a callback that sets trainer.should_stop" if key == "callbacks" else key
    epochs, begun = parts.train_log.num_epochs, parts.train_log.num_begun
    steps = count_noun(parts.trainer.global_step, "step")
    at = f" in epoch {begun}, after {steps}" if begun > epochs else f", after {count_noun(epochs, 'epoch')} and {steps}"
    if isinstance(value, float) and value.is_integer():  # as it is typed
        value = int(value)
    return [f"Ended by {of}{'' if value is None else f'={shown(value)}'}{at}."]


def _estimate_lines(parts: Run) -> list[str]:
    """Return what accuracy to expect of a net whose last layer alone is fitted, the most reliable first."""
    head = find_callback(parts.trainer, RegressionHead)
    if head is None or head.estimate is None or head.columns is None:
        return []
    folds, best, number = head.estimate.regression, parts.train_log.best.value, parts.module.val_counts[0]
    found = [of_folds(folds.num_right, folds.num_images, f"all {folds.num_images:,} training images")]
    found += [of_net(round(best * number), number)] if best is not None and number else []
    said = [f"{place}. {each.sentence}" for place, each in enumerate(in_order(found), 1)]
    targets = head.columns[2].numpy()
    uneven = uneven_sentence(targets, head.estimate.shares.argmax(1) == targets, parts.data.source.labels)
    grouped = grouped_sentence(groups_of(parts.data.train_images))
    return [f"{TITLE}:", *said, *filter(None, (grouped, uneven)), head.estimate.curve.sentence]


def _other_best_lines(parts: Run) -> list[str]:
    """Return a line on the weights in best.ckpt if another metric than the score selects them."""
    if parts.checkpoint_callback is None:
        return []
    best = parts.checkpoint_callback.best
    if best.value is None or best.monitor == parts.train_log.best.monitor:
        return []
    value = figure_of(best.monitor).text(best.value)
    return [f"best.ckpt is that of the best {best.monitor} ({value}, epoch {best.epoch})."]


def _no_gain_lines(job: Job, parts: Run) -> list[str]:
    """Return a line if no later validation was better than that of the weights before the first step."""
    log, score = parts.train_log, parts.module.task.score
    best, last = log.best.value, log.scores.get(log.best.monitor)
    if best is None or last is None or log.best.epoch or not log.val_step:
        return []
    number = parts.module.val_counts[0]
    images = f" (a difference of {count_noun(round((best - last) * number), 'image')} of {number:,})"
    longer = "budget_min" if job.config["budget_min"] else "trainer.max_epochs"
    hint = f"more photographs or more time ({longer}) may help"
    if (loss := log.scores.get("val/loss", 0)) > parts.module.task.guess_loss:
        lower = f"set optim.lr to less than {job.config.optim.lr:g}, or leave it out for that of the recipe"
        hint = f"a val loss of {format_loss(loss)} is worse than that of a guess; {lower}"
    elif best == 1 and score == TOP1:
        hint = "where all validation images are right, more of them are needed to show a better net"
    return [
        f"Training did not improve on its start, so the best net is that of epoch 0 ({log.start}): val {score.title} "
        f"is {score.text(last)} at the end{images if score == TOP1 else ''}. Hint: {hint}."
    ]


def _no_time_lines(job: Job, parts: Run) -> list[str]:
    """Return a line if budget_min left no time to train."""
    least_min = _least_min(parts)
    return [] if least_min is None else [untrained_sentence(job.run_dir, parts.train_log.start, least_min)]


def _least_min(parts: Run) -> int | None:
    """Return the least budget_min that trains something; None if something was trained, or could be."""
    budget = find_callback(parts.trainer, TimeBudget)
    return None if budget is None or parts.trainer.global_step else budget.least_min


def batch_norm_lines(net: nn.Module, val_loss: float | None, guess: float, steps: int, epochs: int) -> list[str]:
    """Return a line if batch norm's running averages explain a high validation loss: after few updates, they are still
    far from the statistics of the batches, with which the training is scored. guess: Task.guess_loss. steps,
    epochs: of the run so far."""
    momenta = [getattr(layer, "momentum", None) for layer in net.modules() if has_statistics(layer)]
    kept = [math.log1p(-each) for each in momenta if each and each < 1]  # logs of what an update leaves of the average
    if not kept or steps == 0 or val_loss is None or not val_loss > HIGH_LOSS * guess:
        return []
    if steps >= (settled := math.ceil(math.log(SETTLED) / max(kept))):
        return []
    more = math.ceil(settled * max(epochs, 1) / steps)
    return [
        f"The validation loss, {format_loss(val_loss)}, is far above that of a guess, {guess:.2f}: a validation uses "
        f"batch norm's running averages, which after {count_noun(steps, 'update')} of the weights are far from the "
        f"statistics of the batches. Hint: train for {count_noun(settled, 'update')}, as with "
        f"trainer.max_epochs={more}, or set model.weights=DEFAULT."
    ]


def _chance_lines(job: Job, parts: Run) -> list[str]:
    """Return a line if the best val/top1 is no better than always answering the most frequent class."""
    best, means, targets = parts.train_log.best.value, parts.train_log.epoch_means, parts.data.val_images.targets
    # An average may lag behind the weights for a long time, and balanced classes cost accuracy on the frequent ones.
    is_balanced = job.config.data.sampling == "balanced" or job.config.loss.get("class_weights") is not None
    is_comparable = job.config.averaging.name == "none" and not is_balanced
    is_comparable &= parts.module.task.score == TOP1
    if best is None or means is None or parts.train_log.num_epochs < MIN_EPOCHS or not is_comparable:
        return []
    counts = np.bincount(targets)
    guess = counts.max() / counts.sum()
    luck = 3 * (guess * (1 - guess) / max(parts.module.val_counts[0], 1)) ** 0.5  # three standard deviations
    if len(parts.data.source.classes) < 2 or best > guess + min(luck, 0.1 * (1 - guess)):
        return []
    data, hints = job.config.data, ["check the labels in train_batch.png and in the validation images"]
    if data.augment != "none" and data.flip:
        hints.append("set data.flip=0 if mirrored images belong to other classes")
    if data.fit == "crop":
        hints.append("set data.fit=pad if the centre crop leaves out the object")
    return [
        f"Val top-1 is no better than always answering the most frequent class ({percent(guess)}); train top-1 is "
        f"{percent(means['top1'])}. Hint: {', or '.join(hints)}."
    ]


def require_files(job: Job, parts: Run) -> None:
    """Raise RunError if files that the run had written were removed before it ended. Those that can be written again
    are."""
    lost = [] if (job.run_dir / "config.yaml").exists() else ["config.yaml"]
    if lost:
        result_files.write_config(job.run_dir, job.config)
    if parts.checkpoint_callback is not None:
        lost += [str(path.relative_to(job.run_dir)) for path in parts.checkpoint_callback.lost_files()]
    if lost:
        raise RunError(
            f"{job.run_dir} must keep its files until the run ends, but {' and '.join(lost)} "
            f"{'was' if len(lost) == 1 else 'were'} removed during the training. config.yaml, summary.json and "
            "metrics.csv are written; removed logs and weights are lost. Hint: train again for the best weights, or "
            "use checkpoints/last.ckpt if it is there."
        )
