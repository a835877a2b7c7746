"""Find the options in which runs differ: those a person chose, without their consequences."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from helpers.fake_runs import make_run

from imagenet_ddp.report.differences import find_differences, labels, short_names
from imagenet_ddp.report.run import Run, read_run


def runs(folder: Path, *options: Mapping[str, Any], **more: Any) -> list[Run]:
    return [read_run(make_run(folder / str(number), one, **more)) for number, one in enumerate(options)]


def test_important_options_come_first_and_the_seed_last(tmp_path: Path):
    one = {"seed": 1, "trainer.max_epochs": 9, "optim.lr": 1, "data.mean": [1, 2], "callbacks.stop.patience": 3}
    found = find_differences(runs(tmp_path, {}, one))
    assert found.keys == ["optim.lr", "data.mean", "trainer.max_epochs", "callbacks.stop.patience", "seed"]
    assert found.derived == []


def test_derived_options_are_left_out(tmp_path: Path):
    found = find_differences(
        runs(
            tmp_path,
            {"resume": "a", "cluster.address": "x:1", "name": "a_r", "data.name": "a", "model.name": "r"},
            {"resume": "b", "cluster.address": "y:1", "name": "b_r", "data.name": "b", "model.name": "r"},
        )
    )
    assert found.keys == ["data.name"]
    named = find_differences(runs(tmp_path / "n", {"name": "mine"}, {"name": "other"}))
    assert named.keys == ["name"], "a name that was typed"
    paths = [{"data.args.cache": f"/here/{number}/logs"} for number in range(2)]
    assert find_differences(runs(tmp_path / "p", *paths)).keys == []


def test_a_recipe_follows_its_data_unless_typed(tmp_path: Path):
    one, two = {"data.name": "a", "optim.lr": 1, "seed": 0}, {"data.name": "b", "optim.lr": 2, "seed": 1}
    found = find_differences(runs(tmp_path / "a", one, two))
    assert (found.keys, found.derived) == (["data.name", "seed"], ["optim.lr"])
    found = find_differences(runs(tmp_path / "b", one, two, command="python -m imagenet_ddp.train data=b optim.lr=2"))
    assert (found.keys, found.derived) == (["optim.lr", "data.name", "seed"], [])
    found = find_differences(runs(tmp_path / "c", one, two, {**one, "optim.lr": 3}))
    assert found.keys == ["optim.lr", "data.name", "seed"], "two rates for the same data"


def test_an_older_version_lacks_keys(tmp_path: Path):
    found = runs(tmp_path, {}, {}, {"trainer.gradient_clip_val": 1.0})
    config = yaml.safe_load((tmp_path / "1/config.yaml").read_text())
    del config["optim"]["weight_decay"], config["cluster"]
    (tmp_path / "1/config.yaml").write_text(yaml.safe_dump(config))
    found[1] = read_run(tmp_path / "1")
    assert find_differences(found[:2]).keys == [], "not there is the default"
    assert find_differences(found).keys == ["trainer.gradient_clip_val"], "not there is null in an open group"
    newer = runs(tmp_path / "newer", {"data.repeats": 4})
    assert find_differences([*found[:1], *newer]).keys == ["data.repeats"]


def test_names_and_labels(tmp_path: Path):
    found = runs(tmp_path, {"optim.lr": 0.1 + 0.2}, {"optim.lr": 1e-5, "model.name": "x"}, {"optim.lr": 1e-5})
    differ = find_differences(found)
    assert labels(found, differ) == [
        "model.name=resnet18 lr=0.3", "model.name=x lr=1e-05", "model.name=resnet18 lr=1e-05",
    ]  # fmt: skip
    assert labels([*found, found[0]], differ)[0] == "0: model.name=resnet18 lr=0.3", "twice the same"
    assert labels(found[:1], find_differences(found[:1])) == ["0"]
    long = runs(tmp_path / "long", {"model.name": "n" * 30}, {"optim.lr": 2, "name": "m" * 28, "seed": 3})
    assert labels(long, find_differences(long)) == [
        f"0: model.name={'n' * 30} lr=0.1 …", f"1: model.name=resnet18 lr=2 name={'m' * 28} …",
    ], "cut between words"  # fmt: skip
    folders = [Path("/a/b/runs/x/1"), Path("/a/b/runs/y/1")]
    assert short_names(folders) == ["x/1", "y/1"]
    assert short_names(folders[:1]) == ["1"]
