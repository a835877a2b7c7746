"""Runs are collected once, sorted, and shown with what differs; their curves have no text cut off."""

from pathlib import Path

import pytest
from helpers.fake_runs import make_run
from helpers.figure_asserts import assert_no_text_is_cut
from matplotlib.figure import Figure

from imagenet_ddp.report.differences import Differences, find_differences, labels
from imagenet_ddp.report.leaderboard import GREY, collect_runs, draw_curves, leaderboard, notes_on, sort_runs
from imagenet_ddp.report.run import Run, find_runs, read_run
from imagenet_ddp.runs import plots
from imagenet_ddp.system.text_table import Table, as_markdown


def best_first(folder: Path) -> list[Run]:
    return sort_runs([read_run(path) for path in find_runs(folder)], "top1")


def table_of(folder: Path) -> Table:
    runs = best_first(folder)
    return leaderboard(runs, find_differences(runs))


def test_folders_without_runs(tmp_path: Path):
    make_run(tmp_path / "runs/0")
    for number in range(7):
        (tmp_path / f"other/{number}").mkdir(parents=True)
        (tmp_path / f"other/{number}/config.yaml").write_text("a: 1")
    found = collect_runs([tmp_path / "runs", tmp_path / "other"])
    (mistake,) = found.mistakes
    assert mistake.startswith(f"{tmp_path}/other must be or contain a run folder, but no folder in it")
    assert "any of the files config.yaml, metrics.csv, summary.json of a training run (" in mistake
    assert "other/0: files of another program" in mistake
    assert "and 2 more)" in mistake
    mixed = collect_runs([tmp_path])
    assert (len(mixed.runs), mixed.mistakes) == (1, [])
    assert mixed.notes[0].startswith("Left out: ")


def test_notes_on_classes_versions_and_damaged_files(tmp_path: Path):
    versions = [{"torch": version, "python": "3.11"} for version in ("2.14", "2.15")]
    runs = [
        read_run(make_run(tmp_path / str(n), num_classes=3, versions=versions[n], git_commit=f"{n}" * 40))
        for n in (0, 1)
    ]
    (tmp_path / "2").mkdir()
    (tmp_path / "2/metrics.csv").write_text("epoch,val/top1\n1,0.5\n")
    runs.append(read_run(tmp_path / "2"))
    notes = notes_on(runs, find_differences(runs))[1:]
    assert notes == [
        "With fewer than 5 classes, top-5 is top-3.",
        "The runs were made with different versions of the code (git commit): 000000000000, 111111111111.",
        "The runs were made with different versions of torch: 2.14, 2.15.",
        "Incomplete: 2 (config.yaml is missing).",
    ]
    assert "Not shown, because data= or another choice" in notes_on(runs[:1], Differences([], ["optim.lr"]))[2]


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


def test_options_beyond_the_sixth_are_in_the_csv(tmp_path: Path):
    for number in range(2):
        make_run(tmp_path / str(number), {f"model.args.x{other}": number for other in range(8)})
    table = table_of(tmp_path)
    assert [column.shown for column in table.columns if "." in column.key] == [True] * 6 + [False] * 2
    assert "x6" not in as_markdown(table)[0]
    assert table.notes == ["Further options that differ are in report.csv: x6, x7."]


def drawn(runs: list[Run]) -> tuple[Figure, list[str]]:
    """Return (the figure, its legend)."""
    figure = draw_curves(runs, labels(runs, find_differences(runs)), "Runs in a_b^c $x$")
    assert_no_text_is_cut(figure)
    return figure, [text.get_text() for text in figure.legends[0].get_texts()]


@pytest.mark.parametrize("num_runs", [1, 12])
def test_every_run_is_a_line_and_the_best_are_in_colour(num_runs: int, tmp_path: Path):
    for number in range(num_runs):
        finished = number > 0 or num_runs == 1
        make_run(tmp_path / str(number), {"optim.lr": number}, top1=0.9 - number / 100, finished=finished)
    figure, legend = drawn(best_first(tmp_path))
    num_colored = min(num_runs, len(plots.PALETTE))
    for axes in figure.axes:
        colors = [line.get_color() for line in axes.lines]
        assert colors == [GREY] * (num_runs - num_colored) + [*plots.PALETTE[:num_colored]][::-1]
    assert len(legend) == num_colored
    assert legend[0] == ("90.00 %  0" if num_runs == 1 else "90.00 %  lr=0  (interrupted)")
