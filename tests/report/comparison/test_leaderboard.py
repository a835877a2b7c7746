"""The order of runs, and the cells of a row."""

from pathlib import Path

import pytest
from helpers.fake_runs import make_run

from imagenet_ddp.report.comparison.differences import find_differences
from imagenet_ddp.report.comparison.leaderboard import leaderboard, sort_runs
from imagenet_ddp.report.run import find_runs, read_run
from imagenet_ddp.system.text_table import Table, as_markdown, as_text


def table_of(folder: Path) -> Table:
    runs = sort_runs([read_run(path) for path in find_runs(folder)], "top1")
    return leaderboard(runs, find_differences(runs))


def texts(table: Table) -> list[dict[str, str]]:
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, (cell.text for cell in row), strict=True)) for row in table.rows]


def test_the_best_comes_first_and_rows_have_what_differs(tmp_path: Path):
    for number, top1 in enumerate((0.5, 0.7, 0.6)):
        make_run(tmp_path / f"s/{number}", {"optim.lr": number + 0.1}, top1=top1)
    (tmp_path / "s/3").mkdir()
    (tmp_path / "s/3/metrics.csv").write_text("epoch,val/top1\n")
    table = table_of(tmp_path)
    rows = texts(table)
    assert [row["run"] for row in rows] == ["1", "2", "0", "3"]
    assert [row["optim.lr"] for row in rows] == ["1.1", "2.1", "0.1", "?"]
    assert rows[0] | {"folder": "", "problems": ""} == rows[0]
    assert [rows[0][key] for key in ("place", "best/val/top1", "val/top5", "val/loss", "state", "epochs")] == [
        "1", "70.00", "85.00", "1", "finished", "5/5",
    ]  # fmt: skip
    assert [rows[3][key] for key in ("best/val/top1", "val/loss", "state", "epochs", "train_s")] == [
        "-", "-", "interrupted", "0", "-",
    ]  # fmt: skip
    assert table.title == "4 runs: 3 finished, 1 interrupted"
    assert [row[-2].value for row in table.rows] == [str(tmp_path / "s" / name) for name in "1203"]


@pytest.mark.parametrize(
    ("sort", "order"),
    [("top1", "120"), ("loss", "120"), ("folder", "012"), ("train_s", "021"), ("images_per_s", "210"),
     ("optim.lr", "210"), ("model.name", "201")],
)  # fmt: skip
def test_orders(sort: str, order: str, tmp_path: Path):
    for number, (top1, epochs, rate, net) in enumerate(((0.5, 1, 50, "b"), (0.7, 9, 40, "c"), (0.6, 3, 60, "a"))):
        options = {"trainer.max_epochs": epochs, "optim.lr": 10 - number, "model.name": net}
        make_run(tmp_path / str(number), options, top1=top1, images_per_s=rate)
    runs = [read_run(path) for path in find_runs(tmp_path)]
    assert "".join(run.folder.name for run in sort_runs(runs, sort)) == order
    assert "".join(run.folder.name for run in sort_runs(runs[::-1], sort)) == order


def test_options_in_which_many_runs_differ_come_first_and_the_rest_is_in_the_csv(tmp_path: Path):
    for number in range(6):
        rare = {f"model.args.x{other}": number == other for other in range(6)} | {"optim.momentum": number == 3}
        make_run(tmp_path / str(number), {"optim.lr": number + 0.1, "data.batch_size": number % 2, **rare})
    table = table_of(tmp_path)
    options = [column for column in table.columns if "." in column.key]
    assert [column.key for column in options][:2] == ["optim.lr", "data.batch_size"]
    assert [column.shown for column in options] == [True] * 6 + [False] * 3
    assert "x4" not in as_markdown(table)[0]
    assert table.notes == ["Further options that differ are in report.csv: x4, x5, momentum."]
    lines, left_out = as_text(table, 80)
    assert max(map(len, lines)) <= 80 and "images/s" in left_out and "batch_size" in lines[0]
