"""Runs are sorted, and shown with what differs; their curves have no text cut off."""

from pathlib import Path

import pytest
from helpers.fake_runs import make_run
from helpers.figure_asserts import assert_no_text_is_cut

from imagenet_ddp.report.differences import find_differences
from imagenet_ddp.report.leaderboard import GREY, draw_curves, leaderboard, sort_runs
from imagenet_ddp.report.run import Run, find_runs
from imagenet_ddp.runs import plots
from imagenet_ddp.system.text_table import Table, as_markdown


def best_first(folder: Path) -> list[Run]:
    return sort_runs(find_runs(folder))


def table_of(folder: Path) -> Table:
    runs = best_first(folder)
    return leaderboard(runs, find_differences(runs))


def test_the_best_comes_first_and_rows_have_what_differs(tmp_path: Path):
    for number, top1 in enumerate((0.5, 0.7, 0.6)):
        make_run(tmp_path / f"s/{number}", {"optim.lr": number + 0.1}, top1=top1)
    (make_run(tmp_path / "s/3", finished=False) / "metrics.csv").unlink()
    table = table_of(tmp_path)
    keys = [column.key for column in table.columns]
    rows = [dict(zip(keys, (cell.text for cell in row), strict=True)) for row in table.rows]
    assert [row["run"] for row in rows] == ["1", "2", "0", "3"]
    assert [row["optim.lr"] for row in rows] == ["1.1", "2.1", "0.1", "0.1"]
    assert [rows[0][key] for key in ("place", "best/val/top1", "val/top5", "val/loss", "state", "epochs")] == [
        "1", "70.00", "85.00", "1", "finished", "5/5",
    ]  # fmt: skip
    assert [rows[3][key] for key in ("best/val/top1", "val/loss", "state", "epochs", "train_s")] == [
        "-", "-", "interrupted", "0/5", "-",
    ]  # fmt: skip
    assert table.title == "4 runs: 3 finished, 1 interrupted"
    assert [row[-1].value for row in table.rows] == [str(tmp_path / "s" / name) for name in "1203"]


def test_options_beyond_the_sixth_are_in_the_csv(tmp_path: Path):
    for number in range(2):
        make_run(tmp_path / str(number), {f"model.args.x{other}": number for other in range(8)})
    table = table_of(tmp_path)
    assert [column.shown for column in table.columns if "." in column.key] == [True] * 6 + [False] * 2
    assert "x6" not in as_markdown(table)[0]
    assert "Further options that differ are in report.csv: x6, x7." in table.notes


@pytest.mark.parametrize("num_runs", [1, 12])
def test_every_run_is_a_line_and_the_best_are_in_colour(num_runs: int, tmp_path: Path):
    for number in range(num_runs):
        make_run(tmp_path / str(number), {"optim.lr": number}, top1=0.9 - number / 100, finished=number > 0)
    runs = best_first(tmp_path)
    figure = draw_curves(runs, find_differences(runs), "Runs in a_b^c $x$")
    assert_no_text_is_cut(figure)
    num_colored = min(num_runs, len(plots.PALETTE))
    for axes in figure.axes:
        colors = [line.get_color() for line in axes.lines]
        assert colors == [GREY] * (num_runs - num_colored) + [*plots.PALETTE[:num_colored]][::-1]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(legend) == num_colored
    assert legend[0] == ("90.00 %  0  (interrupted)" if num_runs == 1 else "90.00 %  0: lr=0  (interrupted)")
