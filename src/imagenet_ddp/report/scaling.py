"""Runs that are equal but for devices and nodes: how much faster are more of them?"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from imagenet_ddp.report.differences import Differences, canonical, printable, shown_option, value
from imagenet_ddp.report.leaderboard import figure
from imagenet_ddp.report.runs import Run
from imagenet_ddp.report.table import Cell, Column, Table, cut
from imagenet_ddp.system.text import percent

AT_MOST = 5  # series whose batches are said one by one
WORLD = {"trainer.devices", "trainer.num_nodes"}
BATCH = {"data.batch_size", "data.val_batch_size"}
MEASURE = (
    "images/s: of all devices together, training alone; median over the epochs after the first, and over runs of the"
    " same world."
)


@dataclass(frozen=True)
class World:
    """Runs on the same number of devices and nodes."""

    num_devices: int
    num_nodes: int | None
    num_runs: int
    batch: int | None  # per device
    global_batch: int | None
    images_per_s: float
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class Series:
    """Runs that are equal in all but the world, the batch where it follows from the world, and the seed."""

    label: str  # "" where it is the only one
    worlds: list[World]  # two or more, smallest first

    def batch_words(self) -> str:
        each, together = {world.batch for world in self.worlds}, {world.global_batch for world in self.worlds}
        if len(each) == 1 and None not in each:
            return f"{each.pop()} images per device throughout: the global batch grows with the devices"
        if len(together) == 1 and None not in together:
            return f"global batch of {together.pop()} throughout: each device's share shrinks"
        return "the batch per device and the global batch both differ: not the same work per step"


def scaling(runs: Sequence[Run], found: Differences) -> list[Series]:
    measured = [run for run in runs if run.images_per_s and run.num_devices and run.options is not None]
    others = [key for key in (*found.keys, *found.follow) if key not in WORLD | BATCH | {"seed"}]
    groups: dict[tuple[str, ...], list[Run]] = {}
    for run in measured:
        key = (*(canonical(value(run, key)) for key in others), str(run.summary.get("precision")))
        groups.setdefault(key, []).append(run)
    parts = [part for group in groups.values() for part in _by_batch(group) if len({r.num_devices for r in part}) > 1]
    keys = [*dict.fromkeys(key for key in (*found.keys, "data.batch_size") if key not in WORLD | {"seed"})]
    names = [{found.title(key): _shared(part, key) for key in keys} for part in parts]
    names = [
        {**name, "precision": str(part[0].summary.get("precision"))} for name, part in zip(names, parts, strict=True)
    ]
    telling = [key for key in (names[0] if names else {}) if len({name[key] for name in names}) > 1]
    return [
        Series(printable(" ".join(f"{key}={name[key]}" for key in telling)), _worlds(part))
        for name, part in zip(names, parts, strict=True)
    ]


def _by_batch(group: Sequence[Run]) -> list[list[Run]]:
    """One part, or one for each batch size where a world was run with several."""
    batches: dict[tuple[int | None, int | None], set[int | None]] = {}
    for run in group:
        batches.setdefault((run.num_devices, run.num_nodes), set()).add(_batch(run))
    if all(len(each) == 1 for each in batches.values()):
        return [list(group)]
    sizes = sorted({_batch(run) for run in group}, key=lambda size: size or 0)
    return [[run for run in group if _batch(run) == size] for size in sizes]


def _shared(part: Sequence[Run], key: str) -> str:
    options = list(dict.fromkeys(shown_option(value(run, key)) for run in part))
    return options[0] if len(options) == 1 else "various"


def as_table(series: Sequence[Series]) -> Table:
    columns = [
        Column("series", "options", drop=1, right=False, shown=any(one.label for one in series)),
        Column("num_devices", "devices"), Column("num_nodes", "nodes", drop=2), Column("num_runs", "runs", drop=4),
        Column("batch", "batch/device", drop=5), Column("global_batch", "global batch", drop=3),
        Column("images_per_s", "images/s"), Column("speedup", "speed-up"), Column("efficiency", "efficiency"),
    ]  # fmt: skip
    rows = []
    for one in series:
        for world in one.worlds:
            counts = (world.num_devices, world.num_nodes, world.num_runs, world.batch, world.global_batch)
            rows.append(
                [
                    Cell(one.label, one.label),
                    *(Cell(count, "-" if count is None else str(count)) for count in counts),
                    Cell(world.images_per_s, figure(world.images_per_s)),
                    Cell(world.speedup, f"{world.speedup:.2f}"),
                    Cell(world.efficiency, percent(world.efficiency, 0)),
                ]
            )
    words = {one.batch_words() for one in series}
    said = [f"{text[0].upper()}{text[1:]}." for text in words] if len(words) == 1 else []
    said = said or [f"{cut(one.label, 60)}: {one.batch_words()}." for one in series[:AT_MOST]]
    against = "Speed-up is against the smallest number of devices; efficiency is speed-up / ratio of devices."
    return Table(columns, rows, "Scaling", [MEASURE, against, *said])


def _worlds(runs: Sequence[Run]) -> list[World]:
    groups: dict[tuple[int, int], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.num_devices or 0, run.num_nodes or 0), []).append(run)
    worlds: list[World] = []
    for (devices, nodes), group in sorted(groups.items()):
        rate = median(run.images_per_s or 0.0 for run in group)
        base = worlds[0] if worlds else None
        speedup = rate / base.images_per_s if base else 1.0
        ratio = devices / base.num_devices if base else 1.0
        worlds.append(
            World(devices, nodes or None, len(group), _same(_batch(run) for run in group),
                  _same(_global_batch(run) for run in group), rate, speedup, speedup / ratio)
        )  # fmt: skip
    return worlds


def _same(values: Iterable[int | None]) -> int | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def _batch(run: Run) -> int | None:
    size = (run.options or {}).get("data.batch_size")
    return size if isinstance(size, int) else None


def _global_batch(run: Run) -> int | None:
    size = run.summary.get("global_batch_size")
    return size if isinstance(size, int) else None
