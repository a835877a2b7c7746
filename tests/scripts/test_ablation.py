"""A recipe and its variants in rounds, continued where they were stopped, and compared."""

import csv
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, SMALL_DRAWN, clean_environ
from helpers import forked_commands

from scripts import ablation

OPTIONS = ("experiment=quick", *SMALL_DRAWN, "trainer.limit_train_batches=2", "trainer.max_epochs=1", "callbacks=none")


def start(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    environment = clean_environ(PYTHONPATH=str(ROOT / "scripts"))
    command = forked_commands.Command("ablation", *options, folder=folder, environment=environment)
    code = command.wait()
    return subprocess.CompletedProcess(options, code, command.out, command.err)


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
    assert [line.split(":")[0] for line in done.stdout.splitlines()[:4]] == [
        "seed 1, recipe", "seed 1, plain", "seed 2, recipe", "seed 2, plain",
    ]  # fmt: skip
    with (tmp_path / "o/results.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    data = f"imagefolder {tree.name}, 29 + 11 images, 3 classes"
    assert [(row["recipe"], row["num_seeds"], row["data"]) for row in rows] == [
        ("recipe", "2", data),
        ("plain", "2", data),
    ]
    assert float(rows[1]["train_cpu_s_ratio"]) > 0
    assert "data.root=FOLDER" in rows[0]["command"] and rows[0]["command"].endswith("seed=1,2")

    other = start(tmp_path, *options, "optim.momentum=0.5")
    assert other.returncode == 1
    assert (
        "ablation.json lists other options than this command. Hint: set out=FOLDER to another folder." in other.stderr
    )


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(12.7062, 1, 0.05), (31.5991, 2, 0.001), (2.22814, 10, 0.05), (-3.64596, 30, 0.001), (0, 2.5, 1)],
)
def test_the_tables_of_students_distribution(t: float, freedom: float, p: float):
    assert ablation.two_sided_p(t, freedom) == pytest.approx(p, rel=1e-4)


def test_samples_of_unequal_size_and_variance():
    """The second example of Wikipedia's article on this test, with the p-value given there."""
    a = [17.2, 20.9, 22.6, 18.1, 21.7, 21.4, 23.5, 24.2, 14.7, 21.8]
    b = [21.5, 22.8, 21.0, 23.0, 21.6, 23.6, 22.5, 20.7, 23.4, 21.8, 20.7, 21.7, 21.5, 22.5, 23.6, 21.5, 22.5, 23.5,
         21.5, 21.8]  # fmt: skip
    assert ablation.welch_p(a, b) == ablation.welch_p(b, a) == pytest.approx(0.149, abs=5e-4)


@pytest.mark.parametrize("path", sorted((ROOT / "scripts/ablations").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_variants_in_the_project_compose(path: Path):
    """Each is a command line without a mistake, but for the folder of images."""
    from imagenet_ddp.cli.parse import composed

    options, _, variants, _ = ablation.read([f"experiment={path.stem}", "data=imagefolder"])
    assert len(variants) > 2
    seen = []
    for own in variants.values():
        request = composed("train", ablation.merged(options, own))
        seen.append(request.config)
    assert all(config != seen[0] for config in seen[1:]), "a variant is not the recipe itself"
