"""Find the options in which runs differ: those a person chose, without their consequences."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from helpers.fake_runs import make_run

from imagenet_ddp.report.differences import find_differences, labels, short_names
from imagenet_ddp.report.run import Run, find_runs


def runs(folder: Path, *options: Mapping[str, Any], **more: Any) -> list[Run]:
    for number, one in enumerate(options):
        make_run(folder / str(number), one, **more)
    return find_runs(folder)


def test_important_options_come_first_and_the_seed_last(tmp_path: Path):
    one = {"seed": 1, "trainer.max_epochs": 9, "optim.lr": 1, "data.mean": [1, 2], "callbacks.stop.patience": 3}
    found = find_differences(runs(tmp_path, {}, one))
    assert found.keys == ["optim.lr", "data.mean", "trainer.max_epochs", "callbacks.stop.patience", "seed"]
    assert found.derived == []


def test_how_a_run_was_started_is_no_difference(tmp_path: Path):
    started = [{"resume": name, "cluster.address": f"{name}:1", "data.name": name} for name in "ab"]
    assert find_differences(runs(tmp_path, *started)).keys == ["data.name"]


def test_a_recipe_follows_its_data_unless_typed(tmp_path: Path):
    one, two = {"data.name": "a", "optim.lr": 1, "seed": 0}, {"data.name": "b", "optim.lr": 2, "seed": 1}
    found = find_differences(runs(tmp_path / "a", one, two))
    assert (found.keys, found.derived) == (["data.name", "seed"], ["optim.lr"])
    found = find_differences(runs(tmp_path / "b", one, two, command="python -m imagenet_ddp.train data=b optim.lr=2"))
    assert (found.keys, found.derived) == (["optim.lr", "data.name", "seed"], [])
    found = find_differences(runs(tmp_path / "c", one, two, {**one, "optim.lr": 3}))
    assert found.keys == ["optim.lr", "data.name", "seed"], "two rates for the same data"
    found = find_differences(runs(tmp_path / "d", {"name": "a", "model.name": "a"}, {"name": "b", "model.name": "b"}))
    assert (found.keys, found.derived) == (["model.name"], ["name"])


def test_an_older_version_lacks_keys(tmp_path: Path):
    runs(tmp_path, {}, {}, {"trainer.gradient_clip_val": 1.0})
    config = yaml.safe_load((tmp_path / "1/config.yaml").read_text())
    del config["optim"]["weight_decay"], config["cluster"]
    (tmp_path / "1/config.yaml").write_text(yaml.safe_dump(config))
    found = find_runs(tmp_path)
    assert find_differences(found[:2]).keys == [], "not there is the default"
    assert find_differences(found).keys == ["trainer.gradient_clip_val"], "not there is null in an open group"


def test_names_and_labels(tmp_path: Path):
    found = runs(tmp_path, {"optim.lr": 0.1 + 0.2}, {"optim.lr": 1e-5, "model.name": "n" * 80})
    differ = find_differences(found)
    assert labels(found[:1], differ) == ["0: model.name=resnet18 lr=0.3"]
    assert labels(found, differ)[1].endswith(" …"), "cut between words"
    assert short_names([Path("/a/b/runs/x/1"), Path("/a/b/runs/y/1")]) == ["x/1", "y/1"]
