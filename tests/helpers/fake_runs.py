"""Make run folders like those of a training run, without training."""

import csv
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

COLUMNS = ("epoch", "step", "train/loss", "train/top1", "train/top5", "val/loss", "val/top1", "val/top5",
           "best/val/top1", "lr", "images_per_s", "data_wait_frac", "train_s", "num_val_images_counted")  # fmt: skip
CONFIG = {
    "name": "shapes_resnet18", "seed": 0, "resume": None,
    "data": {"name": "shapes", "batch_size": 32, "mean": [0.5, 0.5, 0.5], "num_workers": "auto"},
    "model": {"name": "resnet18", "args": {}}, "optim": {"name": "sgd", "lr": 0.1, "weight_decay": 1e-4},
    "trainer": {"max_epochs": 5, "devices": "auto", "num_nodes": "auto"},
    "cluster": {"address": None, "timeout_s": 120.0}, "callbacks": {}, "logger": {},
}  # fmt: skip


def make_run(
    folder: Path,
    options: Mapping[str, Any] | None = None,
    *,
    top1: float = 0.8,
    epochs: int | None = None,
    finished: bool = True,
    images_per_s: float = 100.0,
    **summary: Any,
) -> Path:
    """Write a run folder, and return it.

    options: key path -> value. top1: accuracy of the last epoch, which is the best one. epochs: number of completed
    epochs; None: trainer.max_epochs. summary: additional fields of summary.json.
    """
    config = json.loads(json.dumps(CONFIG))
    for path, value in (options or {}).items():
        *groups, key = path.split(".")
        node = config
        for group in groups:
            node = node.setdefault(group, {})
        node[key] = value
    max_epochs = int(config["trainer"]["max_epochs"])
    epochs = max_epochs if epochs is None else epochs
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
    rows = []
    for epoch in range(1, epochs + 1):
        reached = top1 * (1 - math.exp(-3 * epoch / max_epochs)) / (1 - math.exp(-3 * epochs / max_epochs))
        rate = images_per_s * (0.5 if epoch == 1 else 1)  # the first epoch includes start-up
        rows.append([epoch, 10 * epoch, 2.3 * (1 - 0.9 * reached), reached * 0.95, 1, 2.4 - 2 * reached, reached,
                     min(1, reached + 0.15), reached, 0.1, rate, 0.01, 7.5 * epoch, 500])  # fmt: skip
    write_metrics(folder, rows)
    (folder / "logs").mkdir()
    (folder / "logs" / "rank0.log").write_text("2026-11-20 12:00:00 Run folder: here\n")
    if finished:
        content = {
            "val/top1": top1, "best/val/top1": top1, "best_epoch": epochs, "num_classes": 10, "epochs": epochs,
            "images_per_s": 0.9 * images_per_s,
            "global_batch_size": config["data"]["batch_size"], "train_s": 7.5 * epochs,
            "precision": "32-true", "seed": config["seed"], "finished": True, **summary,
        }  # fmt: skip
        (folder / "summary.json").write_text(json.dumps(content))
    return folder


def write_metrics(folder: Path, rows: list[list[Any]], columns: tuple[str, ...] = COLUMNS) -> None:
    with (folder / "metrics.csv").open("w", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
