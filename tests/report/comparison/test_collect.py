"""Collect the runs of the folders given, each once, and the notes below the table."""

from pathlib import Path

from helpers.fake_runs import make_run

from imagenet_ddp.report.comparison.collect import collect_runs, notes_on
from imagenet_ddp.report.comparison.differences import Differences, find_differences
from imagenet_ddp.report.run import read_run


def test_each_run_once(tmp_path: Path):
    for name in ("a/0", "a/1", "b/0"):
        make_run(tmp_path / name)
    found = collect_runs([tmp_path / "a", tmp_path, tmp_path / "a/1"])
    assert [str(run.folder.relative_to(tmp_path)) for run in found.runs] == ["a/0", "a/1", "b/0"]
    assert (found.notes, found.mistakes) == ([], [])


def test_folders_without_runs(tmp_path: Path):
    make_run(tmp_path / "runs/0")
    for number in range(7):
        (tmp_path / f"other/{number}").mkdir(parents=True)
        (tmp_path / f"other/{number}/config.yaml").write_text("a: 1")
    found = collect_runs([tmp_path / "runs", tmp_path / "other"])
    (mistake,) = found.mistakes
    assert mistake.startswith(f"{tmp_path}/other must be or contain a run folder, but no folder in it")
    assert "any of the files config.yaml, metrics.csv, summary.json of a training run (" in mistake
    assert "other/0: files of another program" in mistake
    assert "and 2 more)" in mistake
    mixed = collect_runs([tmp_path])
    assert (len(mixed.runs), mixed.mistakes) == (1, [])
    assert mixed.notes[0].startswith("Left out: ")


def test_notes_on_classes_versions_and_damaged_files(tmp_path: Path):
    versions = [{"torch": version, "python": "3.11"} for version in ("2.14", "2.15")]
    runs = [
        read_run(make_run(tmp_path / str(n), num_classes=3, versions=versions[n], git_commit=f"{n}" * 40))
        for n in (0, 1)
    ]
    (tmp_path / "2").mkdir()
    (tmp_path / "2/metrics.csv").write_text("epoch,val/top1\n1,0.5\n")
    runs.append(read_run(tmp_path / "2"))
    notes = notes_on(runs, find_differences(runs))[1:]
    assert notes == [
        "With fewer than 5 classes, top-5 is top-3.",
        "The runs were made with different versions of the code (git commit): 000000000000, 111111111111.",
        "The runs were made with different versions of torch: 2.14, 2.15.",
        "Incomplete: 2 (config.yaml is missing).",
    ]
    assert "Not shown, because data= or another choice" in notes_on(runs[:1], Differences([], ["optim.lr"]))[2]
