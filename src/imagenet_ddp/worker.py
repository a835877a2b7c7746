"""What one process does, from its first line to its exit code: meet the others, build, train or evaluate, record."""

import os
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from imagenet_ddp.distributed.rendezvous import Place, launched_place
from imagenet_ddp.run.signals import Signals, exit_on_signal
from imagenet_ddp.schema import ConfigError


def train(config: dict[str, Any], run_dir: str, checkpoint: str | None, said: list[str], command: str) -> float | None:
    """In every process of a run. config: resolved, plain; said: lines from before, for the head of the log.

    The highest val/top1, a fraction; None without validation. Leaves by SystemExit with the project's exit codes.
    """
    return _as_process(partial(_train, config, Path(run_dir), checkpoint, said, command, Signals().hold()))


def evaluate(config: dict[str, Any], run_dir: str, checkpoint: str, command: str) -> float:
    """In every process of an evaluation; the top-1, a fraction."""
    exit_on_signal()
    return _as_process(partial(_evaluate, config, Path(run_dir), checkpoint, command))


def _as_process(job: Callable[[], Any]) -> Any:
    from imagenet_ddp.run.stop import Stopped

    place = launched_place(os.environ) or Place()
    try:
        return job()
    except ConfigError as error:
        if place.world_size == 1:
            raise
        for mistake in error.mistakes:
            print(f"rank {place.rank}: {mistake}", file=sys.stderr, flush=True)
        sys.exit(2)
    except Stopped as stop:
        sys.exit(128 + stop.signal_number)
    except Exception:
        # shown here and whole: Hydra would cut the traceback down to its last line
        if place.world_size == 1:
            traceback.print_exc()
            sys.exit(1)
        _explain_failure(place)
        # at once: threads of Gloo and of other ranks' stores may hold up an orderly end
        sys.stderr.flush()
        os._exit(1)


def _explain_failure(place: Place) -> None:
    """This rank's own error as the thing shown; one line where it only follows another rank's."""
    try:
        from imagenet_ddp.distributed.store import connect

        store = connect(place, 2.0)
        first = int(store.add("failed/count", 1)) == 1
        if first:
            store.set("failed/first", str(place.rank))
        elif store.wait(["failed/first"], timedelta(seconds=2)) is None:
            cause = store.get("failed/first").decode()
            print(f"rank {place.rank} ends because rank {cause} failed", file=sys.stderr)
            return
    except Exception:  # the store's server may be gone already
        pass
    print(f"rank {place.rank} failed:\n{traceback.format_exc()}", file=sys.stderr)


def _world(config: dict[str, Any]) -> "Any":
    from torch.distributed import PrefixStore

    from imagenet_ddp.build import World
    from imagenet_ddp.distributed.store import connect

    place = launched_place(os.environ) or Place()
    if place.world_size == 1:
        return World(place)
    timeout_s = config["cluster"]["timeout_s"]
    prefix = f"imagenet_ddp/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    store = connect(place, timeout_s)
    return World(place, store, lambda: PrefixStore(prefix, connect(place, timeout_s)))


def _train(
    config: dict[str, Any], run_dir: Path, checkpoint: str | None, said: list[str], command: str, signals: Signals
) -> float | None:
    import torch

    from imagenet_ddp import build
    from imagenet_ddp.announce import start_lines
    from imagenet_ddp.run import record
    from imagenet_ddp.run.log import Log
    from imagenet_ddp.run.stop import Stopped

    world = _world(config)
    place = world.place
    log = Log(run_dir / "logs", place.rank)
    log.take_over()
    for line in said:
        log.say(line)
    run = build.make_run(config, world, run_dir, log, signals, {"command": command})
    num_train, num_val = len(run.data.train_images), len(run.data.val_images)
    if checkpoint is not None:
        _must_continue(run, checkpoint)
    for line in start_lines(config, world, run.data, run.global_batch_size):
        log.say(line)
    if place.rank == 0:
        (run_dir / "summary.json").unlink(missing_ok=True)
        record.write_config(run_dir, config)
    try:
        run.trainer.fit(run.classifier, datamodule=run.data, ckpt_path=checkpoint, weights_only=True)
    except Stopped:
        epoch, step = run.trainer.current_epoch, run.trainer.global_step
        log.say(f"Stopped and saved after step {step}, in epoch {epoch + 1}.")
        log.say(f"Go on with: python -m imagenet_ddp.train resume={run.saver.last_path}")
        raise
    finally:
        run.agreement.end()
        run.data.close()
    train_s, train_cpu_s = run.meters.times(run.trainer)
    best = run.saver.best_top1
    if place.rank == 0:
        source, meters, metrics = run.data.source, run.meters, run.trainer.callback_metrics
        summary = {
            **{name: float(metrics[name]) for name in ("val/top1", "val/top5", "val/loss") if name in metrics},
            "best/val/top1": best,
            "best_epoch": run.saver.best_epoch if best is not None else None,
            "num_val_images": run.record.counted[0],
            "num_train_images": num_train,
            "num_classes": len(source.classes),
            "world_size": place.world_size,
            "num_devices": place.world_size,
            "num_nodes": place.num_nodes,
            "global_batch_size": run.global_batch_size,
            "epochs": run.trainer.current_epoch,
            "steps": run.trainer.global_step,
            "images_per_s": round(meters.all_images / meters.all_batch_s, 2) if meters.all_batch_s else None,
            "data_wait_frac": round(meters.all_data_s / meters.all_batch_s, 4) if meters.all_batch_s else None,
            "train_s": round(train_s, 2),
            "train_cpu_s": round(train_cpu_s, 2),
            "precision": run.trainer.precision,
            "seed": config["seed"],
            "num_parameters": sum(parameter.numel() for parameter in run.classifier.net.parameters()),
            "finished": True,
            **record.circumstances(command),
        }
        record.write_json(run_dir / "summary.json", summary)
        run.record.draw(run.classifier.top_k)
    if best is not None:
        log.say(f"Best val top-1 {100 * best:.2f} % (epoch {run.saver.best_epoch}), in {train_s:.0f} s of training.")
    log.say(f"Run folder: {run_dir}")
    if config["data"]["name"] == "shapes":
        for line in NEXT_STEPS:
            log.say(line)
    if run.record.counted[0]:
        log.say(record.counted_sentence(run.record.counted, num_val))
    log.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return best


