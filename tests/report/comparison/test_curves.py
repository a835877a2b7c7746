"""Draw the curves of several runs, with no text cut off."""

from pathlib import Path

import numpy as np
import pytest
from helpers.fake_runs import make_run, write_metrics
from helpers.figure_asserts import assert_no_text_is_cut
from matplotlib.figure import Figure

from imagenet_ddp.report.comparison.curves import GREY, draw_curves
from imagenet_ddp.report.comparison.differences import find_differences, labels
from imagenet_ddp.report.comparison.leaderboard import sort_runs
from imagenet_ddp.report.run import Run, find_runs, read_run
from imagenet_ddp.runs import plot_style

PNG = b"\x89PNG\r\n\x1a\n"


def best_first(folder: Path) -> list[Run]:
    return sort_runs([read_run(path) for path in find_runs(folder)], "top1")


def drawn(runs: list[Run]) -> Figure:
    figure = draw_curves(runs, labels(runs, find_differences(runs)), "Runs in a_b^c $x$")
    assert_no_text_is_cut(figure)
    return figure


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("num_runs", [1, 6, 12])
def test_every_run_is_a_line_and_the_best_are_in_colour(num_runs: int, tmp_path: Path):
    for number in range(num_runs):
        make_run(tmp_path / str(number), {"optim.lr": number}, top1=0.3 + number / 100)
    figure = drawn(best_first(tmp_path))
    num_colored = min(num_runs, len(plot_style.PALETTE))
    for axes in figure.axes:
        colors = [line.get_color() for line in axes.lines]
        assert colors == [GREY] * (num_runs - num_colored) + [*plot_style.PALETTE[:num_colored]][::-1]
        assert np.asarray(axes.lines[-1].get_xdata()).tolist() == [1, 2, 3, 4, 5]
    best = np.asarray(figure.axes[0].lines[-1].get_ydata())
    assert best[-1] == pytest.approx(0.29 + num_runs / 100)
    assert len(legend(figure)) == num_colored
    assert legend(figure)[0].startswith(f"{29 + num_runs}.00 %")
    assert legend(figure)[0].endswith(f"lr={num_runs - 1}" if num_runs > 1 else "0")


def test_the_legend_says_which_run_did_not_finish(tmp_path: Path):
    make_run(tmp_path / "0", {"optim.lr": 1}, top1=0.9)
    make_run(tmp_path / "1", {"optim.lr": 2}, top1=0.5, epochs=3, finished=False)
    figure = drawn(best_first(tmp_path))
    assert legend(figure) == ["90.00 %  lr=1", "50.00 %  lr=2  (interrupted)"]


@pytest.mark.parametrize("rows", [[], [[1, 0.5, 2.0]], [[1, "nan", "nan"], [2, "nan", "inf"]]])
def test_few_or_no_values(rows: list[list[object]], tmp_path: Path):
    for number in range(2):
        write_metrics(make_run(tmp_path / str(number), finished=False), rows, ("epoch", "val/top1", "train/loss"))
    points = [len(np.asarray(line.get_xdata())) for axes in drawn(best_first(tmp_path)).axes for line in axes.lines]
    assert points == [1 if rows and rows[0][1] == 0.5 else 0] * 4
