"""A training from a table is one from the same images in folders."""

import csv
import json
from pathlib import Path

import pytest
from conftest import SMALL, Run
from helpers.image_table import write_table

COMPARED = ("train/loss", "train/top1", "val/loss", "val/top1")


def trained(run: Run, out: Path, *options: str) -> dict[str, str]:
    """The last row of metrics.csv of a training by two ranks, for two epochs."""
    done = run("train", *SMALL[1:], "trainer.devices=2", *options, f"hydra.run.dir={out}")
    assert done.returncode == 0, done.stdout + done.stderr
    with (out / "metrics.csv").open(newline="") as file:
        last = list(csv.DictReader(file))[-1]
    return {name: last[name] for name in COMPARED}


@pytest.mark.slow
def test_two_ranks_train_and_evaluate_by_a_table(tree: Path, run: Run, tmp_path: Path):
    even = write_table(tmp_path / "even.csv", tree, absolute=True, weight=lambda path: 1)
    by_table = trained(run, tmp_path / "table", "data=table", f"data.root={even}")
    by_folders = trained(run, tmp_path / "folders", "data=imagefolder", f"data.root={tree}")
    # without weights the mean is taken in one operation, which rounds differently
    assert {name: float(value) for name, value in by_table.items()} == pytest.approx(
        {name: float(value) for name, value in by_folders.items()}, rel=1e-6
    )

    rare = write_table(tmp_path / "rare.csv", tree, absolute=True, weight=lambda path: 3 if "owl" in path.parts else 1)
    out = tmp_path / "weighted"
    weighted = trained(run, out, "data=table", f"data.root={rare}", "data.sampling=balanced")
    assert weighted["train/loss"] != by_table["train/loss"]
    log = next((out / "logs").glob("*0*")).read_text()
    assert "Each class is equally frequent in training." in log
    assert "multiplied by its weight, 1 to 3, 1.621 on average." in log

    found = []
    for name, root in (("table", rare), ("imagefolder", tree)):
        options = [f"data={name}", f"data.root={root}", f"hydra.run.dir={tmp_path / f'by_{name}'}"]
        done = run("evaluate", f"checkpoint={out}/checkpoints/last.ckpt", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        evaluation = json.loads((tmp_path / f"by_{name}" / "evaluation.json").read_text())
        found.append({key: evaluation[key] for key in ("val/top1", "val/top5", "val/loss", "num_val_images")})
    assert found[0] == found[1]
    assert found[0]["num_val_images"] == 11
    assert found[0]["val/loss"] == pytest.approx(float(weighted["val/loss"]), abs=1e-5)  # a validation has no weights


def test_mistakes_end_the_command_before_it_begins(tree: Path, run: Run, tmp_path: Path):
    table = write_table(tmp_path / "t.csv", tree, absolute=True)
    with table.open("a") as file:
        file.writelines(f"gone{number}.jpg,cat,train\n" for number in range(30))
    done = run("train", *SMALL[1:], "data=table", "data.root=t.csv")
    assert done.returncode == 2
    said = " ".join(done.stderr.split())
    assert "1 mistake, nothing was started" in said
    assert (
        "absolute, but does not in 30 rows: row 42 (gone0.jpg)," in said and "row 51 (gone9.jpg) and 20 more." in said
    )
    assert not (tmp_path / "runs").exists()
