"""A recipe and its variants in rounds, continued where they were stopped, and compared."""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, SMALL, clean_environ

from scripts import ablation

OPTIONS = ("experiment=quick", *SMALL, "trainer.limit_train_batches=2", "trainer.max_epochs=1", "callbacks=none")


def start(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/ablation.py"), *options]
    return subprocess.run(command, cwd=folder, env=clean_environ(), capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_two_variants_and_two_seeds(tree: Path, tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("plain: [experiment=pytorch_example, data.image_size=32, data.val_resize=48]\n")
    options = [*OPTIONS, f"data.root={tree}", "variants=mine.yaml", "out=o"]
    first = start(tmp_path, *options, "seeds=1")
    assert first.returncode == 0, first.stderr
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("o/*/*/summary.json")}
    assert len(stamps) == 2
    done = start(tmp_path, *options, "seeds=1,2")
    assert done.returncode == 0, done.stderr
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, "what is finished is not trained again"
    made = sorted(tmp_path.glob("o/*/*/summary.json"), key=lambda path: path.stat().st_mtime_ns)
    assert [path.parent.relative_to(tmp_path).as_posix() for path in made] == [
        "o/recipe/seed1", "o/plain/seed1", "o/recipe/seed2", "o/plain/seed2",
    ]  # fmt: skip
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == [
        "round 1 of 2, recipe", "round 1 of 2, plain", "round 2 of 2, recipe", "round 2 of 2, plain",
    ]  # fmt: skip
    assert lines[4] == "Recipes over seeds"
    rows = list(csv.DictReader((tmp_path / "o/report_recipes.csv").read_text().splitlines()))
    assert [(row["recipe"], row["seeds"], row["data"]) for row in rows] == [
        ("quick val_resize=32", "1 2", f"imagefolder {tree.name}, 29 + 11 images, 3 classes"),
        ("pytorch_example val_resize=48", "1 2", f"imagefolder {tree.name}, 29 + 11 images, 3 classes"),
    ]  # fmt: skip
    assert rows[1]["compared_with"] == "quick val_resize=32"
    assert float(rows[1]["train_cpu_s_ratio"]) > 0
    assert "data.root=FOLDER" in rows[0]["command"] and rows[0]["command"].endswith("seed=1,2")

    other = start(tmp_path, *options, "optim.momentum=0.5")
    assert other.returncode == 1
    assert "o/ablation.yaml lists other options or variants than these. Hint: out=FOLDER, another one." in other.stderr


@pytest.mark.slow
def test_a_run_that_fails_ends_the_ablation(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("odd: [optim.lr=fast]\n")
    done = start(tmp_path, "data=imagefolder", "data.root=none", "variants=mine.yaml", "out=o")
    assert done.returncode == 2
    assert done.stderr.endswith("o/recipe/seed1 ended with exit code 2; the same command continues.\n")
    assert not (tmp_path / "o/odd").exists()


def test_own_options_stand_in_place_of_the_typed_ones():
    assert ablation.merged(["experiment=a", "optim.lr=1", "seed=1"], ["optim.lr=2", "experiment=b"]) == [
        "seed=1", "optim.lr=2", "experiment=b",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("content", "said"),
    [("a: [x=1", "must be YAML"), ("[a]", "must hold names"), ("a b: [x=1]", "must hold names"),
     ("recipe: [x=1]", "must hold names"), ("a: x=1", "must hold names"), ("a: [1]", "must hold names")],
)  # fmt: skip
def test_files_of_variants_that_are_refused(content: str, said: str, tmp_path: Path):
    path = tmp_path / "v.yaml"
    path.write_text(content)
    with pytest.raises(SystemExit, match=said):
        ablation.read([f"variants={path}"])


@pytest.mark.parametrize(
    ("words", "said"),
    [(["experiment=nobodys"], "ablations/nobodys.yaml. Hint: variants=FILE."),
     (["seeds=1,1"], "different whole numbers, got 1,1. Hint: seeds=1,2,3."), (["seeds=one"], "got one. Hint")],
)  # fmt: skip
def test_words_that_are_refused(words: list[str], said: str):
    with pytest.raises(SystemExit, match=said):
        ablation.read(words)


@pytest.mark.parametrize("path", sorted((ROOT / "scripts/ablations").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_variants_in_the_project_compose(path: Path, tmp_path: Path):
    """Each is a command line without a mistake, but for the folder of images."""
    from imagenet_ddp.cli.parse import command_line

    options, _, variants, _ = ablation.read([f"experiment={path.stem}", "data=imagefolder"])
    assert len(variants) > 2
    seen = []
    for own in variants.values():
        request = command_line("train", ablation.merged(options, own), {}, compose_only=True)
        seen.append(request.configs[0])
    assert all(config != seen[0] for config in seen[1:]), "a variant is not the recipe itself"
