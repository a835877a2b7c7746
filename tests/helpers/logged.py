"""Read the values that each logger has stored of a run, with the logger's own reader.

Curves map a metric to its [(step, value), ...] in the order of logging.
"""

import csv
import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

Curves = dict[str, list[tuple[int, float]]]


def of_csv(run_dir: Path) -> Curves:
    rows: list[dict[str, float]] = []
    for path in sorted(run_dir.glob("csv/version_*/metrics.csv")):  # one for each part of the run
        with path.open(newline="") as file:
            rows += [{name: float(value) for name, value in row.items() if value} for row in csv.DictReader(file)]
    names = {name for row in rows for name in row} - {"step"}
    return {name: [(int(row["step"]), row[name]) for row in rows if name in row] for name in names}


def of_tensorboard(run_dir: Path) -> Curves:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"), {"scalars": 0})
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def tensorboard_pictures(run_dir: Path) -> list[str]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run_dir / "tensorboard"))
    events.Reload()
    return sorted(events.Tags()["images"])


def of_trackio(folder: Path) -> tuple[str, Curves]:
    """Return (name of the only run, curves)."""
    (file,) = folder.glob("*.db")
    with closing(sqlite3.connect(file)) as connection:
        rows = connection.execute("select run_name, step, metrics from metrics order by id").fetchall()
    (name,) = {row[0] for row in rows}
    curves: Curves = {}
    for _, step, metrics in rows:
        for key, value in json.loads(metrics).items():
            if isinstance(value, int | float):
                curves.setdefault(key, []).append((step, value))
    return name, curves


def of_mlflow(run_dir: Path) -> tuple[Any, Curves]:
    """Return (run, curves)."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{run_dir / 'mlflow.db'}")
    run = client.get_run(json.loads((run_dir / "logger_mlflow.json").read_text())["id"])
    curves = {}
    for name in run.data.metrics:
        curves[name] = [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, name)]
    return run, curves


def wandb_records(run_dir: Path) -> Iterator[Any]:
    """Yield all records of the offline files, one file per part of the run, in order. The files have the format of
    LevelDB's logs."""
    from wandb.proto.wandb_internal_pb2 import Record  # pyright: ignore[reportAttributeAccessIssue]  # created at import

    for path in sorted(run_dir.glob("wandb/offline-run-*/*.wandb")):
        data, position, content = path.read_bytes(), 7, b""
        while position + 7 <= len(data):
            if (left := 32768 - position % 32768) < 7:
                position += left
                continue
            _, size, kind = struct.unpack_from("<IHB", data, position)
            content += data[position + 7 : position + 7 + size]
            position += 7 + size
            if kind in (1, 4):  # a complete record, or the last fragment of one
                yield Record.FromString(content)
                content = b""


def of_wandb(run_dir: Path) -> Curves:
    curves: Curves = {}
    for record in wandb_records(run_dir):
        if record.WhichOneof("record_type") == "history":
            row = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            for name in row.keys() - {"trainer/global_step"}:
                if not name.startswith(("_", "pictures/")):
                    curves.setdefault(name, []).append((int(row["trainer/global_step"]), float(row[name])))
    return curves
