"""The picture of a run: what it shows of the numbers, that no label is cut, and that odd tables do not stop it."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from helpers.figure_asserts import assert_no_text_is_cut
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

from imagenet_ddp.runs.plots import curves, draw_curves, read_metrics

COLUMNS = ["epoch", "step", "train/loss", "train/top1", "train/top5", "val/loss", "val/top1", "val/top5", "lr"]


def write(path: Path, rows: Sequence[Sequence[object]], columns: Sequence[str] = COLUMNS) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([columns, *rows])
    return path


def run_of(num_epochs: int) -> list[list[object]]:
    """Accuracy rises to 0.9 and falls a little at the end; the best epoch is round(0.9 * num_epochs)."""
    rows: list[list[object]] = []
    for epoch in range(1, num_epochs + 1):
        top1 = 0.9 - 0.8 * abs(epoch - round(0.9 * num_epochs)) / num_epochs
        rows.append([epoch, epoch * 10, 2 - top1, top1, top1, 2.1 - top1, top1 * 0.9, top1, 0.1 / epoch])
    return rows


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.findobj(Text) if isinstance(text, Text) and text.get_visible()]


@pytest.mark.parametrize("num_epochs", [1, 12345])
def test_no_label_is_cut(tmp_path: Path, num_epochs: int) -> None:
    figure = curves(read_metrics(write(tmp_path / "metrics.csv", run_of(num_epochs))), "Wide " * 40)
    assert_no_text_is_cut(figure)
    assert all(tick == int(tick) for axes in figure.axes for tick in axes.get_xticks())


def test_gaps_are_bridged_and_odd_cells_left_out(tmp_path: Path) -> None:
    rows = run_of(6)
    for row, cell in ((0, ""), (1, "nan"), (3, "inf"), (4, "?")):
        rows[row][6] = cell
    figure = curves(read_metrics(write(tmp_path / "metrics.csv", rows)), "a run")
    assert np.ravel(figure.axes[1].lines[1].get_xdata()).tolist() == [3, 6]


def test_missing_columns_and_empty_table(tmp_path: Path) -> None:
    table = read_metrics(write(tmp_path / "metrics.csv", [[1, 2.5], [2, 2.0]], ["epoch", "train/loss"]))
    figure = curves(table, "a run")
    assert [len(np.ravel(axes.lines[0].get_xdata())) for axes in figure.axes] == [2, 0, 0]
    assert figure.get_suptitle() == "a run\n2 epochs"
    for rows in ([], [[1, 10, "", "", "", "", "", "", ""]]):
        out = tmp_path / "curves.png"
        draw_curves(write(tmp_path / "metrics.csv", rows), out, "a run")
        out.unlink()
    (tmp_path / "metrics.csv").write_text("")
    draw_curves(tmp_path / "metrics.csv", tmp_path / "curves.png", "a run")


def test_a_small_change_looks_small(tmp_path: Path) -> None:
    """0.3 points are no cliff; top-5 is not drawn where it is always 100 %, as for five classes."""
    rows = [[epoch, epoch, 0.1, 0.994, 1, 0.1, value, 1, 0.1] for epoch, value in ((1, 0.997), (2, 0.994))]
    table = read_metrics(write(tmp_path / "metrics.csv", rows))
    for is_narrow in (False, True):
        figure = curves(table, "a run", is_narrow=is_narrow)
        assert [axes.get_title(loc="left") for axes in figure.axes] == ["Loss", "Top-1 accuracy", "Learning rate"]
        low, high = figure.axes[1].get_ylim()
        assert high == 1 and high - low >= 0.1 - 1e-9
        assert_no_text_is_cut(figure)


def test_the_dark_scheme_is_dark(tmp_path: Path) -> None:
    table = read_metrics(write(tmp_path / "metrics.csv", run_of(3)))
    grounds = [np.mean(to_rgb(curves(table, "a run", scheme=scheme).get_facecolor())) for scheme in ("light", "dark")]
    assert grounds[0] == 1 and grounds[1] < 0.2


@pytest.mark.parametrize(
    ("start", "best", "words"),
    [(0.1, 0.5, "50.00 % in epoch 2"), (0.1, 0.75, "75.00 %"), (0.75, 0.75, "75.00 % at the start")],
)
def test_the_best_score_is_that_of_the_log(tmp_path: Path, start: float, best: float, words: str) -> None:
    """It may be from a validation within an epoch, which has no row."""
    table = [[0, start, start], [1, 0.25, 0.25], [2, 0.5, best]]
    figure = curves(read_metrics(write(tmp_path / "metrics.csv", table, ["epoch", "val/top1", "best/val/top1"])), "a")
    assert figure.get_suptitle() == f"a\n2 epochs, best validation top-1 {words}"
