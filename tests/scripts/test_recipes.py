"""Which runs are one recipe, how it is named, and the command that trains it."""

from pathlib import Path
from typing import Any

import pytest
from helpers.fake_runs import make_run

from imagenet_ddp.report.differences import find_differences
from imagenet_ddp.report.run import find_runs
from scripts.recipe_table import Recipe, find_recipe, group_recipes

TRAIN = "python -m imagenet_ddp.train"


def recipes_of(folder: Path) -> list[Recipe]:
    runs = find_runs(folder)
    return group_recipes(runs, find_differences(runs))


def named(folder: Path, typed: str, options: dict[str, Any] | None = None, **summary: Any) -> None:
    """A run that was started by this line."""
    make_run(folder, options, command=f"{TRAIN} {typed}", **summary)


def test_the_seed_alone_makes_no_other_recipe(tmp_path: Path):
    for number, (seed, lr) in enumerate([(10, 0.1), (2, 0.1), (1, 0.2), (3, 0.1)]):
        name = f"n{number}"
        make_run(tmp_path / name, {"seed": seed, "optim.lr": lr, "name": name}, top1=0.5 + number / 100)
    make_run(tmp_path / "stopped", {"seed": 9, "optim.lr": 0.1}, finished=False)
    slow, fast = recipes_of(tmp_path)
    assert [run.options["seed"] for run in slow.runs] == [2, 3, 10]
    assert slow.values("best_top1") == pytest.approx([0.51, 0.53, 0.5])
    assert (slow.label, fast.label) == ("lr=0.1", "lr=0.2"), "also where no command tells what was typed"
    assert slow.command == ""


def test_labels_are_the_experiment_and_what_was_typed_and_differs(tmp_path: Path):
    common = "data=imagefolder data.root=/home/me/pets optim.weight_decay=0.1"
    data = {"name": "imagefolder", "folder": "pets"}
    base = {"optim.weight_decay": 0.1, "loss.label_smoothing": 0.1, "optim.lr": 0.02}
    for seed in (1, 2):
        word = f"seed={seed} hydra.run.dir=r/{seed} resume=auto logger=csv cluster.requeue=false 'allow_targets=[x]'"
        named(tmp_path / f"a{seed}", f"experiment=mine {common} {word}", {**base, "seed": seed},
              experiment="mine", data=data)  # fmt: skip
        named(tmp_path / f"b{seed}", f"experiment=mine {common} loss.label_smoothing=0 {word}",
              {**base, "loss.label_smoothing": 0, "seed": seed}, experiment="mine", data=data)  # fmt: skip
        named(tmp_path / f"c{seed}", f"{common} experiment=other optim=adamw {word}",
              {**base, "optim.lr": 0.5, "optim.name": "adamw", "seed": seed}, experiment="other",
              data=data)  # fmt: skip
    a, b, c = recipes_of(tmp_path)
    assert (a.label, b.label, c.label) == ("mine", "mine label_smoothing=0", "other optim.name=adamw")
    assert b.data == "imagefolder pets"
    assert b.command == (
        f"{TRAIN} -m experiment=mine data=imagefolder data.root=FOLDER optim.weight_decay=0.1 "
        "loss.label_smoothing=0 'allow_targets=[x]' seed=1,2"
    )
    assert [find_recipe([a, b, c], words) for words in ("mine", "smoothing", "optim", str(tmp_path / "c2"))] == [
        0, 1, 2, 2,
    ]  # fmt: skip
    assert [find_recipe([a, b, c], words) for words in ("nothing", "m", str(tmp_path))] == [None] * 3


def test_the_command_of_one_job_of_a_sweep(tmp_path: Path):
    line = "-m experiment=x,y optim.lr=0.1,0.2 seed=0,1 'hydra.sweep.dir=my sweep'"
    for number, (experiment, lr, seed) in enumerate([("x", 0.1, 0), ("x", 0.1, 1), ("y", 0.2, 0)]):
        named(tmp_path / str(number), line, {"optim.lr": lr, "seed": seed}, experiment=experiment)
    first, last = recipes_of(tmp_path)
    assert (first.label, last.label) == ("x lr=0.1", "y lr=0.2")
    assert first.command == f"{TRAIN} -m experiment=x optim.lr=0.1 seed=0,1"
    assert last.command == f"{TRAIN} experiment=y optim.lr=0.2 seed=0"
