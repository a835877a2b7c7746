"""The real command: what it prints, writes and refuses."""

import csv
import json
import shutil
from pathlib import Path

import pytest
from conftest import SMALL, Run
from helpers.fake_runs import make_run
from helpers.terminal import screen
from matplotlib.image import imread

from imagenet_ddp.errors import ConfigError
from imagenet_ddp.report.__main__ import read

HEAVY = {"torch", "torchvision", "lightning", "torchmetrics", "pytorch_lightning"}


def reports(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(("report", ".report")))


def sweep(folder: Path) -> Path:
    for number, lr in enumerate((0.01, 0.1, 0.05)):
        make_run(folder / str(number), {"optim.lr": lr}, top1=0.7 + lr)
    return folder


def test_a_sweep(run: Run, tmp_path: Path):
    sweep(tmp_path / "runs/s")
    lines = screen("-m", "imagenet_ddp.report", "runs/s", folder=tmp_path)
    assert lines[0] == "3 runs: 3 finished"
    assert [line.split()[:4] for line in lines[4:7]] == [
        ["1", "1", "80.00", "0.1"], ["2", "2", "75.00", "0.05"], ["3", "0", "71.00", "0.01"],
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in lines)
    assert "\n# 3 runs in s\n" in (tmp_path / "runs/s/report.md").read_text()
    assert "Not shown on this narrow terminal, but in report.csv: best epoch." in lines
    assert "Over seeds" not in lines, "no two runs differ in the seed alone"
    assert lines[-1] == "Written to runs/s: report.md, report.csv, report_curves.png"
    assert reports(tmp_path / "runs/s") == ["report.csv", "report.md", "report_curves.png"]
    picture = imread(tmp_path / "runs/s/report_curves.png")
    assert picture[..., :3].std() > 0.05, "not blank"
    again = run("report", "runs/s", COLUMNS="120")
    assert "Not replaced" not in again.stdout and "Not shown" not in again.stdout
    assert "best epoch" in again.stdout


def test_a_set_of_validation_images_is_a_table(run: Run, tmp_path: Path):
    for number, root in enumerate("aba"):
        make_run(tmp_path / "runs" / str(number), {"data.root": root}, top1=0.5 + number / 10)
    lines = run("report", "runs", COLUMNS="200").stdout.splitlines()
    assert lines[2].startswith(
        "The runs were validated on 2 sets of images, and compare only within a set: A (500 images"
    )
    assert [line.split()[:4] for line in lines[6:10]] == [
        ["1", "2", "70.00", "A"], ["2", "0", "50.00", "A"], [], ["1", "1", "60.00", "B"],
    ]  # fmt: skip
    assert lines[2] in (tmp_path / "runs/report.md").read_text().replace("\\", "")


def test_a_sweep_over_seeds_has_a_second_table(run: Run, tmp_path: Path):
    for seed in range(2):
        make_run(tmp_path / "runs" / str(seed), {"seed": seed}, top1=0.5 + seed / 10)
    lines = run("report", "runs", COLUMNS="200").stdout.splitlines()
    at = lines.index("Over seeds")
    assert lines[at - 1] == lines[at + 1] == "" and lines[at + 4] == "1  55.00 ± 7.07      2"
    assert "## Over seeds\n\n| \\# | top-1 % | seeds |" in (tmp_path / "runs/report.md").read_text()


def test_odd_names(run: Run, tmp_path: Path):
    names = ["a|b", '<i>,"q"', "größe数", "line\nbreak\x1b[31m"]
    for number, name in enumerate(names):
        make_run(tmp_path / "runs" / name, {"optim.lr": number + 0.1}, top1=0.5)
    assert "\x1b" not in run("report", "runs", "out=o", code=0).stdout
    with (tmp_path / "o/report.csv").open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["run"] for row in rows) == sorted([*names[:3], "line\\nbreak\\x1b[31m"])
    assert {float(row["optim.lr"]) for row in rows} == {0.1, 1.1, 2.1, 3.1}
    markdown = (tmp_path / "o/report.md").read_text()
    assert "| a\\|b |" in markdown and "![Validation score" in markdown and "<i>" not in markdown


