"""What the figures show of the runs, and that no label is cut."""

from pathlib import Path

import numpy as np
import pytest
from helpers.fake_runs import make_run, write_metrics
from helpers.figure_asserts import assert_no_text_is_cut
from matplotlib.figure import Figure

from imagenet_ddp.report.differences import differences, labels
from imagenet_ddp.report.figures import COLORS, NUM_BRIGHT, REST, curves, speed
from imagenet_ddp.report.leaderboard import in_place
from imagenet_ddp.report.runs import Run, read
from imagenet_ddp.report.scaling import scaling
from imagenet_ddp.report.search import search
from imagenet_ddp.runs import plot_style

PNG = b"\x89PNG\r\n\x1a\n"


def found(folder: Path) -> list[Run]:
    return in_place([read(path) for path in search(folder).folders], "top1")


def drawn(runs: list[Run]) -> Figure:
    figure = curves(runs, labels(runs, differences(runs)), "Runs of a_b^c $x$")
    assert_no_text_is_cut(figure)
    return figure


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("num_runs", [1, 2, 6, 12, 40])
def test_every_run_is_a_line_and_the_best_have_colours(num_runs: int, tmp_path: Path):
    for number in range(num_runs):
        make_run(tmp_path / str(number), {"optim.lr": number}, top1=0.3 + number / 100)
    figure = drawn(found(tmp_path))
    for axes, last in zip(figure.axes, (30 + num_runs - 1, None), strict=True):
        assert len(axes.lines) == num_runs
        grey = [line for line in axes.lines if line.get_color() == REST]
        assert len(grey) == max(num_runs - NUM_BRIGHT, 0)
        (best,) = [line for line in axes.lines if line.get_color() == COLORS[0] and line.get_linestyle() == "-"]
        assert np.asarray(best.get_xdata()).tolist() == [1, 2, 3, 4, 5]
        if last is not None:
            assert np.asarray(best.get_ydata())[-1] == pytest.approx(last)
    styles = {(line.get_color(), line.get_linestyle()) for line in figure.axes[0].lines if line.get_color() != REST}
    assert len(styles) == min(num_runs, NUM_BRIGHT), "no two alike"
    assert legend(figure)[0].startswith(f"{29 + num_runs}.00 %")
    assert legend(figure)[0].endswith(f"lr={num_runs - 1}" if num_runs > 1 else "0")
    assert (f"{num_runs - NUM_BRIGHT} more" in legend(figure)) == (num_runs > NUM_BRIGHT)


def test_no_label_is_cut_however_long(tmp_path: Path):
    for number in range(4):
        options = {"data.root": f"/a/{'very/' * 20}long/{number}", "name": "n" * 60 + str(number), "optim.lr": number}
        make_run(tmp_path / ("r" * 90 + str(number)), options, finished=number > 1)
    assert len(legend(drawn(found(tmp_path)))) == 4


def test_a_run_that_did_not_finish_has_an_open_end(tmp_path: Path):
    make_run(tmp_path / "0", {"optim.lr": 1}, top1=0.9)
    make_run(tmp_path / "1", {"optim.lr": 2}, top1=0.5, epochs=3, finished=False)
    figure = drawn(found(tmp_path))
    (end,) = [line for line in figure.axes[0].lines if line.get_markerfacecolor() == "white"]
    assert np.asarray(end.get_xdata()).tolist() == [3]
    assert legend(figure) == ["90.00 %  lr=1", "50.00 %  lr=2  (broken off)"]


def test_a_diverged_run_leaves_the_others_readable(tmp_path: Path):
    make_run(tmp_path / "0", {"optim.lr": 1})
    wild = make_run(tmp_path / "1", {"optim.lr": 2})
    write_metrics(wild, [[1, 0.1, 1e3], [2, 0.1, 1e30], [3, "nan", "nan"]], ("epoch", "val/top1", "train/loss"))
    loss = drawn(found(tmp_path)).axes[1]
    assert loss.get_ylim()[1] < 3
    assert loss.get_title(loc="right") == "higher values are not shown"


@pytest.mark.parametrize("rows", [[], [[1, "", ""]], [[1, 0.5, 2.0]], [[1, "nan", "nan"], [2, "nan", "inf"]]])
def test_little_or_nothing_to_draw(rows: list[list[object]], tmp_path: Path):
    for number in range(2):
        write_metrics(make_run(tmp_path / str(number), finished=False), rows, ("epoch", "val/top1", "train/loss"))
    figure = drawn(found(tmp_path))
    nothing = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert nothing == ([] if rows and rows[0][1] == 0.5 else ["no values"] * 2)


def test_speed_beside_the_ideal(tmp_path: Path):
    for devices, rate in ((2, 100), (4, 180), (16, 500)):
        make_run(tmp_path / str(devices), {"trainer.devices": devices}, num_devices=devices, images_per_s=rate)
    runs = found(tmp_path)
    figure = speed(scaling(runs, differences(runs)), "Scaling")
    ideal, measured = [np.asarray(line.get_ydata()).tolist() for line in figure.axes[0].lines]
    assert (ideal, measured) == ([100, 200, 800], [100, 180, 500])
    assert [text.get_text() for text in figure.axes[1].texts] == ["100 %", "90 %", "62 %"]
    assert [tick.get_text() for tick in figure.axes[0].get_xticklabels()] == ["2", "4", "16"]
    assert legend(figure) == ["ideal", "measured"]
    picture = plot_style.png(figure, Software="x")
    assert picture.startswith(PNG)
    assert len(picture) > 20_000


def test_several_series_have_names(tmp_path: Path):
    for devices in (1, 2):
        for hook in ("bf16", "fp16"):
            options = {"trainer.devices": devices, "strategy.comm_hook": hook}
            make_run(tmp_path / f"{devices}{hook}", options, num_devices=devices, images_per_s=100 * devices)
    runs = found(tmp_path)
    figure = speed(scaling(runs, differences(runs)), "Scaling")
    assert legend(figure) == ["ideal", "comm_hook=bf16", "comm_hook=fp16"]


def test_signs_without_a_glyph_are_no_warning(tmp_path: Path):
    make_run(tmp_path / "数据集")
    runs = found(tmp_path)
    assert plot_style.png(curves(runs, labels(runs, differences(runs)), "数据")).startswith(PNG)
