"""Describe the net, the data, the accuracy, and how the time was spent."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from imagenet_ddp.report.evaluation import Predictions
from imagenet_ddp.report.run import Run, as_number
from imagenet_ddp.system.text import count_noun, duration, percent

LONG = ("Command", "Checkpoint", "Versions", "Commit")  # facts that take a line of their own


@dataclass(frozen=True)
class Figure:
    name: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Share:
    name: str
    text: str
    share: float  # 0..1


def title(options: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    """Return the title, such as "resnet18 on imagefolder tiny10"."""
    data = _mapping(summary, "data")
    name = data.get("name") or options.get("data._target_") or options.get("data.name") or "images"
    model = options.get("model._target_") or options.get("model.name") or "A net"
    folder = data.get("folder") or Path(str(options.get("data.root") or "")).name
    return f"{model} on {name} {folder}".rstrip()


def _mapping(summary: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = summary.get(key)
    return found if isinstance(found, dict) else {}


def figures(run: Run, found: Predictions | None) -> list[Figure]:
    """Return the key figures at the head of the page."""
    shown = []
    if run.best_top1 is not None:
        epoch = f"epoch {run.best_epoch}" if run.best_epoch is not None else ""
        shown.append(Figure("best top-1", percent(run.best_top1), epoch))
        # with 5 or fewer classes, top-5 is always 100 %
        if run.top5 is not None and (as_number(run.summary.get("num_classes")) or 6) > 5:
            shown.append(Figure("top-5", percent(run.top5), epoch))
    elif found is not None and len(found):
        shown.append(Figure("top-1", percent(float(found.is_right.mean())), count_noun(len(found), "image")))
        if found.top.shape[1] < len(found.classes):
            is_among = (found.top == found.target[:, None]).any(axis=1)
            shown.append(Figure(f"top-{found.top.shape[1]}", percent(float(is_among.mean()))))
    if run.train_s is not None:
        epochs = f"{run.epochs} of {run.max_epochs} epochs" if run.max_epochs else count_noun(run.epochs or 0, "epoch")
        shown.append(Figure("training time", duration(run.train_s), epochs))
    return shown


def facts(run: Run, found: Predictions | None) -> list[tuple[str, str]]:
    """Return the facts shown below the key figures on the page, as (name, text) pairs."""
    summary, options = run.summary, run.options or {}
    numbers = {key: f"{value:,}" for key, value in summary.items() if isinstance(value, int)}
    splits = (("num_train_images", "training"), ("num_val_images", "validation"))
    counts = [f"{numbers[key]} {name}" for key, name in splits if key in numbers]
    classes, batch = summary.get("num_classes"), numbers.get("global_batch_size")
    versions = _mapping(summary, "versions")
    rate, reference = options.get("optim.lr"), options.get("optim.reference_batch")
    rate = (
        f"{rate} per {reference} images" if reference and options.get("optim.scaling") != "none" else rate
    )  # the curve shows the scaled rate
    hardware, devices = summary.get("hardware"), summary.get("num_devices")
    rows = {
        "State": run.state if run.state != "finished" else "",
        "Command": summary.get("command"),
        "Finished": str(summary.get("finished_at") or "").replace("T", " "),
        "Hardware": hardware or (count_noun(devices, "device") if isinstance(devices, int) else ""),
        "Images": f"{' + '.join(counts)} images of {count_noun(classes, 'class')}" if counts and classes else "",
        "Image size": f"{options['data.image_size']} pixels" if options.get("data.image_size") else "",
        "Optimizer": f"{options['optim.name']}, lr {rate}" if options.get("optim.name") else "",
        "Batch": f"{batch} images" if batch else "",
        "Precision": summary.get("precision"),
        "Parameters": numbers.get("num_parameters"),
        "Seed": str(options.get("seed", "")),
        "Speed": f"{run.images_per_s:,.0f} images/s" if run.images_per_s else "",
        "Checkpoint": found.model if found is not None else "",
        "Versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "Commit": summary.get("git_commit"),
    }
    return [(name, str(text)) for name, text in rows.items() if text]


def time_spent(run: Run) -> list[Share]:
    """Return the parts of the time of a finished training; [] if its files do not record them. The last part is the
    remainder."""
    metrics, num_images = run.metrics, as_number(run.summary.get("num_train_images"))
    rates, waits = (metrics.get(name, np.empty(0)) for name in ("images_per_s", "data_wait_frac"))
    if not run.train_s or not num_images or not len(rates) or not (np.isfinite(rates) & (rates > 0)).all():
        return []
    batch_s = num_images / rates
    batch_s *= min(1.0, run.train_s / batch_s.sum())  # an epoch may have been cut short
    wait_s = float(np.nansum(batch_s * waits))
    parts = {
        "waiting for the loader": wait_s,
        "training steps": float(batch_s.sum()) - wait_s,
        "validation, saving, start of epochs": run.train_s - float(batch_s.sum()),
    }
    return [Share(name, f"{duration(s)} · {percent(s / run.train_s, 1)}", s / run.train_s) for name, s in parts.items()]
