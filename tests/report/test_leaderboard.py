"""Runs are sorted, and shown with what differs; their curves have no text cut off."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from helpers.fake_runs import make_run
from helpers.figure_asserts import assert_no_text_is_cut

from imagenet_ddp.report.compared_runs import ComparedRuns, short_names
from imagenet_ddp.report.differing_options import find_differences
from imagenet_ddp.report.leaderboard import leaderboard, seeds_table
from imagenet_ddp.report.over_seeds import over_seeds
from imagenet_ddp.report.run_curves import GREY, draw_curves, labels
from imagenet_ddp.report.run_folders import Run, find_runs
from imagenet_ddp.runs import plots
from imagenet_ddp.system.text_table import Table, as_markdown, as_text


def best_first(folder: Path) -> ComparedRuns:
    return ComparedRuns.of(find_runs(folder))


def table_of(folder: Path) -> Table:
    return leaderboard(best_first(folder))


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
    assert "interrupted" in as_text(table, 40)[0][-1], "on a narrow terminal, too"


def test_of_equal_scores_the_smaller_loss_comes_first(tmp_path: Path):
    for name in "ab":
        make_run(tmp_path / name, {"trainer.max_epochs": 1}, top1=0.7)
    file = tmp_path / "b/metrics.csv"
    text = file.read_text()
    assert text.count(",1.0,") == 1, "val/loss"
    file.write_text(text.replace(",1.0,", ",0.9,"))
    assert [run.folder.name for run in best_first(tmp_path).runs] == ["b", "a"]


def test_only_runs_that_were_validated_on_the_same_images_are_ranked(tmp_path: Path):
    """The largest set comes first; a run that has not ended yet belongs to the images that it was validated on, and
    those of another seed or fold to the images that they are drawn from."""
    photos: dict[str, Any] = {"data.name": "imagefolder", "data.root": "photos"}
    by_seed = {"data.val_fraction": 0.2}
    make_run(tmp_path / "0", photos, top1=0.5, num_val_images=64)
    make_run(tmp_path / "1", photos, top1=0.9)
    make_run(tmp_path / "2", photos | {"optim.lr": 1}, top1=0.7, finished=False)
    make_run(tmp_path / "3", photos | by_seed)
    make_run(tmp_path / "4", photos | by_seed | {"seed": 1, "data.val_fold": 1}, num_val_images=499)
    make_run(tmp_path / "5", photos | {"data.root": "other"}, top1=0.99)
    table = table_of(tmp_path)
    rows = [tuple(row[at].text for at in (0, 1, 3)) for row in table.rows]
    assert rows == [
        ("1", "1", "A"),
        ("2", "2", "A"),
        ("1", "3", "B"),
        ("2", "4", "B"),
        ("1", "0", "C"),
        ("1", "5", "D"),
    ]
    assert table.columns[3].key == "val_images"
    assert table.lead.startswith("The runs were validated on 4 sets of images, and compare only within a set: A (500 ")
    assert " B (val_fraction=0.2 data.root=photos), C (64 images, val_fraction=null data.root=photos)" in table.lead
    legend = draw_curves(best_first(tmp_path), "Runs").legends[0].get_texts()
    assert legend[2].get_text().startswith("on B  ")
    assert not table_of(tmp_path / "0").lead


def test_finished_runs_that_differ_in_the_seed_alone_have_a_mean_and_a_deviation(tmp_path: Path):
    """A seed counts once; a run with another option or other images, or that has not finished, is in no group."""
    scores = {0.1: (0.5, 0.6, 0.7), 0.2: (0.8, 0.9), 0.3: (0.99,)}
    for lr, top1s in scores.items():
        for seed, top1 in enumerate(top1s):
            make_run(tmp_path / f"{lr}_{seed}", {"optim.lr": lr, "seed": seed}, top1=top1)
    make_run(tmp_path / "again", {"optim.lr": 0.2, "seed": 0}, top1=0.6)  # with 0.8: 0.7
    make_run(tmp_path / "stopped", {"optim.lr": 0.3, "seed": 1}, finished=False)
    make_run(tmp_path / "other", {"optim.lr": 0.1, "seed": 3, "data.root": "b"}, top1=0.9)
    compared = best_first(tmp_path)
    groups = over_seeds(compared)
    assert [(group.mean, group.std) for group in groups] == [
        (pytest.approx(0.8), pytest.approx(0.02**0.5)),
        (pytest.approx(0.6), pytest.approx(0.1)),
    ]
    shown = seeds_table(compared)
    assert shown
    assert as_text(shown, 80)[0] == [
        "#  options        top-1 %   to the first  on  seeds",
        "---------------------------------------------------",
        "1  lr=0.2   80.00 ± 14.14              -  A       2",
        "2  lr=0.1   60.00 ± 10.00  -25.00 ± 7.07  A       3",  # of seeds 0 and 1, which both have
    ]
    table = leaderboard(compared)
    at = [column.key for column in table.columns].index("num_seeds")
    found = {row[1].text: [cell.value for cell in row[at : at + 3]] for row in table.rows}
    assert found["again"] == found["0.2_0"] == ["2", str(groups[0].mean), str(groups[0].std)]
    assert found["stopped"] == found["other"] == found["0.3_0"] == [None] * 3


def test_folds_are_draws_as_seeds_are(tmp_path: Path):
    for number, (seed, fold) in enumerate([(0, 0), (0, 1), (0, 2)]):
        for lr in (0.1, 0.2):
            options = {"data.val_fraction": 0.2, "data.val_fold": fold, "seed": seed, "optim.lr": lr}
            make_run(tmp_path / f"{lr}_{number}", options, top1=0.5 + 0.1 * fold + lr / 10)
    shown = seeds_table(best_first(tmp_path))
    assert shown and shown.title == "Over folds"
    assert as_text(shown, 80)[0] == [
        "#  options        top-1 %  to the first  folds",
        "----------------------------------------------",
        "1  lr=0.2   62.00 ± 10.00             -      3",
        "2  lr=0.1   61.00 ± 10.00  -1.00 ± 0.00      3",
    ]


def test_runs_of_other_batches_are_not_averaged(tmp_path: Path):
    """The same options make an update of 16 images on one node and of 32 on two, or the same 16 on two devices, each
    of which normalises 8. Where the options say it, there is no further column."""
    for number, (seed, batch, devices) in enumerate([(0, 16, 1), (1, 16, 1), (1, 32, 2), (0, 32, 2), (2, 16, 2)]):
        folder, top1 = tmp_path / str(number), 0.1 * (number + 1)
        make_run(folder, {"seed": seed}, top1=top1, global_batch_size=batch, num_devices=devices)
    make_run(tmp_path / "stopped", {"seed": 3}, finished=False)
    compared = best_first(tmp_path)
    assert compared.differences.keys == ["global_batch_size", "num_devices", "seed"]
    shown = seeds_table(compared)
    assert shown
    assert as_text(shown, 80)[0] == [
        "#  options                                  top-1 %    to the first  seeds",
        "--------------------------------------------------------------------------",
        "1  global_batch_size=32 num_devices=2  35.00 ± 7.07               -      2",
        "2  global_batch_size=16 num_devices=1  15.00 ± 7.07  -20.00 ± 14.14      2",
    ]
    csv = [column.key for column in leaderboard(compared).columns]
    assert len({*csv}) == len(csv)
    typed = tmp_path / "typed"
    for seed, devices in ((0, 1), (1, 2)):
        make_run(typed / str(seed), {"seed": seed, "trainer.devices": devices}, num_devices=devices)
    assert best_first(typed).differences.keys == ["trainer.devices", "seed"]


def test_what_is_of_the_user_s_own_has_its_own_name(tmp_path: Path):
    """The key data.name still has its default then."""
    make_run(tmp_path / "own", {"data._target_": "mypkg.pairs"})
    make_run(tmp_path / "given", {"data.name": "imagefolder"})
    make_run(tmp_path / "default")
    compared = best_first(tmp_path)
    assert compared.differences.keys == ["data.name"]
    found = {compared.differences.describe(run, ["data.name"]) for run in compared.runs}
    assert found == {"data.name=mypkg.pairs", "data.name=imagefolder", "data.name=shapes"}


def test_the_means_over_seeds_are_ranked_within_a_set_of_images(tmp_path: Path):
    for number, root in enumerate("aaabb"):
        make_run(tmp_path / str(number), {"data.root": root, "seed": number}, top1=0.5 + number / 10)
    for seed in range(2):
        folder = make_run(tmp_path / f"s{seed}", {"data.root": "a", "data.labels": "several", "seed": seed})
        (folder / "summary.json").write_text(json.dumps({"finished": True, "best/val/map": 0.5 + seed / 10}))
    shown = seeds_table(best_first(tmp_path))
    assert shown
    assert as_text(shown, 80)[0] == [
        "#  options                           top-1 %         mAP %  on  seeds",
        "---------------------------------------------------------------------",
        "1  labels=one data.root=a      60.00 ± 10.00             -  A       3",
        "1  labels=one data.root=b       85.00 ± 7.07             -  B       2",
        "1  labels=several data.root=a              -  55.00 ± 7.07  C       2",
    ]


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
    figure = draw_curves(best_first(tmp_path), "Runs in a_b^c $x$")
    assert_no_text_is_cut(figure)
    num_colored = min(num_runs, len(plots.PALETTE))
    for axes in figure.axes:
        colors = [line.get_color() for line in axes.lines]
        assert colors == [GREY] * (num_runs - num_colored) + [*plots.PALETTE[:num_colored]][::-1]
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert len(legend) == num_colored
    assert legend[0] == ("90.00 %  0  (interrupted)" if num_runs == 1 else "90.00 %  0: lr=0  (interrupted)")


# ---- the options in which runs differ: those a person chose, without their consequences


def made(folder: Path, *options: Mapping[str, Any], **more: Any) -> list[Run]:
    for number, one in enumerate(options):
        make_run(folder / str(number), one, **more)
    return find_runs(folder)


def test_important_options_come_first_and_the_seed_last(tmp_path: Path):
    one = {"seed": 1, "trainer.max_epochs": 9, "optim.lr": 1, "data.mean": [1, 2], "callbacks.stop.patience": 3}
    found = find_differences(made(tmp_path, {}, one))
    assert found.keys == ["optim.lr", "data.mean", "trainer.max_epochs", "callbacks.stop.patience", "seed"]
    assert found.derived == []


def test_how_a_run_was_started_is_no_difference(tmp_path: Path):
    started = [{"resume": name, "cluster.address": f"{name}:1", "data.name": name} for name in "ab"]
    assert find_differences(made(tmp_path, *started)).keys == ["data.name"]


def test_a_recipe_follows_its_data_unless_typed(tmp_path: Path):
    one, two = {"data.name": "a", "optim.lr": 1, "seed": 0}, {"data.name": "b", "optim.lr": 2, "seed": 1}
    found = find_differences(made(tmp_path / "a", one, two))
    assert (found.keys, found.derived) == (["data.name", "seed"], ["optim.lr"])
    found = find_differences(made(tmp_path / "b", one, two, command="python -m imagenet_ddp.train data=b optim.lr=2"))
    assert (found.keys, found.derived) == (["optim.lr", "data.name", "seed"], [])
    found = find_differences(made(tmp_path / "c", one, two, {**one, "optim.lr": 3}))
    assert found.keys == ["optim.lr", "data.name", "seed"], "two rates for the same data"
    found = find_differences(made(tmp_path / "d", {"name": "a", "model.name": "a"}, {"name": "b", "model.name": "b"}))
    assert (found.keys, found.derived) == (["model.name"], ["name"])


def test_an_older_version_lacks_keys(tmp_path: Path):
    made(tmp_path, {}, {}, {"trainer.gradient_clip_val": 1.0})
    config = yaml.safe_load((tmp_path / "1/config.yaml").read_text())
    del config["optim"]["weight_decay"], config["cluster"]
    (tmp_path / "1/config.yaml").write_text(yaml.safe_dump(config))
    found = find_runs(tmp_path)
    assert find_differences(found[:2]).keys == [], "not there is the default"
    assert find_differences(found).keys == ["trainer.gradient_clip_val"], "not there is null in an open group"


def test_names_and_labels(tmp_path: Path):
    found = made(tmp_path, {"optim.lr": 0.1 + 0.2}, {"optim.lr": 1e-5, "model.name": "n" * 80})
    named = labels(ComparedRuns.of(found))
    assert named[0] == "0: model.name=resnet18 lr=0.3"
    assert named[1].endswith(" …"), "cut between words"
    assert short_names([Path("/a/b/runs/x/1"), Path("/a/b/runs/y/1")]) == ["x/1", "y/1"]
