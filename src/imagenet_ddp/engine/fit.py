"""A training run in one process, from the config to the last line of its log."""

import os
from pathlib import Path
from typing import Any

import torch

from imagenet_ddp.distributed.launchers import scontrol
from imagenet_ddp.distributed.launchers.world_info import WorldInfo
from imagenet_ddp.engine import build
from imagenet_ddp.engine.build import World
from imagenet_ddp.engine.startup_report import start_lines
from imagenet_ddp.errors import ConfigError
from imagenet_ddp.models.optimizers import num_states
from imagenet_ddp.runs import summary
from imagenet_ddp.runs.checkpoint_file import KEY, checkpoint_bytes, max_new_checkpoints, read
from imagenet_ddp.runs.folder import lock, require_disk_space
from imagenet_ddp.runs.log import Log
from imagenet_ddp.runs.signals import SignalExit, Signals, Stopped, raise_on_signal
from imagenet_ddp.system.text import count_noun, percent

NEXT_STEPS = (
    "These were generated images. Go on with your own, with STL-10, or with ImageNet:",
    " python -m imagenet_ddp.train experiment=quick data=imagefolder data.root=FOLDER",
    " python -m imagenet_ddp.train data=stl10",
    " python -m imagenet_ddp.train data=imagenet data.root=FOLDER",
)


def run(
    config: dict[str, Any],
    world: World,
    run_dir: Path,
    checkpoint: str | None,
    said: list[str],
    command: str,
    signals: Signals,
) -> float | None:
    """The highest val/top1, a fraction; None without validation. Raises Stopped where the run was asked to stop."""
    place = world.place
    locked = lock(run_dir) if place.rank == 0 else None
    log = Log(run_dir / "logs", place.rank)
    log.capture_libraries()
    for line in said:
        log.say(line)
    try:
        with raise_on_signal():  # a network disk may take many minutes to list its images
            job = build.make_run(config, world, run_dir, log, signals, {"command": command})
            if checkpoint is not None:
                _must_continue(job, checkpoint, config["trainer"]["max_epochs"], run_dir)
            if place.rank == 0 and job.checkpoint_callback is not None:
                at_once = max_new_checkpoints(config["trainer"]["max_epochs"], resumed=checkpoint is not None)
                require_disk_space(
                    run_dir, checkpoint_bytes(job.classifier.net, num_states(config["optim"]) or 0), at_once
                )
    except SignalExit as left:
        log.note(str(left))
        raise
    num_train, num_val = len(job.data.train_images), len(job.data.val_images)
    for line in start_lines(config, world, job.data, job.global_batch_size):
        log.say(line)
    log.say(f"Run folder: {run_dir}")
    if place.rank == 0:
        (run_dir / "summary.json").unlink(missing_ok=True)
        summary.write_config(run_dir, config)
    try:
        with build.refusing(begun=lambda: job.metrics.begun):
            job.trainer.fit(job.classifier, datamodule=job.data, ckpt_path=checkpoint, weights_only=True)
    except ConfigError:
        if place.rank == 0 and checkpoint is None:
            (run_dir / "config.yaml").unlink(missing_ok=True)  # nothing was trained: the folder is still a new one
        raise
    except Stopped as stop:
        epoch, step = job.trainer.current_epoch, job.trainer.global_step
        saved = "and saved" if job.checkpoint_callback else "without saving (callbacks.checkpoint is off)"
        log.say(f"Stopped {saved} after step {step}, in epoch {epoch + 1}.")
        if job.checkpoint_callback and not scontrol.is_due(stop.signal_number, config, os.environ):
            program = command.partition(" -m ")[0]  # python, or uv run python
            options = f"resume={job.checkpoint_callback.last_path}{_world_words(config, place)}"
            log.say(f"Go on with: {program} -m imagenet_ddp.train {options}", whole=True)
        raise
    finally:
        job.agreement.end()
        job.data.close()
    train_s, train_cpu_s = job.metrics.times(job.trainer)
    best = job.metrics.best.value
    if place.rank == 0:
        source, metrics = job.data.source, job.trainer.callback_metrics
        images_per_s, data_wait_frac = job.metrics.speed()
        result = {
            **{name: float(metrics[name]) for name in ("val/top1", "val/top5", "val/loss") if name in metrics},
            "best/val/top1": best,
            "best_epoch": job.metrics.best.epoch if best is not None else None,
            "num_val_images": job.classifier.num_counted[0],
            "num_train_images": num_train,
            "num_unreadable_images": len(job.data.bad_images.board.all()),
            "num_classes": len(source.classes),
            "world_size": place.world_size,
            "num_devices": place.world_size * build.own_devices(config),
            "num_nodes": place.num_nodes,
            "global_batch_size": job.global_batch_size,
            "epochs": job.metrics.num_epochs,
            "steps": job.trainer.global_step,
            "images_per_s": None if images_per_s is None else round(images_per_s, 2),
            "data_wait_frac": None if data_wait_frac is None else round(data_wait_frac, 4),
            "train_s": round(train_s, 2),
            "train_cpu_s": round(train_cpu_s, 2),
            "precision": job.trainer.precision,
            "seed": config["seed"],
            "num_parameters": sum(parameter.numel() for parameter in job.classifier.net.parameters()),
            "finished": True,
            **summary.provenance(command),
        }
        summary.write_json(run_dir / "summary.json", result)
    if best is not None:
        log.say(f"Best val top-1 {percent(best)} (epoch {job.metrics.best.epoch}), in {train_s:.0f} s of training.")
    if bad := len(job.data.bad_images.board.all()):
        log.say(f"{count_noun(bad, 'image')} could not be read, listed in {run_dir / 'bad_images.csv'}.")
    log.say(f"Run folder: {run_dir}")
    if config["data"]["name"] == "shapes" and not config["data"]["_target_"]:
        for line in NEXT_STEPS:
            log.say(line)
    if job.classifier.num_counted[0]:
        skips = config["data"]["on_bad_image"] == "skip"
        log.say(summary.counted_sentence(job.classifier.num_counted, num_val, skips=skips))
    log.close()
    del locked
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return best