NEXT_STEPS = (
    "These were generated images. Go on with your own, with STL-10, or with ImageNet:",
    "  python -m imagenet_ddp.train experiment=quick data=imagefolder data.root=FOLDER",
    "  python -m imagenet_ddp.train data=stl10",
    "  python -m imagenet_ddp.train data=imagenet data.root=FOLDER",
)


def _must_continue(run: Any, checkpoint: str) -> None:
    """The images that lie there are those of the checkpoint."""
    from imagenet_ddp.run.checkpoint import KEY, read

    stored = read(Path(checkpoint))[KEY]
    found = run.data.source.classes
    if stored["classes"] != found:
        differing = sorted(set(stored["classes"]) ^ set(found))[:5]
        raise ConfigError(
            f"the data's classes are expected to be the {len(stored['classes'])} of {checkpoint}, but are"
            f" {len(found)},"
            f" differing in {', '.join(differing)}. HINT: point data.root to the images this run began with,"
            " or start a new run."
        )
    if stored["num_train_images"] != len(run.data.train_images):
        raise ConfigError(
            f"the data is expected to have {stored['num_train_images']} training images as when {checkpoint} was"
            f" written, but has {len(run.data.train_images)}. HINT: point data.root to the images this run began with,"
            " or start a new run."
        )


def _evaluate(config: dict[str, Any], run_dir: Path, checkpoint: str, command: str) -> float:
    import torch

    from imagenet_ddp import build
    from imagenet_ddp.data.sources import check_classes
    from imagenet_ddp.distributed import devices
    from imagenet_ddp.run import record
    from imagenet_ddp.run.checkpoint import KEY, read
    from imagenet_ddp.run.log import Log

    world = _world(config)
    place = world.place
    log = Log(run_dir / "logs", place.rank)
    log.take_over()
    torch.set_num_threads(devices.choose_num_threads(config["cluster"]["num_threads"], place.local_world_size))
    stored = read(Path(checkpoint))
    classes = stored[KEY]["classes"]
    data = build.make_data(config, world, need_train=False)
    data.remap_targets(check_classes(data.source, classes, checkpoint))
    num_images = len(data.val_images)
    classifier = build.make_classifier(config, len(classes), num_images, 1)
    classifier.load_state_dict(stored["state_dict"])
    trainer = build.make_trainer(config, world, [], run_dir)
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
    counted = classifier.counted.compute()
    if place.rank == 0:
        summary = {
            **metrics,
            "num_val_images": counted[0],
            "num_classes": len(data.source.classes),
            "world_size": place.world_size,
            "num_devices": place.world_size,
            "num_nodes": place.num_nodes,
            "precision": trainer.precision,
            "checkpoint": str(Path(checkpoint).resolve()),
            "epochs": stored[KEY]["epoch"] + 1,
            **record.circumstances(command),
        }
        record.write_config(run_dir, config)
        record.write_json(run_dir / "evaluation.json", summary)
    log.say(
        f"top-1 {100 * metrics['val/top1']:.2f} % | top-{classifier.top_k} {100 * metrics['val/top5']:.2f} %"
        f" | loss {metrics['val/loss']:.4f}"
    )
    log.say(f"Written to {run_dir / 'evaluation.json'}")
    log.say(record.counted_sentence(counted, num_images))
    log.close()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return metrics["val/top1"]
