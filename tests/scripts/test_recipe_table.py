"""The cells of a recipe: medians, ranges, and the comparison with the first."""

import statistics
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_runs import make_run

from imagenet_ddp.report.differences import find_differences
from imagenet_ddp.report.run import find_runs
from imagenet_ddp.system.text_table import Table
from scripts.recipe_table import group_recipes, recipe_table, two_sided_p, welch_p

REACHED = {0.1: [0.70, 0.72, 0.77], 0.2: [0.80]}
CPU_S = {0.1: [100.0, 104.0, 109.0], 0.2: [51.0]}


def table_of(folder: Path) -> Table:
    runs = find_runs(folder)
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


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(12.7062, 1, 0.05), (63.6567, 1, 0.01), (31.5991, 2, 0.001), (2.77645, 4, 0.05), (2.22814, 10, 0.05),
     (-3.64596, 30, 0.001), (1.98397, 100, 0.05), (0, 2.5, 1)],
)  # fmt: skip
def test_the_tables_of_students_distribution(t: float, freedom: float, p: float):
    assert two_sided_p(t, freedom) == pytest.approx(p, rel=1e-4)


def test_samples_of_unequal_size_and_variance():
    """The second example of Wikipedia's article on this test, with the p-value given there."""
    a = [17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8]
    b = [21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8, 20.7, 21.7, 21.5, 22.5, 23.6, 21.5, 22.5, 23.5,
         21.5, 21.8]  # fmt: skip
    assert welch_p(a, b) == welch_p(b, a) == pytest.approx(0.149, abs=5e-4)
