"""Draw the curves of several runs, with no text cut off."""

from pathlib import Path

import numpy as np
import pytest
from helpers.fake_runs import make_run, write_metrics
from helpers.figure_asserts import assert_no_text_is_cut
from matplotlib.figure import Figure

from imagenet_ddp.report.comparison.curves import COLORS, GREY, NUM_COLORED, draw_curves
from imagenet_ddp.report.comparison.differences import find_differences, labels
from imagenet_ddp.report.comparison.leaderboard import sort_runs
from imagenet_ddp.report.find_runs import find_runs
from imagenet_ddp.report.run import Run, read_run
from imagenet_ddp.runs import plot_style

PNG = b"\x89PNG\r\n\x1a\n"


def best_first(folder: Path) -> list[Run]:
    return sort_runs([read_run(path) for path in find_runs(folder).folders], "top1")


def drawn(runs: list[Run]) -> Figure:
    figure = draw_curves(runs, labels(runs, find_differences(runs)), "Runs of a_b^c $x$")
    assert_no_text_is_cut(figure)
    return figure


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("num_runs", [1, 2, 6, 12, 40])
def test_every_run_is_a_line_and_the_best_are_in_colour(num_runs: int, tmp_path: Path):
    for number in range(num_runs):
        make_run(tmp_path / str(number), {"optim.lr": number}, top1=0.3 + number / 100)
    figure = drawn(best_first(tmp_path))
    for axes, last in zip(figure.axes, (30 + num_runs - 1, None), strict=True):
        assert len(axes.lines) == num_runs
        grey = [line for line in axes.lines if line.get_color() == GREY]
        assert len(grey) == max(num_runs - NUM_COLORED, 0)
        (best,) = [line for line in axes.lines if line.get_color() == COLORS[0] and line.get_linestyle() == "-"]
        assert np.asarray(best.get_xdata()).tolist() == [1, 2, 3, 4, 5]
        if last is not None:
            assert np.asarray(best.get_ydata())[-1] == pytest.approx(last)
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines if line.get_color() != GREY}
    assert len(styles) == min(num_runs, NUM_COLORED), "no two alike"
    assert legend(figure)[0].startswith(f"{29 + num_runs}.00 %")
    assert legend(figure)[0].endswith(f"lr={num_runs - 1}" if num_runs > 1 else "0")
    assert (f"{num_runs - NUM_COLORED} more" in legend(figure)) == (num_runs > NUM_COLORED)


def test_no_label_is_cut_however_long(tmp_path: Path):
    for number in range(4):
        options = {"data.root": f"/a/{'very/' * 20}long/{number}", "name": "n" * 60 + str(number), "optim.lr": number}
        make_run(tmp_path / ("r" * 90 + str(number)), options, finished=number > 1)
    assert len(legend(drawn(best_first(tmp_path)))) == 4


def test_a_run_that_did_not_finish_has_an_open_end(tmp_path: Path):
    make_run(tmp_path / "0", {"optim.lr": 1}, top1=0.9)
    make_run(tmp_path / "1", {"optim.lr": 2}, top1=0.5, epochs=3, finished=False)
    figure = drawn(best_first(tmp_path))
    (end,) = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert np.asarray(end.get_xdata()).tolist() == [3]
    assert legend(figure) == ["90.00 %  lr=1", "50.00 %  lr=2  (interrupted)"]


def test_a_diverged_run_leaves_the_others_readable(tmp_path: Path):
    make_run(tmp_path / "0", {"optim.lr": 1})
    wild = make_run(tmp_path / "1", {"optim.lr": 2})
    write_metrics(wild, [[1, 0.1, 1e3], [2, 0.1, 1e30], [3, "nan", "nan"]], ("epoch", "val/top1", "train/loss"))
    loss = drawn(best_first(tmp_path)).axes[1]
    assert loss.get_ylim()[1] < 3
    assert loss.get_title(loc="right") == "higher values are not shown"


@pytest.mark.parametrize("rows", [[], [[1, "", ""]], [[1, 0.5, 2.0]], [[1, "nan", "nan"], [2, "nan", "inf"]]])
def test_few_or_no_values(rows: list[list[object]], tmp_path: Path):
    for number in range(2):
        write_metrics(make_run(tmp_path / str(number), finished=False), rows, ("epoch", "val/top1", "train/loss"))
    figure = drawn(best_first(tmp_path))
    nothing = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert nothing == ([] if rows and rows[0][1] == 0.5 else ["no values"] * 2)


def test_characters_without_a_glyph_do_not_warn(tmp_path: Path):
    make_run(tmp_path / "数据集")
    runs = best_first(tmp_path)
    assert plot_style.png(draw_curves(runs, labels(runs, find_differences(runs)), "数据")).startswith(PNG)