def test_the_page_of_a_run_without_a_checkpoint(run: Run, tmp_path: Path):
    make_run(tmp_path / "mine", epochs=2, finished=False)
    done = run("report", "mine", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert done.returncode == 0 and not imported & HEAVY
    assert done.stdout.splitlines() == [
        "resnet18 on shapes", "best top-1 80.00 % (epoch 2)", "top-5 95.00 % (epoch 2)",
        "training time 0:15 (2 of 5 epochs)",
        "The training has not ended: this page shows what it had reached after 2 of 5 epochs. To continue it: "
        "`python -m imagenet_ddp.train resume=mine`.",
        "There is no checkpoints/best.ckpt to evaluate image by image.", "", "Written to mine: report.html",
    ]  # fmt: skip
    assert reports(tmp_path / "mine") == ["report.html"]


def test_mistakes_come_all_at_once(run: Run, tmp_path: Path):
    sweep(tmp_path / "s")
    (tmp_path / "file").touch()
    done = run("report", "s", "nowhere", "by=fold", "max=1", "maps=no", "out=file")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("imagenet_ddp.report: 5 mistakes, nothing was started\n\n 1. nowhere\n")
    for message in (
        "by=fold is neither a folder nor an option.",
        "max=1 is neither a folder nor an option.",
        "maps must be true or false",
        "out must be a writable folder, but",
    ):
        assert message in " ".join(done.stderr.split())
    said = run("report", "s/gone", code=2).stderr
    assert "Hint: name a run that exists, such as s/2, s/1, s/0." in said and "Corrected command" not in said
    assert "Corrected command:\npython -m imagenet_ddp.report s\n" in run("report", "s ", code=2).stderr
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty/config.yaml").write_text("of: another")
    assert "empty must be or contain a run" in run("report", "s", "empty", code=2).stderr
    assert not (tmp_path / "report").exists()
    assert run("report").returncode == 2


def test_a_folder_with_a_space_that_was_typed_without_quotes_is_one_mistake(run: Run, tmp_path: Path):
    (tmp_path / "my run").mkdir()
    done = run("report", "my", "run", code=2)
    assert "my run has a space, and must be in quotes" in done.stderr and "1 mistake" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("imagenet_ddp.report 'my run'")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("s/0/report.html", ["s/0"]), ("old_test", []), ("old_sweep", ["old_sweeps"]), ("s/0", None)],
)
def test_only_a_folder_with_runs_is_offered(
    typed: str, meant: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    sweep(tmp_path / "s")
    sweep(tmp_path / "old_sweeps")
    (tmp_path / "tests").mkdir()
    if meant is None:
        assert read([typed]).folders == [Path(typed)]
        return
    with pytest.raises(ConfigError) as error:
        read([typed])
    assert [option for fix in error.value.mistakes[0].fixes for option in fix.options] == meant


def test_foreign_files_are_not_replaced(run: Run, tmp_path: Path):
    folder = sweep(tmp_path / "s")
    (folder / "report.csv").mkdir()  # in the way
    (folder / "report.md").write_text("my notes")
    (folder / "report_curves.png").symlink_to(folder / "report.md")
    done = run("report", "s", code=0)
    assert "did not write them: report.md, report.csv, report_curves.png. Hint: set out=FOLDER." in done.stdout
    assert (folder / "report.md").read_text() == "my notes"


@pytest.mark.slow
def test_a_run_whose_images_have_changed_is_evaluated_again(run: Run, tree: Path, tmp_path: Path):
    """Labels are corrected, or photographs are added or removed, after a report: the next one is of what is there. A
    page of images that are gone is that of the last evaluation."""
    shutil.copytree(tree / "train", tmp_path / "pets")
    run("train", *SMALL, "data.root=pets", "hydra.run.dir=r", "trainer.max_epochs=1", code=0)
    first = run("report", "r", code=0)
    counted = json.loads((tmp_path / "r/evaluation/evaluation.json").read_text())["num_val_images"]
    with (tmp_path / "r/evaluation/predictions.csv").open(newline="") as file:
        moved = tmp_path / next(csv.DictReader(file))["path"]
    other = "dog" if moved.parent.name != "dog" else "owl"
    moved.rename(tmp_path / "pets" / other / "moved.jpg")

    again = run("report", "r", code=0)
    assert "whose images have changed since its evaluation" in again.stdout + again.stderr
    assert "is no longer" not in again.stdout + again.stderr
    with (tmp_path / "r/evaluation/predictions.csv").open(newline="") as file:
        labels = {row["path"]: row["label"] for row in csv.DictReader(file)}
    assert labels[f"pets/{other}/moved.jpg"] == other and len(labels) == counted
    assert "Evaluating" in first.stdout + first.stderr and (tmp_path / "r/report.html").is_file()
    assert "Evaluating" not in run("report", "r", code=0).stderr

    (tmp_path / "pets").rename(tmp_path / "gone")
    assert "Evaluating" not in run("report", "r", code=0).stderr
