"""The cells of a recipe: medians, ranges, and the comparison with the first."""

import statistics
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_runs import make_run

from imagenet_ddp.report.differences import find_differences
from imagenet_ddp.report.run import find_runs, read_run
from imagenet_ddp.system.text_table import Table
from scripts.recipe_table import group_recipes, recipe_table, welch_p

REACHED = {0.1: [0.70, 0.72, 0.77], 0.2: [0.80]}
CPU_S = {0.1: [100.0, 104.0, 109.0], 0.2: [51.0]}


def table_of(folder: Path) -> Table:
    runs = [read_run(path) for path in find_runs(folder)]
    return recipe_table(group_recipes(runs, find_differences(runs)))


def rows(table: Table, attribute: str) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, (getattr(cell, attribute) for cell in row), strict=True)) for row in table.rows]


def make(folder: Path, **summary: Any) -> None:
    for lr, values in REACHED.items():
        for seed, top1 in enumerate(values):
            options = {"optim.lr": lr, "seed": seed}
            make_run(folder / f"{lr}_{seed}", options, top1=top1, train_cpu_s=CPU_S[lr][seed], **summary)


def test_medians_ranges_and_comparison(tmp_path: Path):
    make(tmp_path, hardware="H", num_train_images=5000, num_val_images=500, finished_at="2026-01-02T00:00:00+0000")
    table = table_of(tmp_path)
    first, second = rows(table, "value")
    assert (first["num_seeds"], first["seeds"], first["top1_median"]) == (3, "0 1 2", pytest.approx(0.72))
    assert first["top1_sd"] == pytest.approx(statistics.stdev(REACHED[0.1]))
    assert (first["top1_difference"], first["top1_p"], first["compared_with"]) == (None, None, "")
    assert second["top1_difference"] == pytest.approx(0.08)
    assert second["train_cpu_s_ratio"] == pytest.approx(51 / 104)
    assert (second["top1_p"], second["train_cpu_s_p"]) == (None, None), "one seed has no variance"
    assert second["compared_with"] == "lr=0.1"
    first, second = rows(table, "text")
    names = ("top1_median", "top1_range", "epochs", "train_s_median", "train_cpu_s_median")
    assert [first[name] for name in names] == ["72.00", "70.00 to 77.00", "5", "37.5", "104"]
    assert [second[name] for name in ("top1_range", "top1_difference", "top1_p", "train_cpu_s_ratio")] == [
        "-", "+8.00", "-", "0.49",
    ]  # fmt: skip
    assert "Data: shapes, 5,000 + 500 images, 10 classes." in table.notes
    assert "Hardware: H." in table.notes
    shown = [column.key for column in table.shown().columns]
    assert not {"data", "hardware"} & {*shown}, "the same in all rows"


def test_p_is_of_the_seeds_of_both(tmp_path: Path):
    reached = {0.1: [0.70, 0.72, 0.77], 0.2: [0.80, 0.81, 0.83]}
    for lr, values in reached.items():
        for seed, top1 in enumerate(values):
            cpu_s = 100 * lr + seed + lr * seed
            make_run(tmp_path / f"{lr}_{seed}", {"optim.lr": lr, "seed": seed}, top1=top1, train_cpu_s=cpu_s)
    second = rows(table_of(tmp_path), "value")[1]
    assert second["top1_p"] == pytest.approx(welch_p(*reached.values()))
    assert second["train_cpu_s_p"] == pytest.approx(welch_p([10, 11.1, 12.2], [20, 21.2, 22.4]))
