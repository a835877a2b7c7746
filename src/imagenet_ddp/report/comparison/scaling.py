"""Compare runs that are equal but for the number of devices and nodes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from imagenet_ddp.report.comparison.differences import Differences, canonical, format_option, option
from imagenet_ddp.report.comparison.leaderboard import number_cell
from imagenet_ddp.report.run import Run, as_number
from imagenet_ddp.system.table import Cell, Column, Table, text_cell
from imagenet_ddp.system.text import percent

WORLD = {"trainer.devices", "trainer.num_nodes"}
BATCH = {"data.batch_size", "data.val_batch_size"}
NOTES = [
    "images/s: of all devices together, training only; median over the epochs after the first, and over runs on the "
    "same number of devices and nodes.",
    "Speed-up is relative to the smallest number of devices; efficiency is speed-up / ratio of devices.",
]


@dataclass(frozen=True)
class World:
    """Runs on the same number of devices and nodes."""

    num_devices: int
    num_nodes: int
    num_runs: int
    batch: float | None  # images per device
    global_batch: float | None
    images_per_s: float
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class Series:
    """Runs that are equal but for the world, the seed, and the batch where it follows from the world."""

    label: str  # options that distinguish it from the other series
    worlds: list[World]  # two or more, smallest first


def find_series(runs: Sequence[Run], differences: Differences) -> list[Series]:
    runs = [run for run in runs if run.images_per_s and run.num_devices and run.num_nodes and run.options is not None]
    keys = [key for key in (*differences.keys, *differences.derived) if key not in WORLD | BATCH | {"seed"}]
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in runs:
        options = (*(canonical(option(run, key)) for key in keys), str(run.summary.get("precision")))
        groups.setdefault(options, []).append(run)
    parts = [part for group in groups.values() for part in _split_by_batch(group)]
    parts = [part for part in parts if len({run.num_devices for run in part}) > 1]
    titles = [key for key in (*differences.keys, "data.batch_size") if key not in WORLD | {"seed"}]
    options = [_common_options(part, titles, differences) for part in parts]
    distinct = [key for key in (options[0] if options else {}) if len({each[key] for each in options}) > 1]
    return [
        Series(" ".join(f"{key}={each[key]}" for key in distinct), _worlds(part))
        for each, part in zip(options, parts, strict=True)
    ]


def scaling_table(series: Sequence[Series]) -> Table:
    columns = [
        Column("series", "options", drop=1, right=False, shown=any(one.label for one in series)),
        Column("num_devices", "devices"), Column("num_nodes", "nodes", drop=2), Column("num_runs", "runs", drop=4),
        Column("batch", "batch/device", drop=5), Column("global_batch", "global batch", drop=3),
        Column("images_per_s", "images/s"), Column("speedup", "speed-up"), Column("efficiency", "efficiency"),
    ]  # fmt: skip
    rows = [
        [
            text_cell(one.label),
            *map(number_cell, (world.num_devices, world.num_nodes, world.num_runs, world.batch, world.global_batch)),
            number_cell(world.images_per_s),
            Cell(world.speedup, f"{world.speedup:.2f}"),
            Cell(world.efficiency, percent(world.efficiency, 0)),
        ]
        for one in series
        for world in one.worlds
    ]
    return Table(columns, rows, "Scaling", list(NOTES))


def _split_by_batch(group: Sequence[Run]) -> list[list[Run]]:
    """Return the group itself where the batch follows from the world, else a part for each batch size."""
    batches: dict[tuple[int | None, int | None], set[float]] = {}
    for run in group:
        batches.setdefault((run.num_devices, run.num_nodes), set()).add(_batch(run))
    if all(len(sizes) == 1 for sizes in batches.values()):
        return [list(group)]
    return [[run for run in group if _batch(run) == size] for size in sorted({_batch(run) for run in group})]


def _common_options(part: Sequence[Run], keys: Sequence[str], differences: Differences) -> dict[str, str]:
    options = {}
    for key in keys:
        values = {format_option(option(run, key)) for run in part}
        options[differences.title(key)] = values.pop() if len(values) == 1 else "various"
    return {**options, "precision": str(part[0].summary.get("precision"))}


def _worlds(runs: Sequence[Run]) -> list[World]:
    groups: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.num_devices or 1, run.num_nodes or 1), []).append(run)
    worlds: list[World] = []
    for (num_devices, num_nodes), group in sorted(groups.items()):
        rate = median(run.images_per_s or 0.0 for run in group)
        speedup = rate / worlds[0].images_per_s if worlds else 1.0
        efficiency = speedup * worlds[0].num_devices / num_devices if worlds else 1.0
        batch = _common(_batch(run) for run in group)
        global_batch = _common(as_number(run.summary.get("global_batch_size")) for run in group)
        worlds.append(World(num_devices, num_nodes, len(group), batch, global_batch, rate, speedup, efficiency))
    return worlds


def _common(values: Iterable[float | None]) -> float | None:
    distinct = set(values)
    return distinct.pop() if len(distinct) == 1 else None


def _batch(run: Run) -> float:
    return as_number((run.options or {}).get("data.batch_size")) or 0
