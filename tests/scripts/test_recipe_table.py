"""Which runs are one recipe, how it is named, and the comparison of its seeds with the first recipe."""

from pathlib import Path
from typing import Any

import pytest
from helpers.fake_runs import make_run

from imagenet_ddp.report.run_folders import find_runs
from scripts.recipe_table import Recipe, group_recipes, recipe_table, two_sided_p, welch_p

REACHED = {0.1: [0.70, 0.72, 0.77], 0.2: [0.80]}
CPU_S = {0.1: [100.0, 104.0, 109.0], 0.2: [51.0]}
TRAIN = "python -m imagenet_ddp.train"


def recipes_of(folder: Path) -> list[Recipe]:
    return group_recipes(find_runs(folder))


def test_medians_ranges_and_comparison(tmp_path: Path):
    for lr, values in REACHED.items():
        for seed, top1 in enumerate(values):
            options = {"optim.lr": lr, "seed": seed, "name": f"{lr}_{seed}"}
            make_run(tmp_path / f"{lr}_{seed}", options, top1=top1, train_cpu_s=CPU_S[lr][seed])
    make_run(tmp_path / "stopped", {"seed": 9}, finished=False)
    table = recipe_table(recipes_of(tmp_path))
    keys = [column.key for column in table.columns]
    first, second = (dict(zip(keys, (cell.value for cell in row), strict=True)) for row in table.rows)
    assert [first[key] for key in ("recipe", "num_seeds", "seeds", "top1_range", "epochs", "train_cpu_s_median")] == [
        "lr=0.1", 3, "0 1 2", "70.00 to 77.00", 5, 104,
    ]  # fmt: skip
    assert (first["top1_median"], first["top1_difference"], first["top1_p"]) == (pytest.approx(0.72), None, None)
    assert second["top1_difference"] == pytest.approx(0.08)
    assert second["train_cpu_s_ratio"] == pytest.approx(51 / 104)
    assert second["top1_p"] is None, "one seed has no variance"


def test_labels_and_commands(tmp_path: Path):
    base: dict[str, Any] = {"optim.weight_decay": 0.1, "loss.label_smoothing": 0.1, "optim.lr": 0.02}
    for seed in (1, 2):
        typed = (
            f"data=imagefolder data.root=/home/me/pets {{}} seed={seed} hydra.run.dir=r/{seed} resume=auto logger=csv"
        )
        for name, more, own in (
            ("mine", {}, ""),
            ("mine", {"loss.label_smoothing": 0}, "loss.label_smoothing=0"),
            ("other", {"optim.lr": 0.5, "optim.name": "adamw"}, "optim=adamw"),
        ):
            line = f"{TRAIN} experiment={name} {typed.format(own)}"
            data = {"name": "imagefolder", "folder": "pets"}
            options = {**base, **more, "seed": seed}
            make_run(tmp_path / f"{name}{own}{seed}", options, command=line, experiment=name, data=data)
    recipes = {recipe.label: recipe.command for recipe in recipes_of(tmp_path)}
    assert {*recipes} == {"mine", "mine label_smoothing=0", "other optim.name=adamw"}
    assert recipes["mine label_smoothing=0"] == (
        f"{TRAIN} -m experiment=mine data=imagefolder data.root=FOLDER loss.label_smoothing=0 seed=1,2"
    )


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(12.7062, 1, 0.05), (31.5991, 2, 0.001), (2.22814, 10, 0.05), (-3.64596, 30, 0.001), (0, 2.5, 1)],
)
def test_the_tables_of_students_distribution(t: float, freedom: float, p: float):
    assert two_sided_p(t, freedom) == pytest.approx(p, rel=1e-4)


def test_samples_of_unequal_size_and_variance():
    """The second example of Wikipedia's article on this test, with the p-value given there."""
    a = [17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8]
    b = [21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8, 20.7, 21.7, 21.5, 22.5, 23.6, 21.5, 22.5, 23.5,
         21.5, 21.8]  # fmt: skip
    assert welch_p(a, b) == welch_p(b, a) == pytest.approx(0.149, abs=5e-4)
