"""The real command: what it prints, writes and refuses."""

import csv
import io
from pathlib import Path

from conftest import Run
from helpers.fake_runs import make_run
from matplotlib.image import imread

FILES = ["report.csv", "report.md", "report_curves.png"]
HEAVY = {"torch", "torchvision", "lightning", "torchmetrics", "pytorch_lightning"}


def reports(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name.startswith(("report", ".report")))


def sweep(folder: Path, values: tuple[float, ...] = (0.01, 0.1, 0.05)) -> Path:
    for number, lr in enumerate(values):
        make_run(folder / str(number), {"optim.lr": lr}, top1=0.7 + lr)
    return folder


def test_a_sweep(run: Run, tmp_path: Path):
    sweep(tmp_path / "runs/s")
    done = run("report", "runs/s", COLUMNS="80")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "3 runs, all finished"
    assert [line.split()[:4] for line in lines[4:7]] == [
        ["1", "1", "80.00", "0.1"], ["2", "2", "75.00", "0.05"], ["3", "0", "71.00", "0.01"],
    ]  # fmt: skip
    assert all(len(line) <= 80 for line in lines)
    assert "\n# 3 runs in s\n" in (tmp_path / "runs/s/report.md").read_text()
    assert "Not shown on this narrow terminal, but in report.csv: best epoch." in lines
    assert lines[-1] == "Written to runs/s: report.md, report.csv, report_curves.png"
    assert reports(tmp_path / "runs/s") == FILES
    picture = imread(tmp_path / "runs/s/report_curves.png")
    assert picture.shape[1] == 1650
    assert picture[..., :3].std() > 0.05, "not blank"
    again = run("report", "runs/s", COLUMNS="120")
    assert "Not replaced" not in again.stdout and "Not shown" not in again.stdout
    assert "best epoch" in again.stdout


def test_every_format_and_odd_names(run: Run, tmp_path: Path):
    names = ["a|b", '<i>,"q"', "größe数", "line\nbreak\x1b[31m"]
    for number, name in enumerate(names):
        make_run(tmp_path / "runs" / name, {"optim.lr": number + 0.1}, top1=0.5)
    texts = {form: run("report", "runs", "out=o", f"format={form}") for form in ("text", "markdown", "csv")}
    assert [done.returncode for done in texts.values()] == [0] * 3
    assert "\x1b" not in texts["text"].stdout
    rows = list(csv.DictReader(io.StringIO(texts["csv"].stdout)))
    assert sorted(row["run"] for row in rows) == sorted([*names[:3], "line\\nbreak\\x1b[31m"])
    assert {float(row["optim.lr"]) for row in rows} == {0.1, 1.1, 2.1, 3.1}
    for form, name in (("markdown", "report.md"), ("csv", "report.csv")):
        assert texts[form].stdout == (tmp_path / "o" / name).read_text()
        assert texts[form].stderr.strip().startswith("Written to o: report.md"), "beside the document"
    assert "| a\\|b |" in texts["markdown"].stdout
    assert "![Validation top-1" in texts["markdown"].stdout
    assert "<i>" not in texts["markdown"].stdout


def test_the_page_of_a_run_without_a_checkpoint(run: Run, tmp_path: Path):
    make_run(tmp_path / "mine", epochs=2, finished=False)
    done = run("report", "mine", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
    assert done.returncode == 0 and not imported & HEAVY
    assert done.stdout.splitlines() == [
        "resnet18 on shapes", "best top-1 80.00 % (epoch 2)", "top-5 95.00 % (epoch 2)",
        "training time 0:15 (2 of 5 epochs)",
        "There is no checkpoints/best.ckpt to evaluate image by image.", "", "Written to mine: report.html",
    ]  # fmt: skip
    assert reports(tmp_path / "mine") == ["report.html"]
    (tmp_path / "other").mkdir()
    (tmp_path / "other/config.yaml").write_text("of: another")
    refused = run("report", "other")
    assert refused.returncode == 2 and "other must be a run folder, but has files of another program" in refused.stderr


def test_mistakes_come_all_at_once(run: Run, tmp_path: Path):
    sweep(tmp_path / "s")
    (tmp_path / "empty").mkdir()
    done = run("report", "s", "empty", "nowhere", "formt=csv", "format=pdf", "sort=learning_rate")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(
        "imagenet_ddp.report: 5 mistakes, nothing was started\n\n 1. nowhere must be a folder"
    )
    for message in ("formt=csv is neither an option", "format must be text,", "empty must be or contain a run",
                 "sort must be one of top1, top5,", "Hint: did you mean format=csv?"):  # fmt: skip
        assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "report").exists()
    assert run("report").returncode == 2


def test_a_folder_that_cannot_be_written_in(run: Run, tmp_path: Path):
    folder = sweep(tmp_path / "s")
    (folder / "report.csv").mkdir()  # in the way
    (folder / "report.md").write_text("my notes")
    done = run("report", "s")
    assert done.returncode == 0
    foreign = "Not replaced, because this command did not write them: report.md, report.csv. Hint: set out=FOLDER."
    assert foreign in done.stdout
    assert (folder / "report.md").read_text() == "my notes"
    (folder / "report_curves.png").unlink()
    (folder / "report_curves.png").symlink_to(folder / "report.md")
    assert "report.csv, report_curves.png. Hint" in run("report", "s").stdout, "a link is not followed"
    assert (folder / "report.md").read_text() == "my notes"
    done = run("report", "s", "out=s/report.md")
    assert done.returncode == 2 and "out must be a writable folder, but" in done.stderr