def _world_words(config: dict[str, Any], place: WorldInfo) -> str:
    """The options that bring the same nodes together again; nothing where a launcher does it, or there is one."""
    if place.num_nodes == 1 or place.source not in ("MASTER_ADDR", "cluster.address"):
        return ""
    address = config["cluster"]["address"] or f"{place.address}:{place.port}"
    return (
        f" trainer.num_nodes={place.num_nodes} trainer.devices={place.local_world_size} cluster.address={address}"
        " (on each node)"
    )


def _must_continue(job: build.Run, checkpoint: str, max_epochs: int | None, run_dir: Path) -> None:
    """The images that lie there are those of the checkpoint, and there is something left to do."""
    stored = read(Path(checkpoint))[KEY]
    in_place = Path(checkpoint).resolve().parent.parent == run_dir.resolve()  # then its summary may be missing yet
    done = stored["epoch"] + (stored["kind"] == "epoch_end" and not in_place)
    if max_epochs is not None and 0 <= max_epochs <= done:
        raise ConfigError(
            f"trainer.max_epochs must be more than the {count_noun(done, 'epoch')} that {checkpoint} has "
            f"behind it, but is {max_epochs}. Hint: trainer.max_epochs={done + 1} or more, or start a new run."
        )
    found = job.data.source.classes
    if stored["classes"] != found:
        differing = sorted(set(stored["classes"]) ^ set(found))[:5]
        raise ConfigError(
            f"the data's classes must be the {len(stored['classes'])} of {checkpoint}, but are"
            f" {len(found)},"
            f" differing in {', '.join(differing)}. Hint: point data.root to the images this run began with,"
            " or start a new run."
        )
    if stored["num_train_images"] != len(job.data.train_images):
        raise ConfigError(
            f"the data must have {stored['num_train_images']} training images as when {checkpoint} was"
            f" written, but has {len(job.data.train_images)}. Hint: point data.root to the images this run began with,"
            " or start a new run."
        )
